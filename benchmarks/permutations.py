"""Permutations compared with the papers' procedures.

    python -m benchmarks.permutations forward|losses|beam|codes

`layers` compares with plain vectorised code of the same result, at n = 52, 100 and 500. `table1` to
`table7`, trained at a scale, are the tables of a paper (`benchmarks.permutation_tables`), `cycles`
and `rankings` those of another (`benchmarks.permutation_codes`). `fair` compares models
(`benchmarks.permutation_comparison`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import permutation_codes, permutation_runs
from benchmarks import permutation_procedures as direct
from benchmarks.measure import arguments, interleaved, report, summary
from benchmarks.permutation_tables import SCALES, TABLES, decoded, runs
from blackout.permutations.codes import FisherYates, Insertion, Lehmer
from blackout.permutations.distributions import GeneralizedPlackettLuce, InverseRiffle, PlackettLuce
from blackout.permutations.forward_process import ForwardProcess, denoising_schedule
from blackout.permutations.relaxations import neural_sort, relaxed_sort, sinkhorn, soft_sort
from blackout.permutations.shuffles import Riffle

# A name, the plain procedure, and that of this package.
Case = tuple[str, Callable[[], Any], Callable[[], Any]]


def forward(quick: bool) -> Iterator[Case]:
    """Yield states at the scheduled times and steps back, 3 walks of 64 lists."""
    for n in (9,) if quick else (9, 52, 100):
        schedule = denoising_schedule(n)
        yield (
            f"walk and targets, n = {n}, {schedule}",
            partial(direct.walk_with_targets, n, 192, schedule),
            partial(ForwardProcess(Riffle(), schedule).sample_walks, n, 192, 1, None),
        )


def losses(quick: bool) -> Iterator[Case]:
    """Log-probabilities with gradients, batch 192."""
    for n in (9,) if quick else (9, 52, 100):
        order = torch.rand(192, n).argsort()
        vector = torch.randn(192, n, requires_grad=True)
        matrix = torch.randn(192, n, n, requires_grad=True)
        yield (
            f"Plackett-Luce, n = {n}",
            partial(_gradient, direct.plackett_luce_log_prob, vector, order),
            partial(_gradient, lambda s, o: PlackettLuce(s).log_prob(o), vector, order),
        )
        yield (
            f"generalised, n = {n}",
            partial(_gradient, direct.generalized_log_prob, matrix, order),
            partial(_gradient, lambda s, o: GeneralizedPlackettLuce(s).log_prob(o), matrix, order),
        )


def _gradient(
    log_prob: Callable[[Tensor, Tensor], Tensor], scores: Tensor, order: Tensor
) -> Tensor:
    return torch.autograd.grad(log_prob(scores, order).sum(), scores)[0]


def beam(quick: bool) -> Iterator[Case]:
    """Width 200, batch 16."""
    for n in (5,) if quick else (9, 32, 52):
        scores = torch.randn(16, n, n)
        yield (
            f"beam of 200, n = {n}",
            partial(direct.copying_beam, scores, 200),
            partial(GeneralizedPlackettLuce(scores, 200).top, 200),
        )


def codes(quick: bool) -> Iterator[Case]:
    """Yield encoding and decoding of 1,024 permutations."""
    codes = {"lehmer": Lehmer, "fisher_yates": FisherYates, "insertion": Insertion}
    for n in (5,) if quick else (10, 50):
        x = torch.rand(1024, n).argsort()
        for name, code in codes.items():
            digits = code.encode(x)
            yield (
                f"{name} encode, n = {n}",
                partial(getattr(direct, f"{name}_encode"), x),
                partial(code.encode, x),
            )
            yield (
                f"{name} decode, n = {n}",
                partial(getattr(direct, f"{name}_decode"), digits),
                partial(code.decode, digits),
            )


def layers(quick: bool) -> Iterator[Case]:
    """192 walks, 16 greedy modes, 1,024 Fisher-Yates codes, the 16 best riffles and relaxed sorts
    of 16 lists."""
    for n in (9,) if quick else (52, 100, 500):
        schedule = denoising_schedule(n) if n < 500 else [0, 11, 13, 17]
        scores = torch.randn(16, n, n)
        vector = torch.randn(16, n)
        digits = FisherYates.encode(torch.rand(1024, n).argsort())
        yield (
            f"walk, n = {n}",
            partial(direct.plain_walk, n, 192, schedule),
            partial(ForwardProcess(Riffle(), schedule).sample_walks, n, 192, 1, None),
        )
        yield (
            f"greedy mode, n = {n}",
            partial(direct.plain_greedy, scores),
            partial(lambda s: GeneralizedPlackettLuce(s, width=1).mode, scores),
        )
        plain = partial(direct.plain_fisher_yates, digits)
        yield f"Fisher-Yates decode, n = {n}", plain, partial(FisherYates.decode, digits)
        best = partial(direct.plain_riffle_top, vector, 16)
        yield f"16 best riffles, n = {n}", best, partial(lambda s: InverseRiffle(s).top(16), vector)
        yield (
            f"Sinkhorn, n = {n}",
            partial(direct.plain_sinkhorn, scores, 20),
            partial(sinkhorn, scores, 20),
        )
        yield (
            f"SoftSort, n = {n}",
            partial(direct.plain_soft_sort, vector, 0.5),
            partial(soft_sort, vector, 0.5),
        )
        yield (
            f"NeuralSort, n = {n}",
            partial(direct.plain_neural_sort, vector, 0.5),
            partial(neural_sort, vector, 0.5),
        )
        network = partial(direct.plain_sorting_network, vector, 10.0)
        yield f"sorting network, n = {n}", network, partial(relaxed_sort, vector, 10.0)


SUBJECTS: dict[str, Callable[[bool], Iterator[Case]]] = {
    "forward": forward,
    "losses": losses,
    "beam": beam,
    "codes": codes,
    "layers": layers,
}


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        choices=[*SUBJECTS, "fair", *TABLES, *permutation_codes.SUBJECTS],
        default=None,
        help="all times if not given",
    )
    parser.add_argument("--scale", choices=SCALES, default="cpu", help="of a table or fair")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where a table's runs are")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument(
        "--print", action="store_true", dest="show", help="only show a table's commands"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=None,
        help="of fair: for each method, instead of the scale's",
    )
    parser.add_argument(
        "--pieces", type=int, default=None, help="of fair: per side, instead of the scale's"
    )
    parser.add_argument("--only", default=None, help="rows with this in their name")
    parser.set_defaults(device="cpu", threads=1, repetitions=21)
    options = parser.parse_args(argv)
    if options.what in (*TABLES, *permutation_codes.SUBJECTS):
        make_rows: Callable[[str, str, Mapping[str, Any]], list[dict[str, Any]]] = decoded
        if options.what in TABLES:
            table = runs(options.what, options.scale)
        else:
            begin, make_rows = permutation_codes.SUBJECTS[options.what]
            table = begin(options.scale)
        table = [run for run in table if options.only is None or options.only in run.name]
        if options.quick:
            table = [run.shortened() for run in table]
        place = options.runs.resolve()
        rows = permutation_runs.make(
            table, make_rows, options.scale, place, options.data_dir, options.show
        )
        if rows:
            report(f"{options.what}, scale {options.scale}", rows, options)
        return
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.what == "fair":
        from benchmarks.permutation_comparison import fair

        return fair(options)
    device = torch.device(options.device)
    rows = list[dict[str, Any]]()
    for subject in SUBJECTS if options.what is None else (options.what,):
        for name, plain, fast in SUBJECTS[subject](options.quick):
            seconds = interleaved(
                {"plain": plain, "blackout": fast},
                1 if options.quick else options.repetitions,
                device,
            )
            medians = {key: summary(values)["median"] for key, values in seconds.items()}
            faster = medians["plain"] / medians["blackout"]
            milliseconds = {key: 1000 * value for key, value in medians.items()}
            rows.append({"what": name, **milliseconds, "times faster": faster})
    report("milliseconds, medians of interleaved runs", rows, options)


if __name__ == "__main__":
    main()

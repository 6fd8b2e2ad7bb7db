"""Figures 4, 5 and 6 of Chu et al. 2025: `python -m benchmarks.posterior_figures 4`.

    4    PSNR of AND over the sweeps, annealed against fixed levels: K = 50, levels 0.001 to 0.5
    5    PSNR of XOR and AND over the network evaluations: the budgets of Table 6, SVDD-PM and SMC
    6    PSNR of AND with the prior and without, of 2, 4 and 8 pairs per pixel

The prior is trained by `python train.py experiment=sgdd/prior_mnist`. Ten test images are solved by
`posterior=sgdd_published`, or by the corrected sampler with `--method sgdd`. Prints the numbers and
writes results/figure4.png; --json also writes the numbers to a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from benchmarks.measure import arguments, report
from benchmarks.posterior import Bench, NoPrior
from blackout.diffusion.kernels import EulerStep
from blackout.pictures import save_picture
from blackout.posterior import SMC, And, InverseProblem, Method, SplitGibbs, Xor, anneal
from blackout.posterior.diagnostics import psnr

Row = dict[str, Any]

FIRST_LEVEL = 20.0  # appendix C.3
LAST_LEVEL = 1e-4
EULER_STEPS = 20
FIXED_LEVELS = (1e-3, 1e-2, 0.1, 0.5)  # figure 4
BUDGETS = ((25, 2), (25, 4), (40, 5), (40, 10), (50, 20), (100, 20))  # Table 6: sweeps and steps
RATIOS = (2.0, 4.0, 8.0)  # figure 6
PROPOSALS = {"xor": 2000, "and": 5000}  # Table 7
PARTICLES = 20
PARTICLE_STEPS = 128
NUM_TRUTHS = 10


class Sizes:
    """Split Gibbs sampling in the published sizes.

    Args:
        published: with its errors and Euler steps.
        final_time: of the model, which its levels cannot exceed.
        quick: a few sweeps and proposals.
    """

    def __init__(self, published: bool, final_time: float, quick: bool) -> None:
        self.published = published
        self.quick = quick
        self.first = min(FIRST_LEVEL, final_time)

    def annealed(self, task: str, sweeps: int, steps: int = EULER_STEPS) -> SplitGibbs:
        """Return the sampler with levels from the first to the last."""
        return self.with_levels(
            task, anneal(2 if self.quick else sweeps, self.first, LAST_LEVEL), steps
        )

    def with_levels(
        self, task: str, levels: tuple[float, ...], steps: int = EULER_STEPS
    ) -> SplitGibbs:
        """Return the sampler with these levels."""
        proposals = 2 if self.quick else PROPOSALS[task]
        method = SplitGibbs(
            levels, "metropolis", proposals, start="prior", steps=2 if self.quick else steps
        )
        return replace(method, published=True, kernel=EulerStep()) if self.published else method


def figure4(bench: Bench, sizes: Sizes) -> Iterator[Row]:
    """PSNR after every sweep."""
    problem = bench.measure(And(4.0))
    sweeps = 2 if sizes.quick else 50
    methods = {"annealed": sizes.annealed("and", sweeps)}
    methods |= {
        f"level {level:g}": sizes.with_levels("and", (level,) * sweeps) for level in FIXED_LEVELS
    }
    for name, method in methods.items():
        for sweep, value in enumerate(_psnr_of_sweeps(bench, method, problem)):
            yield {"method": name, "sweep": sweep, "PSNR": value}


def _psnr_of_sweeps(bench: Bench, method: SplitGibbs, problem: InverseProblem) -> list[float]:
    """Mean PSNR of the samples after every sweep."""
    values: list[float] = []

    def observe(
        sweep: int, num_sweeps: int, x: torch.Tensor, z: torch.Tensor, level: float
    ) -> None:
        values.append(float(psnr(x, bench.truths, bench.largest).mean()))

    with torch.no_grad(), bench.model.sampler.evaluating(bench.model.averaged):
        method.sample(bench.prior, problem, len(bench.truths), observer=observe)
    return values


def figure5(bench: Bench, sizes: Sizes) -> Iterator[Row]:
    """PSNR, network evaluations and seconds of a sample."""
    for task, operator in (("xor", Xor(0.5)), ("and", And(4.0))):
        problem = bench.measure(operator)
        methods: dict[str, Method] = {
            f"SGDD, {sweeps} x {steps}": sizes.annealed(task, sweeps, steps)
            for sweeps, steps in BUDGETS
        }
        particles = 2 if sizes.quick else PARTICLES
        methods["SVDD-PM"] = SMC(particles, rollouts=3, greedy=True)
        methods["SMC"] = SMC(particles, rollouts=3, power=0.1, threshold=1.0)
        walk = bench.prior.reverse_times(
            bench.prior.final_time, 2 if sizes.quick else PARTICLE_STEPS - 1
        )
        for name, method in methods.items():
            prior = replace(bench.prior, times=walk) if isinstance(method, SMC) else None
            yield bench.run(task, name, method, problem, prior)


def figure6(bench: Bench, sizes: Sizes) -> Iterator[Row]:
    """PSNR by pairs per pixel."""
    for ratio in RATIOS:
        problem = bench.measure(And(ratio))
        yield bench.run(f"and {ratio:g}", "SGDD", sizes.annealed("and", 100), problem) | {
            "ratio": ratio
        }
        passes = 2 if sizes.quick else 200
        yield bench.run(f"and {ratio:g}", "no prior", NoPrior(passes), problem) | {"ratio": ratio}


# of every figure: the function of its rows, the column of the x axis, and that of the labels
FIGURES = {
    4: (figure4, "sweep", "method"),
    5: (figure5, "NFE", "task"),
    6: (figure6, "ratio", "method"),
}


def picture(rows: list[Row], x_column: str, label_column: str) -> Figure:
    """Plot the PSNR over a column, with a line for every value of another."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(row[label_column] for row in rows):
        points = sorted((row[x_column], row["PSNR"]) for row in rows if row[label_column] == name)
        axes.plot(*zip(*points, strict=True), "o-", label=name)
    axes.set(xlabel=x_column, ylabel="PSNR", xscale="log" if x_column == "NFE" else "linear")
    axes.legend()
    return figure


def newest_run(runs: Path) -> Path | None:
    """Return the newest finished run of `experiment=sgdd/prior_mnist`; None if there is none."""
    runs_by_time = sorted(
        runs.glob("sgdd_prior_mnist/*/model"), key=lambda path: path.stat().st_mtime
    )
    return runs_by_time[-1].parent if runs_by_time else None


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("figure", type=int, choices=sorted(FIGURES))
    parser.add_argument(
        "--model",
        type=Path,
        default=None,
        help="the newest run of experiment=sgdd/prior_mnist, if none",
    )
    parser.add_argument("--method", choices=("sgdd_published", "sgdd"), default="sgdd_published")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    model = options.model or newest_run(options.runs_dir)
    if model is None:
        parser.error(
            "no trained prior: run python train.py experiment=sgdd/prior_mnist, "
            "or name a run by --model"
        )
    bench = Bench(str(model), 2 if options.quick else NUM_TRUTHS, 1, options.data_dir)
    sizes = Sizes(options.method == "sgdd_published", bench.prior.final_time, options.quick)
    make, x_column, label_column = FIGURES[options.figure]
    rows = list(make(bench, sizes))
    options.out.mkdir(parents=True, exist_ok=True)
    save_picture(picture(rows, x_column, label_column), options.out / f"figure{options.figure}.png")
    report(f"figure {options.figure} of Chu et al. 2025, {options.method}", rows, options)


if __name__ == "__main__":
    main()

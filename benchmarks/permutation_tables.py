"""The tables of SymmetricDiffusers as commands: `python -m benchmarks.permutations table1`.

`--scale cpu` trains small networks for minutes per row, `--scale paper` the published ones,
`experiment=symmetric/...`. Every decoder is a row. `--print` only shows the commands.

References: Zhang et al. 2025.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.permutation_runs import Rows, Run

_SHOWN = ("accuracy", "correct", "kendall_lists", "rmse", "gap")
SCALES: dict[str, tuple[str, ...]] = {"cpu": ("trainer.max_steps=600",), "paper": ()}
# Lists that are put in order; 1,280 tours, and 2,560 draws of one permutation.
_JUDGED = {"cpu": 1000, "paper": 10000}
_LENGTHS = (3, 5, 7, 9, 15, 32, 52, 100, 200)
# published steepness of sorting networks by length, and the length from which they are bitonic
_STEEPNESS = {
    "diffsort": (6, 20, 29, 32, 25, 25, 25, 25, 200),
    "diffsort_error_free": (10, 26, 31, 34, 25, 124, 130, 140, 200),
}
_BITONIC = {"diffsort": 32, "diffsort_error_free": 52}
_STEPS = "loss=random_time", "shuffle.schedule=null"
_BASELINES = "benchmarks.permutation_baselines"


@dataclass(frozen=True)
class Row:
    """A model and the ways it decodes.

    Args:
        name: of the row.
        train: settings of `train.py`.
        decoders: `decoder=` of `sample.py`.
        num_samples: at the published size; None for as many as elsewhere.
        steps: whether the steps of the scale are meant.
    """

    name: str
    train: tuple[str, ...]
    decoders: tuple[str, ...] = ("beam",)
    num_samples: int | None = None
    steps: bool = True

    def run(self, scale: str) -> Run:
        """With the settings of a scale."""
        number = self.num_samples if scale == "paper" and self.num_samples else _JUDGED[scale]
        # the widths of the published models' own beams are the published ones
        published_decoder = "beam" if scale == "paper" else None
        trusted = (
            ("trusted=[benchmarks]",)
            if any(_BASELINES in setting for setting in self.train)
            else ()
        )
        evaluations = {}
        for name in self.decoders:
            decoder = () if name == published_decoder else (f"decoder={name}",)
            evaluations[name] = (*decoder, f"num_samples={number}", *trusted)
        return Run(self.name, self.train + (SCALES[scale] if self.steps else ()), evaluations)


def _list_settings(n: int, paper: bool) -> tuple[str, ...]:
    """Return settings of lists of n numbers."""
    if paper:
        if n == 200:
            return ("experiment=symmetric/table2_n200",)
        return "experiment=symmetric/table2", f"dataset.length={n}"
    return "family=shuffle", "dataset=sort_mnist", f"dataset.length={n}", "batch_size=128"


def _sorting_network(name: str, settings: tuple[str, ...], length: int, baseline: str) -> Row:
    """A sorting network that learns the same lists."""
    nearest = min(range(len(_LENGTHS)), key=lambda i: abs(_LENGTHS[i] - length))
    layout = "bitonic" if length >= _BITONIC[baseline] else "odd_even"
    # as published: a score for every item by itself, or by the same transformer with numbers sorted
    # exactly
    training = (
        ("baseline=listmle",) if baseline == "diffsort" else ("baseline=assignment", "reverse=pl")
    )
    network_settings = {
        "steepness": f"{_STEEPNESS[baseline][nearest]}.0",
        "layout": layout,
        "error_free": baseline != "diffsort",
    }
    arguments = (f"+loss.{key}={str(value).lower()}" for key, value in network_settings.items())
    # in place of TrajectoryLoss, which has `walks`
    loss = (f"loss._target_={_BASELINES}.SortingNetworkLoss", "~loss.walks", *arguments)
    return Row(f"{name}, {baseline}", (*settings, *training, *loss), ("greedy",))


def _jigsaws(paper: bool) -> list[Row]:
    """Return every size, with labels and without as published, and the baselines."""
    sizes = (
        {"jigsaw_mnist": (2, 3, 4, 5, 6), "jigsaw_cifar10": (2, 3, 4)}
        if paper
        else {"jigsaw_mnist": (2, 3)}
    )
    rows = []
    for dataset, pieces in (
        (dataset, n) for dataset, sizes_of_dataset in sizes.items() for n in sizes_of_dataset
    ):
        name = f"{dataset} {pieces}x{pieces}"
        settings: tuple[str, ...] = (
            "family=shuffle",
            f"dataset={dataset}",
            f"dataset.pieces={pieces}",
        )
        if paper:
            images = dataset.removeprefix("jigsaw_")
            settings = (f"experiment=symmetric/table1_{images}", f"dataset.pieces={pieces}")
        for labels, loss in (
            ("no", "label_free"),
            ("yes", "trajectory" if paper else "random_time"),
        ):
            loss += "_3" if paper else ""
            rows.append(Row(f"{name}, labels: {labels}", (*settings, f"loss={loss}")))
        pixel_loss = f"loss._target_={_BASELINES}.SinkhornPixelLoss"
        for labels, options in (("no", [pixel_loss]), ("yes", [])):
            training = (*settings, "baseline=sinkhorn", *options)
            rows.append(Row(f"{name}, sinkhorn, labels: {labels}", training, ("greedy",)))
        rows += [_sorting_network(name, settings, pieces**2, baseline) for baseline in _STEEPNESS]
    return rows


def _sorting(paper: bool) -> list[Row]:
    """Return every length, with learning to rank and sorting networks as baselines."""
    rows = []
    for n in _LENGTHS if paper else (3, 5, 9):
        settings = _list_settings(n, paper)
        rows.append(Row(f"sort {n}, shuffles", settings))
        rows.append(Row(f"sort {n}, listmle", (*settings, "baseline=listmle"), ("greedy",)))
        rows += [_sorting_network(f"sort {n}", settings, n, baseline) for baseline in _STEEPNESS]
    return rows


def _distributions(paper: bool, include_other_shuffles: bool) -> list[Row]:
    """Reverse distributions and decoders; with the other shuffles in table 6."""
    reverse_choices = {
        "gpl": ("gpl", "riffle"),
        "pl": ("pl", "riffle"),
        "irs": ("inverse_riffle", "riffle"),
    }
    if include_other_shuffles:
        reverse_choices |= {
            "it": ("inverse_transposition", "transposition"),
            "ii": ("inverse_insertion", "insertion"),
        }
    rows = []
    for n in ((9, 32, 52) if include_other_shuffles else (52,)) if paper else (5,):
        for choice, (reverse, shuffle) in reverse_choices.items():
            settings: tuple[str, ...]
            if not paper:
                settings = (
                    *_list_settings(n, paper),
                    f"reverse={reverse}",
                    f"shuffle={shuffle}",
                    *_STEPS,
                )
            elif choice in ("gpl", "pl"):
                settings = (*_list_settings(n, paper), f"reverse={reverse}")
            else:
                settings = (f"experiment=symmetric/table6_{choice}", f"dataset.length={n}")
            has_beam = (
                choice in ("gpl", "pl") or not paper
            )  # inverse shuffles were decoded greedily
            rows.append(
                Row(
                    f"sort {n}, {reverse}",
                    settings,
                    ("greedy", "beam") if has_beam else ("greedy",),
                )
            )
    return rows


def _tours(paper: bool) -> list[Row]:
    """Return tours, and those without learning."""
    rows = []
    for n in (20, 50) if paper else (10,):
        settings: tuple[str, ...] = ("family=shuffle", "dataset=tsp", f"dataset.cities={n}")
        if paper:
            settings = (f"experiment=symmetric/table4_tsp{n}",)
        two_opt = Row(
            f"tsp {n}, two_opt", (*settings, "baseline=two_opt"), ("two_opt",), 1280, steps=False
        )
        rows += [Row(f"tsp {n}", settings, num_samples=1280), two_opt]
    return rows


def _single(paper: bool) -> list[Row]:
    """One permutation."""
    if paper:
        return [
            Row(f"one {n}", (f"experiment=symmetric/table5_n{n}",), ("sample",), 2560)
            for n in (100, 200)
        ]
    settings = ("family=shuffle", "dataset=one_permutation")
    return [Row(f"one {n}", (*settings, f"dataset.length={n}"), ("sample",)) for n in (10, 20)]


def _schedules(paper: bool) -> list[Row]:
    """Schedules at one length."""
    schedules: tuple[list[int], ...]
    settings: tuple[str, ...]
    if paper:
        schedules = ([0, 15], [0, 7, 8, 9, 15], [0, 7, 8, 10, 15], [0, 8, 9, 15], [0, 8, 10, 15])
        settings = ("experiment=symmetric/table7",)
    else:
        schedules = ([0, 8], [0, 2, 8], [0, 2, 4, 8])
        settings = _list_settings(5, paper)
    return [
        Row(f"schedule {t}", (*settings, f"shuffle.schedule={str(t).replace(' ', '')}"))
        for t in schedules
    ]


_MAKERS: dict[str, Callable[[bool], list[Row]]] = {
    "table1": _jigsaws,
    "table2": _sorting,
    "table3": partial(_distributions, include_other_shuffles=False),
    "table4": _tours,
    "table5": _single,
    "table6": partial(_distributions, include_other_shuffles=True),
    "table7": _schedules,
}


def runs(table: str, scale: str) -> list[Run]:
    """Return the runs of a table, at a scale."""
    return [row.run(scale) for row in _MAKERS[table](scale == "paper")]


TABLES = tuple(_MAKERS)


def decoded(name: str, decoder: str, report: Mapping[str, Any]) -> Rows:
    """The row of a run and a decoder."""
    values = report["values"]
    return [{"row": name, "decoding": decoder, **{k: values.get(k, "") for k in _SHOWN}}]

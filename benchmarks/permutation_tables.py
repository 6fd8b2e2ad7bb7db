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
        judged: what is put in order at the published size; None for as many as elsewhere.
        steps: whether the steps of the scale are meant.
    """

    name: str
    train: tuple[str, ...]
    decoders: tuple[str, ...] = ("beam",)
    judged: int | None = None
    steps: bool = True

    def run(self, scale: str) -> Run:
        """With the settings of a scale."""
        number = self.judged if scale == "paper" and self.judged else _JUDGED[scale]
        # the widths of the published models' own beams are the published ones
        own = "beam" if scale == "paper" else None
        trusted = ("trusted=[benchmarks]",) if any(_BASELINES in one for one in self.train) else ()
        asked = {}
        for name in self.decoders:
            decoder = () if name == own else (f"decoder={name}",)
            asked[name] = (*decoder, f"num_samples={number}", *trusted)
        return Run(self.name, self.train + (SCALES[scale] if self.steps else ()), asked)


def _sort(n: int, paper: bool) -> tuple[str, ...]:
    """Return settings of lists of n numbers."""
    if paper:
        if n == 200:
            return ("experiment=symmetric/table2_n200",)
        return "experiment=symmetric/table2", f"dataset.length={n}"
    return "family=shuffle", "dataset=sort_mnist", f"dataset.length={n}", "batch_size=128"


def _sorted(name: str, settings: tuple[str, ...], length: int, baseline: str) -> Row:
    """A sorting network that learns the same lists."""
    nearest = min(range(len(_LENGTHS)), key=lambda i: abs(_LENGTHS[i] - length))
    layout = "bitonic" if length >= _BITONIC[baseline] else "odd_even"
    # as published: a score for every item by itself, or by the same transformer with numbers sorted
    # exactly
    way = ("baseline=listmle",) if baseline == "diffsort" else ("baseline=assignment", "reverse=pl")
    own = {
        "steepness": f"{_STEEPNESS[baseline][nearest]}.0",
        "layout": layout,
        "error_free": baseline != "diffsort",
    }
    arguments = (f"+loss.{key}={str(value).lower()}" for key, value in own.items())
    # in place of TrajectoryLoss, which has `walks`
    loss = (f"loss._target_={_BASELINES}.SortingNetworkLoss", "~loss.walks", *arguments)
    return Row(f"{name}, {baseline}", (*settings, *way, *loss), ("greedy",))


def _jigsaws(paper: bool) -> list[Row]:
    """Return every size, with labels and without as published, and the baselines."""
    sizes = (
        {"jigsaw_mnist": (2, 3, 4, 5, 6), "jigsaw_cifar10": (2, 3, 4)}
        if paper
        else {"jigsaw_mnist": (2, 3)}
    )
    found = []
    for dataset, pieces in (
        (dataset, n) for dataset, all_of_it in sizes.items() for n in all_of_it
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
            found.append(Row(f"{name}, labels: {labels}", (*settings, f"loss={loss}")))
        pixel_loss = f"loss._target_={_BASELINES}.SinkhornPixelLoss"
        for labels, options in (("no", [pixel_loss]), ("yes", [])):
            own = (*settings, "baseline=sinkhorn", *options)
            found.append(Row(f"{name}, sinkhorn, labels: {labels}", own, ("greedy",)))
        found += [_sorted(name, settings, pieces**2, baseline) for baseline in _STEEPNESS]
    return found


def _sorting(paper: bool) -> list[Row]:
    """Return every length, with learning to rank and sorting networks as baselines."""
    found = []
    for n in _LENGTHS if paper else (3, 5, 9):
        settings = _sort(n, paper)
        found.append(Row(f"sort {n}, ours", settings))
        found.append(Row(f"sort {n}, listmle", (*settings, "baseline=listmle"), ("greedy",)))
        found += [_sorted(f"sort {n}", settings, n, baseline) for baseline in _STEEPNESS]
    return found


def _laws(paper: bool, others: bool) -> list[Row]:
    """Reverse distributions and decoders; with the other shuffles in table 6."""
    reverse_choices = {
        "gpl": ("gpl", "riffle"),
        "pl": ("pl", "riffle"),
        "irs": ("inverse_riffle", "riffle"),
    }
    if others:
        reverse_choices |= {
            "it": ("inverse_transposition", "transposition"),
            "ii": ("inverse_insertion", "insertion"),
        }
    found = []
    for n in ((9, 32, 52) if others else (52,)) if paper else (5,):
        for choice, (reverse, shuffle) in reverse_choices.items():
            settings: tuple[str, ...]
            if not paper:
                settings = (*_sort(n, paper), f"reverse={reverse}", f"shuffle={shuffle}", *_STEPS)
            elif choice in ("gpl", "pl"):
                settings = (*_sort(n, paper), f"reverse={reverse}")
            else:
                settings = (f"experiment=symmetric/table6_{choice}", f"dataset.length={n}")
            both = choice in ("gpl", "pl") or not paper  # inverse shuffles were decoded greedily
            found.append(
                Row(f"sort {n}, {reverse}", settings, ("greedy", "beam") if both else ("greedy",))
            )
    return found


def _tours(paper: bool) -> list[Row]:
    """Return tours, and those without learning."""
    found = []
    for n in (20, 50) if paper else (10,):
        settings: tuple[str, ...] = ("family=shuffle", "dataset=tsp", f"dataset.cities={n}")
        if paper:
            settings = (f"experiment=symmetric/table4_tsp{n}",)
        mended = Row(
            f"tsp {n}, two_opt", (*settings, "baseline=two_opt"), ("two_opt",), 1280, steps=False
        )
        found += [Row(f"tsp {n}", settings, judged=1280), mended]
    return found


def _single(paper: bool) -> list[Row]:
    """One permutation."""
    if paper:
        return [
            Row(f"one {n}", (f"experiment=symmetric/table5_n{n}",), ("sample",), 2560)
            for n in (100, 200)
        ]
    one = ("family=shuffle", "dataset=one_permutation")
    return [Row(f"one {n}", (*one, f"dataset.length={n}"), ("sample",)) for n in (10, 20)]


def _schedules(paper: bool) -> list[Row]:
    """Schedules at one length."""
    schedules: tuple[list[int], ...]
    settings: tuple[str, ...]
    if paper:
        schedules = ([0, 15], [0, 7, 8, 9, 15], [0, 7, 8, 10, 15], [0, 8, 9, 15], [0, 8, 10, 15])
        settings = ("experiment=symmetric/table7",)
    else:
        schedules = ([0, 8], [0, 2, 8], [0, 2, 4, 8])
        settings = _sort(5, paper)
    return [
        Row(f"schedule {t}", (*settings, f"shuffle.schedule={str(t).replace(' ', '')}"))
        for t in schedules
    ]


_MAKERS: dict[str, Callable[[bool], list[Row]]] = {
    "table1": _jigsaws,
    "table2": _sorting,
    "table3": partial(_laws, others=False),
    "table4": _tours,
    "table5": _single,
    "table6": partial(_laws, others=True),
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

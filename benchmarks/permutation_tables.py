"""The tables of SymmetricDiffusers [Zhang 2025] as commands: `python -m benchmarks.permutations table1`.

`--scale cpu` trains small networks for minutes a row, `--scale paper` the published ones for their 112,500 steps; the
difference is in `SCALES` and nowhere else. Every way of decoding is a row. `--print` only shows the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.permutation_runs import Rows, Run

_SHOWN = ("accuracy", "correct", "kendall_lists", "rmse", "gap")
_PUBLISHED = (
    "network.width=128", "network.depth=7", "network.heads=8", "network.expansion=4", "network.dropout=0.1",
    "network.norm_first=false", "network.scale=1.0", "batch_size=64", "loss.walks=3", "trainer.max_steps=112500",
)  # fmt: skip
SCALES: dict[str, tuple[str, ...]] = {"cpu": ("trainer.max_steps=600",), "paper": _PUBLISHED}
_JIGSAW, _SORT = "experiment=symmetric_jigsaw", "experiment=symmetric_sort"
_MNIST = (_SORT, "dataset=sort_mnist")
_LENGTHS = (3, 5, 7, 9, 15, 32, 52, 100, 200)
# published steepness of sorting networks by length, and the length from which they are bitonic
_STEEPNESS = {
    "diffsort": (6, 20, 29, 32, 25, 25, 25, 25, 200),
    "diffsort_error_free": (10, 26, 31, 34, 25, 124, 130, 140, 200),
}
_BITONIC = {"diffsort": 32, "diffsort_error_free": 52}


@dataclass(frozen=True)
class Row:
    """A model and the ways it decodes.

    Args:
        name: of the row.
        train: settings of `train.py`.
        decoders: `sampler=` of `sample.py`.
        without: settings of the scale that do not apply.
    """

    name: str
    train: tuple[str, ...]
    decoders: tuple[str, ...] = ("beam",)
    without: tuple[str, ...] = ()

    def run(self, scale: str) -> Run:
        """With the settings of a scale."""
        sizes = tuple(setting for setting in SCALES[scale] if setting.split("=")[0] not in self.without)
        asked = {decoder: (f"sampler={decoder}", "num_samples=1000") for decoder in self.decoders}
        return Run(self.name, self.train + sizes, asked)


def _sorted(name: str, settings: tuple[str, ...], length: int, baseline: str) -> Row:
    """A sorting network that learns the same lists."""
    nearest = min(range(len(_LENGTHS)), key=lambda i: abs(_LENGTHS[i] - length))
    layout = "bitonic" if length >= _BITONIC[baseline] else "odd_even"
    own = (f"baseline={baseline}", f"loss.steepness={_STEEPNESS[baseline][nearest]}.0", f"loss.layout={layout}")
    deep = ("network.depth",) if baseline == "diffsort" else ()
    return Row(f"{name}, {baseline}", (*settings, *own), ("greedy",), ("loss.walks", *deep))


def _jigsaws(paper: bool) -> list[Row]:
    """Every size, without labels as published and with, and the baselines: of these Gumbel-Sinkhorn without too."""
    sizes = {"jigsaw_mnist": (2, 3, 4, 5, 6), "jigsaw_cifar10": (2, 3, 4)} if paper else {"jigsaw_mnist": (2, 3)}
    found = []
    for dataset, pieces in ((dataset, n) for dataset, all_of_it in sizes.items() for n in all_of_it):
        name, settings = f"{dataset} {pieces}x{pieces}", (_JIGSAW, f"dataset={dataset}", f"dataset.pieces={pieces}")
        for labels, loss in (("no", "label_free"), ("yes", "random_time")):
            found.append(Row(f"{name}, labels: {labels}", (*settings, f"loss={loss}")))
        for labels, loss in (("no", "sinkhorn_pixels"), ("yes", "sinkhorn")):
            own = (*settings, "baseline=sinkhorn", f"loss={loss}")
            found.append(Row(f"{name}, sinkhorn, labels: {labels}", own, ("greedy",), ("loss.walks",)))
        found += [_sorted(name, settings, pieces**2, baseline) for baseline in _STEEPNESS]
    return found


def _sorting(paper: bool) -> list[Row]:
    """Every length, with learning to rank and sorting networks beside."""
    found = []
    for n in _LENGTHS if paper else (3, 5, 9):
        settings = (*_MNIST, f"dataset.length={n}")
        found.append(Row(f"sort {n}, ours", settings))
        ranked = (*settings, "baseline=listmle")
        found.append(Row(f"sort {n}, listmle", ranked, ("greedy",), ("network.depth",)))
        found += [_sorted(f"sort {n}", settings, n, baseline) for baseline in _STEEPNESS]
    return found


def _laws(paper: bool, others: bool) -> list[Row]:
    """Reverse laws and decoders; with the other shuffles in table 6."""
    laws = {"gpl": "riffle", "pl": "riffle", "inverse_riffle": "riffle"}
    if others:
        laws |= {"inverse_transposition": "transposition", "inverse_insertion": "insertion"}
    return [
        Row(
            f"sort {n}, {law}",
            (*_MNIST, f"dataset.length={n}", f"reverse={law}", f"shuffle={shuffle}", "loss=random_time"),
            ("greedy", "beam"),
        )
        for n in ((9, 32, 52) if paper else (5,))
        for law, shuffle in laws.items()
    ]


def _tours(paper: bool) -> list[Row]:
    """Tours, and those without learning."""
    found = []
    for n in (20, 50) if paper else (10,):
        settings = ("experiment=symmetric_tsp", f"dataset.cities={n}")
        own = tuple(setting.split("=")[0] for setting in (*SCALES["paper"], *SCALES["cpu"]))
        mended = Row(f"tsp {n}, two_opt", (*settings, "baseline=two_opt"), ("two_opt",), own)
        found += [Row(f"tsp {n}", settings), mended]
    return found


def _single(paper: bool) -> list[Row]:
    """One permutation."""
    lengths = (100, 200) if paper else (10, 20)
    return [Row(f"one {n}", ("experiment=symmetric_single", f"dataset.length={n}"), ("sample",)) for n in lengths]


def _schedules(paper: bool) -> list[Row]:
    """Schedules at one length."""
    long = ([0, 15], [0, 7, 8, 9, 15], [0, 7, 8, 10, 15], [0, 8, 9, 15], [0, 8, 10, 15])
    length, schedules = (100, long) if paper else (5, ([0, 8], [0, 2, 8], [0, 2, 4, 8]))
    return [
        Row(f"schedule {t}", (*_MNIST, f"dataset.length={length}", f"shuffle.schedule={str(t).replace(' ', '')}"))
        for t in schedules
    ]


_MAKERS: dict[str, Callable[[bool], list[Row]]] = {
    "table1": _jigsaws, "table2": _sorting, "table3": partial(_laws, others=False), "table4": _tours,
    "table5": _single, "table6": partial(_laws, others=True), "table7": _schedules,
}  # fmt: skip


def runs(table: str, scale: str) -> list[Run]:
    """Those of a table, at a scale."""
    return [row.run(scale) for row in _MAKERS[table](scale == "paper")]


TABLES = tuple(_MAKERS)


def decoded(name: str, decoder: str, report: Mapping[str, Any]) -> Rows:
    """The row of a run and a decoder."""
    values = report["values"]
    return [{"row": name, "decoding": decoder, **{k: values.get(k, "") for k in _SHOWN}}]

"""The tables of SymmetricDiffusers (Zhang et al., ICLR 2025) as commands: `python -m benchmarks.permutations table1`.

`--scale cpu` trains small networks for minutes a row, `--scale paper` the published ones for their 112,500 steps; the
difference is in `SCALES` and nowhere else. A row is a run of `train.py`, continued if it is already there, and one of
`sample.py` for every way of decoding. `--print` shows the commands and runs nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_SHOWN = ("accuracy", "correct", "kendall_lists", "rmse", "gap")
_PUBLISHED = (
    "network.width=128", "network.depth=7", "network.heads=8", "network.expansion=4", "network.dropout=0.1",
    "network.norm_first=false", "network.scale=1.0", "batch_size=64", "loss.walks=3", "trainer.max_steps=112500",
)  # fmt: skip
SCALES: dict[str, tuple[str, ...]] = {"cpu": ("trainer.max_steps=600",), "paper": _PUBLISHED}
_JIGSAW, _SORT = "experiment=symmetric_jigsaw", "experiment=symmetric_sort"


@dataclass(frozen=True)
class Row:
    """A model and the ways it decodes.

    Args:
        name: of the row.
        train: settings of `train.py`.
        decoders: `sampler=` of `sample.py`.
    """

    name: str
    train: tuple[str, ...]
    decoders: tuple[str, ...] = ("beam",)

    def commands(self, scale: str, runs: Path, data_dir: str) -> list[list[str]]:
        """train.py, then sample.py for every decoder, with where it writes last."""
        run_id = "".join(c if c.isalnum() else "_" for c in f"{self.name}_{scale}")
        places = [f"runs_dir={runs}", "experiment_name=tables", f"run_id={run_id}", f"data_dir={data_dir}"]
        train = [*self.train, *SCALES[scale], *places, "callbacks.progress=null", "callbacks.samples=null"]
        commands = [["train.py", *train]]
        for decoder in self.decoders:
            out = runs / "tables" / run_id / decoder
            ckpt = runs / "tables" / run_id
            commands.append(
                [
                    "sample.py",
                    f"ckpt={ckpt}",
                    f"sampler={decoder}",
                    "num_samples=1000",
                    f"data_dir={data_dir}",
                    f"out={out}",
                ]
            )
        return commands


def _jigsaws(dataset: str, sizes: Sequence[int]) -> Iterator[Row]:
    for pieces in sizes:
        for labels, loss in (("no", "label_free"), ("yes", "random_time")):
            settings = (_JIGSAW, f"dataset={dataset}", f"dataset.pieces={pieces}", f"loss={loss}")
            yield Row(f"{dataset} {pieces}x{pieces}, labels: {labels}", settings)


def rows(table: str, scale: str) -> list[Row]:
    """The rows of a table, at a scale."""
    paper = scale == "paper"
    sort = (_SORT, "dataset=sort_mnist")
    if table == "table1":
        sizes = ((2, 3, 4, 5, 6), (2, 3, 4)) if paper else ((2, 3), ())
        return [*_jigsaws("jigsaw_mnist", sizes[0]), *_jigsaws("jigsaw_cifar10", sizes[1])]
    if table == "table2":
        lengths = (3, 5, 7, 9, 15, 32, 52, 100, 200) if paper else (3, 5, 9)
        pairs = [(n, kind) for n in lengths for kind in ("ours", "listmle")]
        return [
            Row(
                f"sort {n}, {kind}",
                (*sort, f"dataset.length={n}", *(["baseline=listmle"] if kind == "listmle" else [])),
            )
            for n, kind in pairs
        ]
    if table in ("table3", "table6"):
        lengths = (9, 32, 52) if paper else (5,)
        laws = {"gpl": "riffle", "pl": "riffle", "inverse_riffle": "riffle"}
        if table == "table6":
            laws |= {"inverse_transposition": "transposition", "inverse_insertion": "insertion"}
        return [
            Row(
                f"sort {n}, {law}",
                (*sort, f"dataset.length={n}", f"reverse={law}", f"shuffle={shuffle}", "loss=random_time"),
                ("greedy", "beam"),
            )
            for n in lengths
            for law, shuffle in laws.items()
        ]
    if table == "table4":
        return [
            Row(f"tsp {n}", ("experiment=symmetric_tsp", f"dataset.cities={n}")) for n in ((20, 50) if paper else (10,))
        ]
    if table == "table5":
        lengths = (100, 200) if paper else (10, 20)
        return [Row(f"one {n}", ("experiment=symmetric_single", f"dataset.length={n}"), ("sample",)) for n in lengths]
    schedules = (
        ([0, 15], [0, 8, 15], [0, 8, 10, 15], [0, 7, 8, 9, 10, 15]) if paper else ([0, 8], [0, 2, 8], [0, 2, 4, 8])
    )
    length = 100 if paper else 5
    return [
        Row(f"schedule {t}", (*sort, f"dataset.length={length}", f"shuffle.schedule={str(t).replace(' ', '')}"))
        for t in schedules
    ]


TABLES = tuple(f"table{number}" for number in range(1, 8))


def make_table(table: str, scale: str, runs: Path, data_dir: str, show: bool) -> list[dict[str, Any]]:
    """Run a table's commands, or only print them; a result for every row and decoder."""
    found: list[dict[str, Any]] = []
    for row in rows(table, scale):
        train, *samples = row.commands(scale, runs, data_dir)
        for command, decoder in zip([train, *samples], ["", *row.decoders], strict=True):
            if show:
                print("python", *command)
                continue
            subprocess.run([sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            if decoder:
                values = json.loads((Path(command[-1].removeprefix("out=")) / "metrics.json").read_text())["values"]
                found.append({"row": row.name, "decoding": decoder, **{k: values[k] for k in _SHOWN if k in values}})
    return found

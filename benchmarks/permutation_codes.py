"""Figures of factorised codes (Kim et al., ICLR 2026) as tables: `python -m benchmarks.permutations cycles|rankings`.

`cycles`: unique, valid and cyclic samples over the number of passes, of every code and objective, beside what a perfect
network gets. `rankings`: NDCG@5 by how many items of a user are observed, in one pass and in n, beside those who know
less. A row is a run of `train.py`, continued if it is already there, and `sample.py` for every way of asking it;
`--print` shows the commands. `--scale cpu`: 5-cycles and embedded users, minutes; `--scale paper`: the published sizes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_CODES = ("fisher_yates", "lehmer", "insertion", "inline")
_DEEP = ("network.heads=8", "network.dropout=0.05", "batch_size=1024", "optimizer.lr=3e-4", "trainer.max_steps=20000")
CYCLES: dict[str, tuple[str, ...]] = {
    "cpu": ("dataset.length=5", "dataset.share=1", "batch_size=128"),
    "paper": ("dataset.length=10", "dataset.share=0.2", "network.width=128", "network.depth=8", *_DEEP),
}
RANKINGS: dict[str, tuple[str, ...]] = {
    "cpu": ("trainer.max_steps=1500",),
    "paper": ("dataset=rankings", "dataset.path={data}/ml-32m/ratings.csv", "dataset.length=50", "network.width=256",
              "network.depth=10", *_DEEP),
}  # fmt: skip
_OBSERVED = {"cpu": (0, 2, 4, 6), "paper": (0, 5, 10, 25, 40)}


@dataclass(frozen=True)
class Model:
    """A model and what it is asked.

    Args:
        name: of its rows.
        train: settings of `train.py`.
        asked: settings of `sample.py`, by name.
    """

    name: str
    train: tuple[str, ...]
    asked: Mapping[str, tuple[str, ...]]

    def commands(self, scale: str, runs: Path, data_dir: str) -> dict[str, list[str]]:
        """train.py under the name "", and sample.py for everything asked, with where it writes last."""
        run_id = "".join(c if c.isalnum() else "_" for c in f"{self.name}_{scale}")
        train = [setting.replace("{data}", data_dir) for setting in self.train]
        quiet = ("callbacks.progress=null", "callbacks.samples=null")
        places = [f"runs_dir={runs}", "experiment_name=codes", f"run_id={run_id}", f"data_dir={data_dir}"]
        found = {"": ["train.py", *train, *places, *quiet]}
        ckpt = runs / "codes" / run_id
        data = [setting for setting in train if setting.startswith("dataset")]
        for name, settings in self.asked.items():
            out = ckpt / "".join(c if c.isalnum() else "_" for c in name)
            own = data if "dataset=rankings" in data else []  # a model does not say where a user's file is
            found[name] = ["sample.py", f"ckpt={ckpt}", *own, *settings, f"data_dir={data_dir}", f"out={out}"]
        return found


def cycles(scale: str) -> list[Model]:
    """Every code and objective; masked ones are asked at every number of passes."""
    found = []
    for objective in ("masked", "autoregressive"):
        for code in _CODES:
            train = ("experiment=codes_cycles", f"code={code}", f"objective={objective}", *CYCLES[scale])
            asked = {"curve": ("curve=true", "num_samples=64")}
            if objective == "autoregressive":
                asked = {"n passes": ("evaluate=true", "num_samples=10000", "likelihood.images=0")}
            found.append(Model(f"cycles, {code}, {objective}", train, asked))
    return found


def rankings(scale: str) -> list[Model]:
    """Masked in one pass and in n, and autoregressive, by the number of observed items."""
    n, found = (8 if scale == "cpu" else 50), []
    for objective, ways in (("masked", {"1 pass": 1, f"{n} passes": n}), ("autoregressive", {f"{n} passes": n})):
        train = ("experiment=codes_movielens", f"objective={objective}", *RANKINGS[scale])
        asked = {
            f"{seen} observed, {way}": (
                f"given={seen}", f"passes={passes}", "order=left_to_right", "evaluate=true", "num_samples=2000",
                f"likelihood.baselines={str(objective == 'masked' and passes == 1).lower()}",
            )
            for seen in _OBSERVED[scale] for way, passes in ways.items()
        }  # fmt: skip
        found.append(Model(f"rankings, {objective}", train, asked))
    return found


SUBJECTS = {"cycles": cycles, "rankings": rankings}


def make(what: str, scale: str, runs: Path, data_dir: str, show: bool) -> list[dict[str, Any]]:
    """Run the commands, or only print them; the rows of the table."""
    found: list[dict[str, Any]] = []
    for model in SUBJECTS[what](scale):
        for name, command in model.commands(scale, runs, data_dir).items():
            if show:
                print("python", *command)
                continue
            subprocess.run([sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            if name:
                report = json.loads((Path(command[-1].removeprefix("out=")) / "metrics.json").read_text())
                found += (cycle_rows if what == "cycles" else ranking_rows)(model.name, name, report)
    return found


def cycle_rows(model: str, way: str, report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each number of passes."""
    curve = report.get("curve", {"passes": {"n": report["values"]}, "perfect": {}})
    shown = ("unique", "unique_of_perfect", "valid", "cyclic", "in_train")
    return [
        {"model": model, "passes": passes, **{name: values.get(name, "") for name in shown},
         "cyclic_of_perfect": curve["perfect"].get(passes, "")}
        for passes, values in curve["passes"].items()
    ]  # fmt: skip


def ranking_rows(model: str, way: str, report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """NDCG@5 of the model, and of the baselines where they were asked for."""
    rows = [{"model": f"{model}, {way}", "ndcg_at_5": report["values"]["ndcg_at_5"]}]
    others = report.get("likelihood", {}).get("rankings", {})
    observed = way.split(",")[0]
    return rows + [{"model": f"{name}, {observed}", "ndcg_at_5": of["ndcg_at_5"]} for name, of in others.items()]

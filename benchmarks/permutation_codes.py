"""Figures of factorised codes [Severo 2025] as tables: `python -m benchmarks.permutations cycles|rankings`.

`cycles`: unique, valid and cyclic samples over the number of passes, of every code and objective, beside what a perfect
network gets. `rankings`: NDCG@5 by how many items of a user are observed, in one pass and in n, beside those who know
less. `--print` shows the commands. `--scale cpu`: 5-cycles and embedded users, minutes; `--scale paper`: the published
sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from benchmarks.permutation_runs import Rows, Run
from blackout.permutations.coded.data import all_cycles
from blackout.permutations.coded.model import CODES, MAX_EXACT_ITEMS, Blocks, balanced_blocks

_CODES = ("fisher_yates", "lehmer", "insertion", "inline")
_DEEP = ("network.heads=8", "network.dropout=0.05", "batch_size=1024", "optimizer.lr=3e-4", "trainer.max_steps=20000")
CYCLES: dict[str, tuple[str, ...]] = {
    "cpu": ("dataset.length=5", "dataset.share=1", "batch_size=128"),
    "paper": ("dataset.length=10", "dataset.share=0.2", "network.width=128", "network.depth=8", *_DEEP),
}
RANKINGS: dict[str, tuple[str, ...]] = {
    "cpu": ("dataset=synthetic_rankings", "trainer.max_steps=1500"),
    "paper": ("dataset=rankings", "dataset.path=${data_dir}/ml-32m/ratings.csv", "dataset.length=50",
              "network.width=256", "network.depth=10", *_DEEP),
}  # fmt: skip
_OBSERVED = {"cpu": (0, 2, 4, 6), "paper": (0, 5, 10, 25, 40)}


def cycles(scale: str) -> list[Run]:
    """Every code and objective; masked ones are asked at every number of passes."""
    found = []
    for objective in ("masked", "autoregressive"):
        for code in _CODES:
            train = ("family=codes", "dataset=cycles", f"code={code}", f"objective={objective}", *CYCLES[scale])
            n = int(CYCLES[scale][0].removeprefix("dataset.length="))
            evaluated = ("evaluate=true", "num_samples=10000", "likelihood.images=0")
            asked = {
                f"{passes} of {n} passes": (f"passes={passes}", *evaluated)
                for passes in (range(1, n + 1) if objective == "masked" else [n])
            }
            found.append(Run(f"cycles, {code}, {objective}", train, asked))
    return found


def rankings(scale: str) -> list[Run]:
    """Masked in one pass and in n, and autoregressive, by the number of observed items."""
    n, found = (8 if scale == "cpu" else 50), []
    for objective, ways in (("masked", {"1 pass": 1, f"{n} passes": n}), ("autoregressive", {f"{n} passes": n})):
        train = ("family=codes", f"objective={objective}", *RANKINGS[scale])
        data = [setting for setting in train if setting.startswith("dataset")]  # a model does not say where a file is
        asked = {
            f"{seen} observed, {way}": (
                f"given={seen}", f"passes={passes}", "order=left_to_right", "evaluate=true", "num_samples=2000",
                f"likelihood.baselines={str(objective == 'masked' and passes == 1).lower()}", *data,
            )
            for seen in _OBSERVED[scale] for way, passes in ways.items()
        }  # fmt: skip
        found.append(Run(f"rankings, {objective}", train, asked))
    return found


def cycle_rows(model: str, way: str, report: Mapping[str, Any]) -> Rows:
    """A row for a number of passes, beside a perfect network's: to 7 items, and in one pass, where it is known."""
    passes, n = (int(word) for word in way.split() if word.isdigit())
    code, objective = model.split(", ")[1:]
    shown = ("unique", "unique_of_perfect", "valid", "cyclic", "in_train")
    row = {"model": model, "passes": passes, **{name: report["values"].get(name, "") for name in shown}}
    known = objective == "masked" and (passes == 1 or n <= MAX_EXACT_ITEMS)
    return [{**row, "cyclic_of_perfect": perfect_mass(CODES[code].encode(all_cycles(n)), passes) if known else ""}]


def perfect_mass(codes: Tensor, passes: int) -> float:
    """What a perfect network gives the data's codes int64 [M, n] together, averaged over random orders.

    Ours: `product_law` summed; checked against closed forms in `tests.permutations.coded.test_model`.
    """
    masses = [product_mass(codes, blocks) for blocks in partitions(codes.shape[1], passes)]
    return sum(masses) / len(masses)


def partitions(n: int, passes: int) -> list[list[Tensor]]:
    """All ordered partitions of 0..n-1 into balanced blocks."""
    found: list[list[Tensor]] = [[]]
    for block in balanced_blocks(n, passes):
        left = [sorted(set(range(n)) - {i for part in before for i in part.tolist()}) for before in found]
        pairs = zip(found, left, strict=True)
        found = [[*before, torch.tensor(one)] for before, rest in pairs for one in combinations(rest, len(block))]
    return found


def product_law(codes: Tensor, blocks: Blocks, points: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
    """What a perfect denoiser gives points when the data are `codes`: the product over blocks of true conditionals.

    [Severo 2025, eq. 2] with the data's own conditionals.

    Args:
        codes: the support of the data, int64 [M, n].
        blocks: shared by all, [s] each.
        points: int64 [P, n]; None means the codes themselves.
        weights: probabilities of the codes, [M]; None means equal ones.

    Returns:
        float64 [P]; 0 where a prefix never occurs in the data.
    """
    n, own = codes.shape[1], points is None
    both = codes if points is None else torch.cat([codes, points])
    weight = torch.zeros(len(both), dtype=torch.float64, device=codes.device)
    weight[: len(codes)] = 1 / len(codes) if weights is None else weights.double()
    group = torch.zeros(len(both), dtype=torch.int64, device=codes.device)
    law = torch.ones(len(both), dtype=torch.float64, device=codes.device)
    for block in blocks:
        mass = _summed(weight, group)
        for place in block.tolist():
            law *= _summed(weight, group * n + both[:, place]) / mass.clamp(min=1e-300)
        if block is not blocks[-1]:
            group = _joined(group, both[:, block], n)
    return law if own else law[len(codes) :]


def product_mass(codes: Tensor, blocks: Blocks, points: Tensor | None = None, weights: Tensor | None = None) -> float:
    """The probability `product_law` gives to all points together: by default to the data's own codes.

    The share of right samples of a perfect denoiser, exactly; of data with any weights.
    """
    return float(product_law(codes, blocks, points, weights).sum())


def _summed(weight: Tensor, key: Tensor) -> Tensor:
    """For every element the sum of the weights of those with its key."""
    totals = torch.zeros(int(key.max()) + 1, dtype=weight.dtype, device=weight.device)
    return totals.index_add_(0, key, weight)[key]


def _joined(group: Tensor, digits: Tensor, n: int) -> Tensor:
    """New group numbers: together are those who were and have all these digits in common."""
    for column in digits.unbind(1):
        if int(group.max()) >= 2**62 // n:
            group = group.unique(return_inverse=True)[1]
        group = group * n + column
    return group.unique(return_inverse=True)[1]


def ranking_rows(model: str, way: str, report: Mapping[str, Any]) -> Rows:
    """NDCG@5 of the model, and of the baselines where they were asked for."""
    rows = [{"model": f"{model}, {way}", "ndcg_at_5": report["values"]["ndcg_at_5"]}]
    others = report.get("likelihood", {}).get("rankings", {})
    observed = way.split(",")[0]
    return rows + [{"model": f"{name}, {observed}", "ndcg_at_5": of["ndcg_at_5"]} for name, of in others.items()]


SUBJECTS = {"cycles": (cycles, cycle_rows), "rankings": (rankings, ranking_rows)}

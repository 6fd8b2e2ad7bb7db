"""Tables of factorised codes: `python -m benchmarks.permutations cycles|rankings`.

`cycles`: unique, valid and cyclic samples by the number of passes, for every code and objective,
compared with a perfect network. `rankings`: NDCG@5 by the number of observed items of a user, in
one pass and in n, compared with baselines. `--print` shows the commands. `--scale cpu` takes
minutes, with 5-cycles and embedded users; `--scale paper` has the published sizes.

References: Severo et al. 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from benchmarks.permutation_runs import Rows, Run
from blackout.permutations.coded.datasets.cycles import all_cycles
from blackout.permutations.coded.decoding import Blocks, balanced_blocks
from blackout.permutations.coded.likelihood import MAX_EXACT_ITEMS
from blackout.permutations.codes import CODES

_CODES = ("fisher_yates", "lehmer", "insertion", "inline")
_DEEP = (
    "network.heads=8",
    "network.dropout=0.05",
    "batch_size=1024",
    "optimizer.lr=3e-4",
    "trainer.max_steps=20000",
)
CYCLES: dict[str, tuple[str, ...]] = {
    "cpu": ("dataset.length=5", "dataset.train_share=1", "batch_size=128"),
    "paper": (
        "dataset.length=10",
        "dataset.train_share=0.2",
        "network.width=128",
        "network.depth=8",
        *_DEEP,
    ),
}
RANKINGS: dict[str, tuple[str, ...]] = {
    "cpu": ("dataset=synthetic_rankings", "trainer.max_steps=1500"),
    "paper": (
        "dataset=rankings",
        "dataset.path=${data_dir}/ml-32m/ratings.csv",
        "dataset.length=50",
        "network.width=256",
        "network.depth=10",
        *_DEEP,
    ),
}
_OBSERVED = {"cpu": (0, 2, 4, 6), "paper": (0, 5, 10, 25, 40)}


def cycles(scale: str) -> list[Run]:
    """Return the runs of every code and objective; masked ones are sampled with every number of
    passes."""
    runs = []
    for objective in ("masked", "autoregressive"):
        for code in _CODES:
            train = (
                "family=codes",
                "dataset=cycles",
                f"code={code}",
                f"objective={objective}",
                *CYCLES[scale],
            )
            n = int(CYCLES[scale][0].removeprefix("dataset.length="))
            scoring = ("evaluate=true", "num_samples=10000", "likelihood.images=0")
            evaluations = {
                f"{passes} of {n} passes": (f"passes={passes}", *scoring)
                for passes in (range(1, n + 1) if objective == "masked" else [n])
            }
            runs.append(Run(f"cycles, {code}, {objective}", train, evaluations))
    return runs


def rankings(scale: str) -> list[Run]:
    """Return masked runs in one pass and in n, and autoregressive ones, by observed items."""
    n = 8 if scale == "cpu" else 50
    runs = []
    for objective, ways in (
        ("masked", {"1 pass": 1, f"{n} passes": n}),
        ("autoregressive", {f"{n} passes": n}),
    ):
        train = ("family=codes", f"objective={objective}", *RANKINGS[scale])
        # a model does not say where a file is
        data = [setting for setting in train if setting.startswith("dataset")]
        evaluations = {
            f"{num_observed} observed, {way}": (
                f"condition={num_observed}",
                f"passes={passes}",
                "order=left_to_right",
                "evaluate=true",
                "num_samples=2000",
                f"likelihood.baselines={str(objective == 'masked' and passes == 1).lower()}",
                *data,
            )
            for num_observed in _OBSERVED[scale]
            for way, passes in ways.items()
        }
        runs.append(Run(f"rankings, {objective}", train, evaluations))
    return runs


def cycle_rows(model: str, evaluation: str, report: Mapping[str, Any]) -> Rows:
    """Return a row per number of passes, next to a perfect network's where it is known.

    It is known up to 7 items, and in one pass.
    """
    passes, n = (int(word) for word in evaluation.split() if word.isdigit())
    code, objective = model.split(", ")[1:]
    score_names = ("unique", "unique_of_perfect", "valid", "cyclic", "in_train")
    row = {
        "model": model,
        "passes": passes,
        **{name: report["values"].get(name, "") for name in score_names},
    }
    has_exact_mass = objective == "masked" and (passes == 1 or n <= MAX_EXACT_ITEMS)
    return [
        {
            **row,
            "cyclic_of_perfect": perfect_mass(CODES[code].encode(all_cycles(n)), passes)
            if has_exact_mass
            else "",
        }
    ]


def perfect_mass(codes: Tensor, passes: int) -> float:
    """Return the total probability of codes int64 [M, n] under a perfect network.

    It is averaged over random orders.

    References: this project (`product_distribution` summed); checked in
        tests/permutations/coded/test_model.py.
    """
    masses = [product_mass(codes, blocks) for blocks in partitions(codes.shape[1], passes)]
    return sum(masses) / len(masses)


def partitions(n: int, passes: int) -> list[list[Tensor]]:
    """All ordered partitions of 0..n-1 into balanced blocks."""
    partitions: list[list[Tensor]] = [[]]
    for block in balanced_blocks(n, passes):
        remaining = [
            sorted(set(range(n)) - {i for part in blocks for i in part.tolist()})
            for blocks in partitions
        ]
        pairs = zip(partitions, remaining, strict=True)
        partitions = [
            [*blocks, torch.tensor(chosen)]
            for blocks, items in pairs
            for chosen in combinations(items, len(block))
        ]
    return partitions


def product_distribution(
    codes: Tensor, blocks: Blocks, points: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """Return the probabilities of points under a perfect denoiser of data `codes`.

    They are the products over blocks of the data's conditionals.

    Args:
        codes: the support of the data, int64 [M, n].
        blocks: shared by all, [s] each.
        points: int64 [P, n]; None means the codes themselves.
        weights: probabilities of the codes, [M]; None means equal ones.

    Returns:
        float64 [P].

    References: Severo et al. 2025, eq. 2.
    """
    n = codes.shape[1]
    is_own_support = points is None
    all_points = codes if points is None else torch.cat([codes, points])
    weight = torch.zeros(len(all_points), dtype=torch.float64, device=codes.device)
    weight[: len(codes)] = 1 / len(codes) if weights is None else weights.double()
    group = torch.zeros(len(all_points), dtype=torch.int64, device=codes.device)
    probabilities = torch.ones(len(all_points), dtype=torch.float64, device=codes.device)
    for block in blocks:
        mass = _summed(weight, group)
        for place in block.tolist():
            probabilities *= _summed(weight, group * n + all_points[:, place]) / mass.clamp(
                min=1e-300
            )
        if block is not blocks[-1]:
            group = _joined(group, all_points[:, block], n)
    return probabilities if is_own_support else probabilities[len(codes) :]


def product_mass(
    codes: Tensor, blocks: Blocks, points: Tensor | None = None, weights: Tensor | None = None
) -> float:
    """Return the total probability under `product_distribution` of all points, by default of the
    data.

    It is the exact fraction of correct samples of a perfect denoiser, for data with any weights.
    """
    return float(product_distribution(codes, blocks, points, weights).sum())


def _summed(weight: Tensor, key: Tensor) -> Tensor:
    """Return for every element the sum of the weights with its key."""
    totals = torch.zeros(int(key.max()) + 1, dtype=weight.dtype, device=weight.device)
    return totals.index_add_(0, key, weight)[key]


def _joined(group: Tensor, digits: Tensor, n: int) -> Tensor:
    """Return group numbers that are equal for equal previous groups and digits."""
    for column in digits.unbind(1):
        if int(group.max()) >= 2**62 // n:
            group = group.unique(return_inverse=True)[1]
        group = group * n + column
    return group.unique(return_inverse=True)[1]


def ranking_rows(model: str, evaluation: str, report: Mapping[str, Any]) -> Rows:
    """Return the NDCG@5 of the model, and of the baselines if they were requested."""
    rows = [{"model": f"{model}, {evaluation}", "ndcg_at_5": report["values"]["ndcg_at_5"]}]
    baselines = report.get("likelihood", {}).get("rankings", {})
    observed = evaluation.split(",")[0]
    return rows + [
        {"model": f"{name}, {observed}", "ndcg_at_5": scores["ndcg_at_5"]}
        for name, scores in baselines.items()
    ]


SUBJECTS = {"cycles": (cycles, cycle_rows), "rankings": (rankings, ranking_rows)}

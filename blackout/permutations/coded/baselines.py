"""Classical models as baselines: likelihoods of test permutations, and scores of test rankings."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.comparisons import Baseline
from blackout.permutations.coded.data import PermutationData
from blackout.permutations.coded.datasets.ratings import ranking_scores
from blackout.permutations.codes import Insertion
from blackout.permutations.distributions import (
    Mallows,
    Mixture,
    PlackettLuce,
    describe_worths,
    fit_plackett_luce,
)
from blackout.protocols import Split

MAX_FITTED = 20_000  # permutations to which classical models are fitted
MAX_MIXTURE_ITEMS = 100  # items up to which mixtures are fitted


def likelihood_baselines(source: PermutationData, size: int) -> dict[str, Baseline]:
    """Return the bits of test permutations under the uniform distribution and classical models.

    Rankings count as orders of their items. Mallows, its mixture and repeated insertion need the
    same items in every order; Plackett-Luce and its mixture do not. None of them uses another
    context. The number of components of a mixture is chosen on validation permutations.

    Args:
        source: of the permutations; classical models are fitted to at most 20,000 of them.
        size: number of test permutations.

    References: this project; checked in tests/permutations/coded/test_report.py.
    """
    sizes: dict[Split, int] = {
        "train": min(MAX_FITTED, source.size("train") or MAX_FITTED),
        "val": min(MAX_FITTED, source.size("val") or 0),
        "test": size,
    }
    train, validation, test = (
        to_orders(source, source.batch(split, torch.arange(count)))
        for split, count in sizes.items()
    )
    num_tokens = source.num_tokens if source.kind == "rankings" else None
    num_items = num_tokens or source.length
    same_items = num_tokens in (None, source.length)
    # 1. fit
    names = source.item_names
    plackett_luce = PlackettLuce(fit_plackett_luce(train, num_tokens))
    models: dict[str, Mallows | Mixture] = {
        "plackett_luce": Mixture(torch.ones(1), [plackett_luce])
    }
    if same_items:
        models["mallows"] = Mallows.fit(train)
        if len(validation) and source.length <= MAX_MIXTURE_ITEMS:
            models["mallows_mixture"] = Mixture.choose(train, validation, Mallows)
    if len(validation) and num_items <= MAX_MIXTURE_ITEMS:
        mixture = Mixture.choose(train, validation, PlackettLuce, num_tokens)
        models["plackett_luce_mixture"] = mixture
    # 2. evaluate
    held_out = torch.cat([validation, test])
    nll = {name: -model.log_prob(held_out).double() for name, model in models.items()}
    parameters = {name: model.describe(names) for name, model in models.items()}
    parameters["plackett_luce"] = describe_worths(plackett_luce, names)
    if same_items:
        nll["repeated_insertion"] = -repeated_insertion(train, held_out)
    uniform = math.lgamma(source.length + 1)
    nll["uniform"] = torch.full((len(held_out),), uniform, dtype=torch.float64)
    return {
        name: Baseline.from_values(
            values / math.log(2), len(validation), parameters=parameters.get(name)
        )
        for name, values in nll.items()
    }


def ranking_baselines(
    source: PermutationData, num_observed: int, size: int
) -> dict[str, dict[str, float]]:
    """Return mean scores of baselines on test rankings.

    `uniform_insertion` keeps the order of the first `num_observed` items and inserts the others
    uniformly. `popularity` sorts by the number of raters, and `plackett_luce` by scores fitted to
    training rankings.

    Args:
        source: of the rankings.
        num_observed: number of items whose order is known.
        size: number of test rankings.

    References: Severo et al. 2025, section 5.3.
    """
    test = source.batch("test", torch.arange(size))
    train = source.batch("train", torch.arange(min(MAX_FITTED, source.size("train") or MAX_FITTED)))
    log_worths = fit_plackett_luce(train["items"].gather(1, train["x"]), source.num_tokens)
    u = torch.rand(test["x"].shape, generator=torch.Generator().manual_seed(0))
    digits = (u * torch.arange(1, source.length + 1)).long()
    digits[:, :num_observed] = Insertion.encode(test["x"])[:, :num_observed]

    def sort_items(scores: Tensor) -> Tensor:
        """Return the items of each ranking by falling score."""
        return scores[test["items"]].argsort(dim=1, descending=True, stable=True)

    rankings = {
        "uniform_insertion": Insertion.decode(digits),
        "popularity": sort_items(source.buffers["popularity"]),
        "plackett_luce": sort_items(log_worths),
    }
    means: dict[str, dict[str, float]] = {}
    for name, ranking in rankings.items():
        scores = ranking_scores({**test, "samples": ranking})
        means[name] = {metric: float(values.mean()) for metric, values in scores.items()}
    return means


def repeated_insertion(train: Tensor, test: Tensor) -> Tensor:
    """Return log p of orders under a repeated insertion model, float64 [m], in nats.

    Items 0, 1, 2, ... are inserted one after another, with probabilities of positions fitted to
    training orders with a pseudo-count of 1.

    Args:
        train: int64 [N, n].
        test: int64 [m, n].

    References: Doignon et al. 2004; Severo et al. 2025, section 3.2.
    """
    n = train.shape[1]
    counts = F.one_hot(Insertion.encode(train), n).sum(0) + Insertion.support(n).double()
    log_probs = (counts / counts.sum(-1, keepdim=True)).log()
    return log_probs.gather(1, Insertion.encode(test).T).sum(0)


def to_orders(source: PermutationData, batch: Mapping[str, Tensor]) -> Tensor:
    """Return permutations of the data as orders, int64 [b, n] on the CPU.

    Rankings become their items in order; other data are returned as they are.
    """
    x = batch["x"].cpu()
    return batch["items"].cpu().gather(1, x) if source.kind == "rankings" else x

"""Classical families fitted to the training permutations: what a network has to beat."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Size, Tensor

from blackout.permutations.classical import Mallows, RepeatedInsertion
from blackout.permutations.coded.data import PermutationData
from blackout.permutations.codes import Insertion
from blackout.permutations.distributions import PlackettLuce

_FITTED = 20_000
_STEPS = 300


def likelihood_baselines(source: PermutationData, held_out: int) -> dict[str, Any]:
    """Bits per held-out permutation of uniform, Mallows, repeated insertion and Plackett-Luce, fitted to training ones.

    None of them sees a context.
    """
    size = min(_FITTED, source.size("train") or _FITTED)
    train = source.batch("train", torch.arange(size))["x"].cpu()
    test = source.batch("test", torch.arange(held_out))["x"].cpu()
    fitted = {
        "mallows": Mallows.fit(train),
        "repeated_insertion": RepeatedInsertion.fit(train, prior=1.0),
        "plackett_luce": PlackettLuce(fit_plackett_luce(train)),
    }
    bits = {name: -float(law.log_prob(test).double().mean()) / math.log(2) for name, law in fitted.items()}
    return {"uniform": math.lgamma(source.length + 1) / math.log(2), **bits}


def ranking_baselines(source: PermutationData, known: int, held_out: int) -> dict[str, dict[str, float]]:
    """Figures of held-out rankings by who does not know the user, or only their order of the first `known` items.

    uniform_insertion: the other items go in anywhere (Kim et al., section 5.3). popularity: by number of raters.
    plackett_luce: by scores of items, fitted to training rankings.
    """
    test = source.batch("test", torch.arange(held_out))
    train = source.batch("train", torch.arange(min(_FITTED, source.size("train") or _FITTED)))
    orders = train["items"].gather(1, train["x"])
    scores = fit_plackett_luce(orders, source.num_tokens)
    digits = Insertion.encode(test["x"])[:, :known]
    generator = torch.Generator().manual_seed(0)
    found = {
        "uniform_insertion": Insertion.decode(uniform_completion(digits, source.length, generator)),
        "popularity": source.kept["popularity"][test["items"]].argsort(dim=1, descending=True, stable=True),
        "plackett_luce": scores[test["items"]].argsort(dim=1, descending=True, stable=True),
    }
    judge = source.judge
    assert judge is not None
    figures = {name: judge({**test, "samples": x}) for name, x in found.items()}
    return {name: {k: float(v.mean()) for k, v in of.items()} for name, of in figures.items()}


def fit_plackett_luce(orders: Tensor, num_items: int | None = None, prior: float = 1e-3) -> Tensor:
    """Scores of items, float64 [num_items], by maximum likelihood of orders [N, m] of some of them.

    Args:
        orders: items, the first chosen first.
        num_items: how many there are; None for m.
        prior: of a normal law around 0 on the scores, which keeps them finite.
    """
    scores = torch.zeros(num_items or orders.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([scores], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        z = scores[orders]
        value = -(z - z.flip(-1).logcumsumexp(-1).flip(-1)).sum(-1).mean() + prior * scores.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return scores.detach()


def uniform_completion(observed: Tensor, length: int, generator: torch.Generator | None = None) -> Tensor:
    """Insertion digits [B, n]: the first r observed [B, r], the others anywhere (Kim et al., section 5.3)."""
    size, known = observed.shape
    u = torch.rand(Size([size, length]), generator=generator)
    digits = (u * torch.arange(1, length + 1)).long()
    digits[:, :known] = observed
    return digits

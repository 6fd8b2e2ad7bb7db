"""A network and a reverse law applied to lists in any order: the step back as a distribution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blackout.permutations.distributions import OrderDistribution
from blackout.permutations.shuffle.reverse import Reverse


@dataclass(frozen=True)
class Denoiser:
    """Steps back for the lists of one batch.

    Orders are of the items that may move, m of them: all n, or all but the first.

    Args:
        network: with `scores`, see `blackout.networks.SetTransformer`.
        reverse: the law.
        features: of the items, [b, n, width], in the order that states refer to.
        first_fixed: whether the first item stays where it is.
        items: what the features are of, [b, n, ...], for decoders that look at them.
    """

    network: nn.Module
    reverse: Reverse
    features: Tensor
    first_fixed: bool
    items: Tensor | None = None

    @property
    def free(self) -> int:
        """m."""
        return self.features.shape[1] - int(self.first_fixed)

    def __call__(self, states: Tensor, t: Tensor | int, width: int = 1) -> OrderDistribution:
        """The law of the permutation that takes lists one scheduled step back.

        Args:
            states: int64 [b, r, m], the lists: features[state].
            t: numbers of shuffles, [b, r] or one for all.
            width: of a beam in search of the mode.
        """
        b, r, _ = states.shape
        full = whole(states, self.first_fixed)
        rows = torch.arange(b, device=full.device).view(b, 1, 1)
        lists = self.features[rows, full].flatten(0, 1)
        times = torch.as_tensor(t, device=full.device).expand(b, r).reshape(-1)
        scores = self.network.scores(lists, times).unflatten(0, (b, r))  # type: ignore[operator]
        if self.first_fixed:
            scores = scores[..., 1:, 1:] if self.reverse.places else scores[..., 1:]
        return self.reverse(scores, width)


def whole(orders: Tensor, first_fixed: bool) -> Tensor:
    """Orders [..., m] of the items that may move as orders of all n: the first, where it is fixed, comes first."""
    if not first_fixed:
        return orders
    return torch.cat([torch.zeros_like(orders[..., :1]), orders + 1], -1)


def moving(orders: Tensor, first_fixed: bool) -> Tensor:
    """The inverse of `whole`: orders [..., n] as orders of the items that may move."""
    return orders[..., 1:] - 1 if first_fixed else orders

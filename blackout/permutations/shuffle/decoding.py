"""From a shuffled list back to the right order: the best step each time, a beam of lists, or draws."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Size, Tensor

from blackout.component import component
from blackout.permutations.distributions import OrderDistribution
from blackout.permutations.group import compose, identity_like
from blackout.permutations.shuffle.reverse import Denoiser
from blackout.random import SampleStreams, StepStreams

_WIDTH, _ALL = 16, 5
"""Lists that a beam keeps unless it is told otherwise, and items up to which it keeps all."""
Look: TypeAlias = Callable[[int, Tensor], None]
"""Called with (steps done, orders [b, m]) at the start and after each step."""
Lists: TypeAlias = tuple[Tensor, Tensor]
"""Orders int64 [b, K, m] of the free items, and their log-probabilities [b, K]."""


class Decoder(ABC):
    """A way of choosing the steps back."""

    only: ClassVar[str | None] = None
    """The one kind of items that it can put in order; None for any."""
    bounds: ClassVar[bool] = False
    """Whether what its lists' probabilities lack of 1 is all that other ways have: then it can be sure of the best."""

    def __call__(
        self, denoiser: Denoiser, times: Sequence[int], streams: SampleStreams, look: Look | None = None
    ) -> Lists:
        """Solve the lists of a denoiser's features.

        Args:
            times: t_1, ..., t_k.
            streams: of the lists.

        Returns:
            Orders int64 [b, K, m] of the free items, the best first, and log-probabilities [b, K].
        """
        b, device = len(denoiser.features), denoiser.features.device
        # the lists as they are given
        given = identity_like(torch.empty(b, 1, denoiser.free, device=device)).contiguous()
        lists = given, torch.zeros(b, 1, device=device)
        show = look or (lambda step, orders: None)
        show(0, given[:, 0])
        for step, t in enumerate(reversed(times), 1):
            lists = self.step(denoiser, lists, t, streams.at(step))
            show(step, lists[0][:, 0])
        return lists

    def step(self, denoiser: Denoiser, lists: Lists, t: int, streams: StepStreams) -> Lists:
        """Lists taken back from time t."""
        raise NotImplementedError

    @abstractmethod
    def evaluations(self, steps: int, free: int) -> int:
        """Network evaluations of a list of so many items that may move, at most."""


@component("sampler")
@dataclass(frozen=True)
class Greedy(Decoder):
    """The most probable step each time: place by place where that is intractable (generalised Plackett-Luce).

    [Zhang 2025, section 3.5]. log_prob is that of the steps taken.
    """

    bounds = True

    def step(self, denoiser: Denoiser, lists: Lists, t: int, streams: StepStreams) -> Lists:
        state, total = lists
        law = denoiser(state, t)
        sigma = self._choose(law, streams)
        return compose(state, sigma), total + law.log_prob(sigma)

    def _choose(self, law: OrderDistribution, streams: StepStreams) -> Tensor:
        return law.mode

    def evaluations(self, steps: int, free: int) -> int:
        return steps


@component("sampler")
@dataclass(frozen=True)
class Sample(Greedy):
    """Steps drawn from the model: orders follow its own distribution, given the items.

    log_prob is that of the steps taken.
    """

    bounds = False

    def _choose(self, law: OrderDistribution, streams: StepStreams) -> Tensor:
        return law.sample(Size(), streams)


@component("sampler")
@dataclass(frozen=True)
class Beam(Decoder):
    """The `width` most probable lists after each step, of the best steps back from each of them.

    [Zhang 2025, section 3.5, appendix D]. Steps come from a beam of their own over places, `inner` wide, where they
    cannot be sorted out exactly. Lists that several ways lead to are one, with the sum of their probabilities: exact
    where all lists are kept, and the best is then the most probable of all.

    Args:
        width: lists that are kept; None for 16, and all of up to five items.
        inner: width of the beam over places, at least.

    Raises:
        ValueError: a width below 1.
    """

    width: int | None = None
    inner: int = 64
    bounds = True

    def __post_init__(self) -> None:
        if (self.width is not None and self.width < 1) or self.inner < 1:
            raise ValueError(f"width and inner of a beam must be at least 1, not {self.width} and {self.inner}")

    def step(self, denoiser: Denoiser, lists: Lists, t: int, streams: StepStreams) -> Lists:
        state, total = lists
        width = self._kept(denoiser.free)
        orders, log_probs = denoiser(state, t, max(self.inner, width)).top(width)
        # what does not exist is blank: any order will do, because its log-probability is -inf
        reached = compose(state.unsqueeze(2), orders.clamp(min=0)).flatten(1, 2)
        states, log_probs = merged(reached, (total.unsqueeze(2) + log_probs).flatten(1, 2))
        total, which = log_probs.sort(dim=1, descending=True, stable=True)
        total, which = total[:, :width], which[:, :width]
        return states.gather(1, which.unsqueeze(-1).expand(-1, -1, states.shape[-1])), total

    def evaluations(self, steps: int, free: int) -> int:
        return 1 + (steps - 1) * self._kept(free)

    def _kept(self, free: int) -> int:
        """Lists that are kept, of so many items."""
        if self.width is not None:
            return self.width
        return max(_WIDTH, math.factorial(free)) if free <= _ALL else _WIDTH


def surely_best(log_probs: Tensor) -> Tensor:
    """Whether the first of lists with log-probabilities [b, K] that are at least these is the most probable, bool [b].

    Any other has at most what was found of the second, and all that was not found. Ours; checked in
    `tests.permutations.test_shuffle`.
    """
    p = F.pad(log_probs.double().exp(), (0, 1))
    return p[:, 0] >= p[:, 1] + (1 - p.sum(1)).clamp(min=0)


def merged(states: Tensor, log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Equal lists of [b, M, m], log-probabilities [b, M], put together: the first gets the sum, the others -inf.

    Ours; checked in `tests.permutations.test_shuffle`.
    """
    n = states.shape[-1]
    # equal lists have equal sums of these whole numbers; neighbours after sorting are compared themselves
    numbers = torch.randint(-(2**62), 2**62, (n, n), generator=torch.Generator().manual_seed(n)).to(states.device)
    keys = numbers[torch.arange(n, device=states.device), states].sum(-1)
    order = keys.argsort(dim=1, stable=True)
    states = states.gather(1, order.unsqueeze(-1).expand_as(states))
    log_probs = log_probs.gather(1, order)
    new = torch.ones_like(log_probs, dtype=torch.bool)
    new[:, 1:] = (states[:, 1:] != states[:, :-1]).any(-1)
    group = new.long().cumsum(1) - 1
    most = torch.full_like(log_probs, -torch.inf).scatter_reduce(1, group, log_probs, "amax")
    offset = most.gather(1, group).masked_fill(log_probs == -torch.inf, 0.0)
    mass = torch.zeros_like(log_probs).scatter_add(1, group, (log_probs - offset).exp())
    return states, (most + mass.log()).gather(1, group).masked_fill(~new, -torch.inf)

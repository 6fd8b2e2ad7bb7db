"""From a shuffled list back to the right order: the best step each time, a beam of lists, or draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

import torch
from torch import Size, Tensor

from blackout.component import component
from blackout.permutations.distributions import OrderDistribution
from blackout.permutations.group import compose, identity_like
from blackout.permutations.shuffle.reverse import Denoiser
from blackout.random import SampleStreams

Look: TypeAlias = Callable[[int, Tensor], None]
"""Called with (steps done, orders [b, m]) at the start and after each step."""
Choose: TypeAlias = Callable[[OrderDistribution, int], Tensor]
"""From the law of a step and its number, from 1 on, to permutations [b, 1, m]."""


class Decoder(Protocol):
    """A way of choosing the steps back."""

    only: ClassVar[str | None] = None
    """The one kind of items that it can put in order; None for any."""

    def __call__(
        self, denoiser: Denoiser, times: Sequence[int], streams: SampleStreams, look: Look | None = None
    ) -> tuple[Tensor, Tensor]:
        """Solve the lists of a denoiser's features.

        Args:
            times: t_1, ..., t_k.
            streams: of the lists.

        Returns:
            Orders int64 [b, K, m] of the free items, the best first, and log-probabilities [b, K].
        """
        ...

    def evaluations(self, steps: int) -> int:
        """Network evaluations of a list."""
        ...


@component("sampler")
@dataclass(frozen=True)
class Greedy(Decoder):
    """The most probable step each time: place by place where that is intractable (generalised Plackett-Luce).

    log_prob is that of the steps taken.
    """

    def __call__(
        self, denoiser: Denoiser, times: Sequence[int], streams: SampleStreams, look: Look | None = None
    ) -> tuple[Tensor, Tensor]:
        return _walk_back(denoiser, times, lambda law, step: law.mode, look)

    def evaluations(self, steps: int) -> int:
        return steps


@component("sampler")
@dataclass(frozen=True)
class Sample(Decoder):
    """Steps drawn from the model: orders follow its own distribution, given the items.

    log_prob is that of the steps taken.
    """

    def __call__(
        self, denoiser: Denoiser, times: Sequence[int], streams: SampleStreams, look: Look | None = None
    ) -> tuple[Tensor, Tensor]:
        return _walk_back(denoiser, times, lambda law, step: law.sample(Size(), streams.at(step)), look)

    def evaluations(self, steps: int) -> int:
        return steps


def _walk_back(denoiser: Denoiser, times: Sequence[int], choose: Choose, look: Look | None) -> tuple[Tensor, Tensor]:
    """The orders [b, 1, m] and log-probabilities [b, 1] of the steps that `choose` takes."""
    state = _start(denoiser)
    total = torch.zeros(state.shape[:2], device=state.device)
    _show(look, 0, state)
    for step, t in enumerate(reversed(times), 1):
        law = denoiser(state, t)
        sigma = choose(law, step)
        total = total + law.log_prob(sigma)
        state = compose(state, sigma)
        _show(look, step, state)
    return state, total


@component("sampler")
@dataclass(frozen=True)
class Beam(Decoder):
    """The `width` most probable lists after each step, of the best steps back from each of them.

    Steps come from a beam of their own over places, `inner` wide, where they cannot be sorted out exactly. Lists that
    several ways lead to are one, with the sum of their probabilities.

    Args:
        width: lists that are kept.
        inner: width of the beam over places, at least.

    Raises:
        ValueError: a width below 1.
    """

    width: int = 16
    inner: int = 64

    def __post_init__(self) -> None:
        if self.width < 1 or self.inner < 1:
            raise ValueError(f"width and inner of a beam must be at least 1, not {self.width} and {self.inner}")

    def __call__(
        self, denoiser: Denoiser, times: Sequence[int], streams: SampleStreams, look: Look | None = None
    ) -> tuple[Tensor, Tensor]:
        state = _start(denoiser)
        total = torch.zeros(state.shape[:2], device=state.device)
        _show(look, 0, state)
        for step, t in enumerate(reversed(times), 1):
            orders, log_probs = denoiser(state, t, max(self.inner, self.width)).top(self.width)
            # what does not exist is blank: any order will do, because its log-probability is -inf
            reached = compose(state.unsqueeze(2), orders.clamp(min=0)).flatten(1, 2)
            state, total = self._best(reached, (total.unsqueeze(2) + log_probs).flatten(1, 2))
            _show(look, step, state)
        return state, total

    def _best(self, states: Tensor, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """The best of the lists [b, M, m] after equal ones are put together."""
        states, log_probs = merged(states, log_probs)
        total, which = log_probs.sort(dim=1, descending=True, stable=True)
        total, which = total[:, : self.width], which[:, : self.width]
        return states.gather(1, which.unsqueeze(-1).expand(-1, -1, states.shape[-1])), total

    def evaluations(self, steps: int) -> int:
        return 1 + (steps - 1) * self.width


def merged(states: Tensor, log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Equal lists of [b, M, m] put together: the first of them gets the sum, the others -inf."""
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


def _start(denoiser: Denoiser) -> Tensor:
    """The lists as they are given, [b, 1, m]."""
    b, device = len(denoiser.features), denoiser.features.device
    return identity_like(torch.empty(b, 1, denoiser.free, device=device)).contiguous()


def _show(look: Look | None, step: int, state: Tensor) -> None:
    if look is not None:
        look(step, state[:, 0])

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
from blackout.permutations.answers import merged
from blackout.permutations.distributions import OrderDistribution, foremost
from blackout.permutations.group import all_permutations, compose, identity_like, number
from blackout.permutations.shuffle.reverse import Denoiser
from blackout.random import SampleStreams, StepStreams

_WIDTH, _ALL = 16, 5
"""Lists that a beam keeps unless it is told otherwise, and items up to which it keeps all."""
_STATES, _STEPS = 600, 8
"""Draws of an answer: lists that are taken back, twice as many at last, and last steps of each."""
_IN_CACHE = 64
"""Lists that a network reads at once: with more, a processor waits for its memory half of the time."""
_GONE, _AT_ONCE = 1e-10, 2**18
"""Probability of a list below which `exact_law` does not follow it, and orders whose probabilities it looks at once."""
Look: TypeAlias = Callable[[int, Tensor], None]
"""Called with (steps done, orders [b, m]) at the start and after each step."""
Times: TypeAlias = Sequence[int]
"""t_1, ..., t_k, numbers of shuffles."""
Lists: TypeAlias = tuple[Tensor, Tensor]
"""Orders int64 [b, K, m] of the free items, and their log-probabilities [b, K]."""


def unseen(step: int, orders: Tensor) -> None:
    """Nobody looks."""


class Decoder(ABC):
    """A way of choosing the steps back."""

    only: ClassVar[str | None] = None
    """The one kind of items that it can put in order; None for any."""
    bounds: ClassVar[bool] = False
    """Whether what its lists' probabilities lack of 1 is all that other ways have: then it can be sure of the best."""

    def __call__(self, denoiser: Denoiser, times: Times, streams: SampleStreams, look: Look = unseen) -> Lists:
        """Solve the lists of a denoiser's features.

        Args:
            streams: of the lists.

        Returns:
            Orders int64 [b, K, m] of the free items, the best first, and log-probabilities [b, K].
        """
        b, device = len(denoiser.features), denoiser.features.device
        # the lists as they are given
        given = identity_like(torch.empty(b, 1, denoiser.free, device=device)).contiguous()
        lists = given, torch.zeros(b, 1, device=device)
        look(0, given[:, 0])
        for step, t in enumerate(reversed(times), 1):
            lists = self.step(denoiser, lists, t, streams.at(step))
            look(step, lists[0][:, 0])
        return lists

    def step(self, denoiser: Denoiser, lists: Lists, t: int, streams: StepStreams) -> Lists:
        """Lists taken back from time t."""
        raise NotImplementedError

    @abstractmethod
    def evaluations(self, steps: int, free: int) -> int:
        """Network evaluations of a list of so many items that may move, at most."""


@component("sampler")
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
        return foremost(*merged(reached, (total.unsqueeze(2) + log_probs).flatten(1, 2)), width)

    def evaluations(self, steps: int, free: int) -> int:
        return 1 + (steps - 1) * self._kept(free)

    def _kept(self, free: int) -> int:
        """Lists that are kept, of so many items."""
        return self.width or (max(_WIDTH, math.factorial(free)) if free <= _ALL else _WIDTH)


@component("sampler")
class Best(Greedy):
    """The most probable order of up to five items: greedily where that alone has half of all probability, which makes
    it sure, else by a beam that keeps all orders, a list at a time. Of more items `Greedy`.
    """

    def __call__(self, denoiser: Denoiser, times: Times, streams: SampleStreams, look: Look = unseen) -> Lists:
        orders, log_probs = super().__call__(denoiser, times, streams, look)
        doubtful = (log_probs[:, 0] < -math.log(2)).nonzero().squeeze(1).tolist() if denoiser.free <= _ALL else []
        for i in doubtful:
            found, own = Beam()(denoiser.of(i), times, streams)
            more = max(0, found.shape[1] - orders.shape[1])
            orders = torch.cat([orders, orders[:, :1].expand(-1, more, -1)], 1)
            log_probs = F.pad(log_probs, (0, more), value=-torch.inf)
            orders[i, : found.shape[1]], log_probs[i, : own.shape[1]] = found[0], own[0]
        look(len(times), orders[:, 0])
        return orders, log_probs

    def evaluations(self, steps: int, free: int) -> int:
        return steps + (Beam().evaluations(steps, free) if free <= _ALL else 0)


def surely_best(log_probs: Tensor) -> Tensor:
    """Whether the first of lists with log-probabilities [b, K] that are at least these is the most probable, bool [b].

    Any other has at most what was found of the second, and all that was not found. Ours; checked in
    `tests.permutations.test_shuffle`.
    """
    p = F.pad(log_probs.double().exp(), (0, 1))
    return p[:, 0] >= p[:, 1] + (1 - p.sum(1)).clamp(min=0)


def exact_law(denoiser: Denoiser, times: Times) -> Lists:
    """All orders [b, m!, m] that the steps back lead to, and their log-probabilities, exact to m! 1e-10.

    [Zhang 2025, eq. 11], summed over all lists on the way. What is exact of a law of matchings is its shape.
    """
    every, b = all_permutations(denoiser.free).to(denoiser.features.device), len(denoiser.features)
    mass = F.one_hot(torch.zeros(b, dtype=torch.int64, device=every.device), len(every)).double()
    for t in reversed(times):
        before, mass = mass, torch.zeros_like(mass)
        for i in range(b):
            one, likely = denoiser.of(i), (before[i] > _GONE).nonzero().squeeze(1)
            for part in likely.split(max(1, _AT_ONCE // len(every))):
                step = one(every[part].unsqueeze(0), t).log_prob(every[:, None, None]).squeeze(1)
                to = number(compose(every[part], every.unsqueeze(1)))
                mass[i].index_add_(0, to.flatten(), (step.double().exp() * before[i, part]).flatten())
    return every.expand(b, -1, -1), mass.log()


def draws(denoiser: Denoiser, times: Times, generator: torch.Generator) -> Tensor:
    """Orders int64 [1, 9600, m] of one list, drawn from the chain: the last step of 1,200 lists 8 times each."""
    states = torch.arange(denoiser.free, device=denoiser.features.device).expand(1, 1, -1)
    for step, t in enumerate(reversed(times), 1):
        many = (_STATES if step == 1 else 1) * (2 if step == max(1, len(times) - 1) else 1)
        many, taken = many * (_STEPS if step == len(times) else 1), list[Tensor]()
        for part in states.split(_IN_CACHE, 1):
            sigma = denoiser(part, t).sample(Size((many,)), generator)  # [many, 1, r, m]
            taken.append(compose(part, sigma).transpose(0, 1).flatten(1, 2))
        states = torch.cat(taken, 1)
    return states

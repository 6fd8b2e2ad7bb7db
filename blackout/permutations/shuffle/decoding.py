"""From a shuffled list back to the right order: the best step each time, a beam of lists, or draws.

A denoiser is a network and a reverse law (`blackout.permutations.distributions`), for lists in any order. What its
steps undo is the forward process, see `blackout.permutations.shuffles`. Two decoders evaluate no network, the
baselines of tours and of jigsaws.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Size, Tensor, nn

from blackout.component import component
from blackout.errors import ensure
from blackout.permutations.borders import BEAM_WIDTH, grid_side, neighbour_scores, solve_by_borders
from blackout.permutations.distributions import (
    OrderDistribution,
    PointerLaw,
    Reverse,
    foremost,
)
from blackout.permutations.group import all_permutations, compose, identity_like, number
from blackout.permutations.queries import merged
from blackout.permutations.tours import polar_tours, two_opt
from blackout.random import SampleStreams, StepStreams
from blackout.training.model import check_finite_output

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


@dataclass(frozen=True)
class Denoiser:
    """Steps back for the lists of one batch [Zhang 2025, section 3.3].

    Orders are of the items that may move, m of them: all n, or all but the first.

    Args:
        network: with `scores`, see `blackout.networks.SetTransformer`.
        reverse: the law.
        features: of the items, [b, n, width], in the order that states refer to.
        first_fixed: whether the first item stays where it is.
        items: what the features are of, [b, n, ...], for decoders that look at them.
        sharpness: what scores are multiplied by, but not a pointer network's.
    """

    network: nn.Module
    reverse: Reverse
    features: Tensor
    first_fixed: bool
    items: Tensor
    sharpness: float = 1.0

    def of(self, i: int) -> Denoiser:
        """That of list i alone."""
        return replace(self, features=self.features[i : i + 1], items=self.items[i : i + 1])

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
        full = with_first(states, self.first_fixed)
        rows = torch.arange(b, device=full.device).view(b, 1, 1)
        lists = self.features[rows, full].flatten(0, 1)
        times = torch.as_tensor(t, device=full.device).expand(b, r).reshape(-1)
        if self.reverse.prefix:
            pointers = self.network.pointers(lists, times)  # type: ignore[operator]
            check_finite_output(pointers.items)
            return PointerLaw(pointers, pointers.items.new_zeros(b, r, self.free), width)
        scores = check_finite_output(self.network.scores(lists, times)).unflatten(0, (b, r))  # type: ignore[operator]
        if self.first_fixed:
            scores = scores[..., 1:, 1:] if self.reverse.places else scores[..., 1:]
        return self.reverse(scores * self.sharpness, width)


def with_first(orders: Tensor, first_fixed: bool) -> Tensor:
    """Orders [..., m] of the items that may move as orders of all n, [..., n]: the first, where it is fixed, comes
    first.

    Ours (tests/permutations/test_shuffle.py).
    """
    return torch.cat([torch.zeros_like(orders[..., :1]), orders + 1], -1) if first_fixed else orders


def moving(orders: Tensor, first_fixed: bool) -> Tensor:
    """The inverse of `with_first`: orders [..., n] as orders of the items that may move, [..., m].

    Ours (tests/permutations/test_shuffle.py).
    """
    return orders[..., 1:] - 1 if first_fixed else orders


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
            lists = self.step(denoiser, lists, t, streams.step(step))
            look(step, lists[0][:, 0])
        return lists

    def step(self, denoiser: Denoiser, lists: Lists, t: int, streams: StepStreams) -> Lists:
        """Lists taken back from time t: orders [b, K, m] and log-probabilities [b, K]."""
        raise NotImplementedError

    @abstractmethod
    def evaluations(self, steps: int, free: int) -> int:
        """Network evaluations of a list of so many items that may move, at most."""


@component("decoder")
class Greedy(Decoder):
    """The most probable step each time: place by place where that is intractable (generalised Plackett-Luce).

    [Zhang 2025, section 3.5]. log_prob is that of the steps taken.
    """

    bounds = True

    def step(self, denoiser: Denoiser, lists: Lists, t: int, streams: StepStreams) -> Lists:
        """The chosen step of orders [b, 1, m], whose log-probability is added, [b, 1]: `Denoiser`
        [Zhang 2025, section 3.5].
        """
        state, total = lists
        law = denoiser(state, t)
        sigma = self._choose(law, streams)
        return compose(state, sigma), total + law.log_prob(sigma)

    def _choose(self, law: OrderDistribution, streams: StepStreams) -> Tensor:
        return law.mode

    def evaluations(self, steps: int, free: int) -> int:
        return steps


@component("decoder")
class Sample(Greedy):
    """Steps drawn from the model: orders follow its own distribution, given the items.

    log_prob is that of the steps taken.
    """

    bounds = False

    def _choose(self, law: OrderDistribution, streams: StepStreams) -> Tensor:
        return law.sample(Size(), streams)


@component("decoder")
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
        """The best of K orders [b, K, m] by K steps each, equal ones merged, with log-probabilities [b, K]: see the
        class.
        """
        state, total = lists
        width = self._kept(denoiser.free)
        orders, log_probs = denoiser(state, t, max(self.inner, width)).top(width)
        # what does not exist is blank: any order will do, because its log-probability is -inf
        reached = compose(state.unsqueeze(2), orders.clamp(min=0)).flatten(1, 2)
        return foremost(*merged(reached, (total.unsqueeze(2) + log_probs).flatten(1, 2)), width)

    def evaluations(self, steps: int, free: int) -> int:
        """The first list, and all that are kept at every later step: an integer."""
        return 1 + (steps - 1) * self._kept(free)

    def _kept(self, free: int) -> int:
        """Lists that are kept, of so many items."""
        return self.width or (max(_WIDTH, math.factorial(free)) if free <= _ALL else _WIDTH)


@component("decoder")
class Best(Greedy):
    """The most probable order of up to five items: greedily where that alone has half of all probability, which makes
    it sure, else by a beam that keeps all orders, a list at a time. Of more items `Greedy`.

    Ours (tests/permutations/test_queries.py).
    """

    def __call__(self, denoiser: Denoiser, times: Times, streams: SampleStreams, look: Look = unseen) -> Lists:
        """Orders int64 [b, K, m], the best first, and log-probabilities [b, K]: greedy above 1/2, as in the class."""
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
        """Of `Greedy` and `Beam`: an integer."""
        return steps + (Beam().evaluations(steps, free) if free <= _ALL else 0)


@component("decoder")
class TwoOpt(Decoder):
    """Tours by polar angle, mended by exchanging two edges: no network is asked. log_prob is 0."""

    only: ClassVar[str | None] = "points"

    def __call__(self, denoiser: Denoiser, times: Times, streams: SampleStreams, look: Look = unseen) -> Lists:
        """Orders int64 [b, K, m], the best first, and log-probabilities [b, K]: see `Decoder`."""
        points = denoiser.items
        tours = two_opt(points.cpu(), polar_tours(points.cpu())).to(points.device)
        orders = moving(tours, denoiser.first_fixed).unsqueeze(1)
        look(len(times), orders[:, 0])
        return orders, torch.zeros(orders.shape[:2], device=points.device)

    def evaluations(self, steps: int, free: int) -> int:
        return 0


@component("decoder")
@dataclass(frozen=True)
class Borders(Decoder):
    """The pieces of a square picture arranged by their borders alone: no network is evaluated.

    log_prob is among the arrangements found. References: this project; checked in tests/permutations/test_borders.py.

    Args:
        width: of the beam.

    Raises:
        ValueError: a width below 1.
    """

    width: int = BEAM_WIDTH
    only: ClassVar[str | None] = "pieces"

    def __post_init__(self) -> None:
        ensure(self.width >= 1, f"width must be at least 1, not {self.width}")

    def __call__(self, denoiser: Denoiser, times: Times, streams: SampleStreams, look: Look = unseen) -> Lists:
        """Orders int64 [b, K, m], the best first, and log-probabilities [b, K]: see `Decoder`."""
        pieces = denoiser.items
        look(0, identity_like(torch.empty(pieces.shape[:2], device=pieces.device)).contiguous())
        orders, sums = solve_by_borders(neighbour_scores(pieces), grid_side(pieces.shape[1]), self.width)
        look(len(times), orders[:, 0])
        return orders, sums.log_softmax(-1)

    def evaluations(self, steps: int, free: int) -> int:
        return 0


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
    """Orders int64 [1, 9600, m] of one list, drawn from the chain: the last step of 1,200 lists 8 times each.

    The chain of [Zhang 2025, eq. 11]. Ours (tests/permutations/test_queries.py).
    """
    states = torch.arange(denoiser.free, device=denoiser.features.device).expand(1, 1, -1)
    for step, t in enumerate(reversed(times), 1):
        many = (_STATES if step == 1 else 1) * (2 if step == max(1, len(times) - 1) else 1)
        many, taken = many * (_STEPS if step == len(times) else 1), list[Tensor]()
        for part in states.split(_IN_CACHE, 1):
            sigma = denoiser(part, t).sample(Size((many,)), generator)  # [many, 1, r, m]
            taken.append(compose(part, sigma).transpose(0, 1).flatten(1, 2))
        states = torch.cat(taken, 1)
    return states

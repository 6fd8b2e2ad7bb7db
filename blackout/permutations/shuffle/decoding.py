"""Decoders of shuffle diffusion.

Greedy steps, beam search, samples, and baselines without a network.

A `Denoiser` is a network with a reverse distribution (`blackout.permutations.distributions`), for
lists in any order. Its steps undo the forward process (`blackout.permutations.forward_process`).

References: Zhang et al. 2025 (SymmetricDiffusers), sections 3.3 and 3.5, appendix D.
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
    PermutationDistribution,
    PointerDistribution,
    most_probable,
)
from blackout.permutations.group import all_permutations, compose, identity_like, lexicographic_rank
from blackout.permutations.queries import merge_duplicates
from blackout.permutations.shuffle.reverse import Reverse
from blackout.permutations.tours import polar_tours, two_opt
from blackout.random import SampleStreams, StepStreams
from blackout.representation import format_arguments
from blackout.training.model import check_finite_output

DEFAULT_BEAM_WIDTH = 16  # lists that `Beam` keeps unless the settings say otherwise
MAX_COMPLETE_ITEMS = 5  # items up to which `Beam` keeps all lists (120) by default

# states of `sample_orders` before the last step but one, which doubles them
NUM_SAMPLED_STATES = 600
SAMPLES_PER_STATE = 8  # last steps of `sample_orders` from each state
NETWORK_BATCH = 64  # lists in one evaluation; more wait for memory half of the time on a CPU

MIN_MASS = 1e-10  # probability below which `exact_distribution` does not follow a state
EXACT_BATCH = 2**18  # log-probabilities of orders in one evaluation of `exact_distribution`

StepCallback: TypeAlias = Callable[[int, Tensor], None]  # (steps done, orders [b, m]) -> None
Times: TypeAlias = Sequence[int]  # t_1, ..., t_k, numbers of shuffles
Lists: TypeAlias = tuple[Tensor, Tensor]  # orders int64 [b, K, m], log-probabilities [b, K]


@dataclass(frozen=True)
class Denoiser:
    """The reverse steps for the lists of one batch.

    Orders are those of the m free items: all n, or all but the first.

    Args:
        network: with `scores`, see `blackout.networks.SetTransformer`.
        reverse: how scores become a distribution.
        features: of the items, [b, n, width], in the order to which states refer.
        first_fixed: whether the first item keeps its position.
        items: from which the features were computed, [b, n, ...], for decoders without a network.
        sharpness: factor of the scores; a pointer network ignores it.

    References: Zhang et al. 2025, section 3.3.
    """

    network: nn.Module
    reverse: Reverse
    features: Tensor
    first_fixed: bool
    items: Tensor
    sharpness: float = 1.0

    def select(self, i: int) -> Denoiser:
        """Return the denoiser of list i alone."""
        return replace(self, features=self.features[i : i + 1], items=self.items[i : i + 1])

    @property
    def num_free(self) -> int:
        """The number m of free items."""
        return self.features.shape[1] - int(self.first_fixed)

    def __call__(self, states: Tensor, t: Tensor | int, width: int = 1) -> PermutationDistribution:
        """Return the distribution of the reverse steps to the previous scheduled time.

        Args:
            states: lists features[state], int64 [b, r, m].
            t: number of shuffles, [b, r], or a single one.
            width: smallest width of a beam search for the mode.
        """
        b, r, _ = states.shape
        orders = prepend_first(states, self.first_fixed)
        rows = torch.arange(b, device=orders.device).view(b, 1, 1)
        lists = self.features[rows, orders].flatten(0, 1)
        times = torch.as_tensor(t, device=orders.device).expand(b, r).reshape(-1)
        if self.reverse.prefix:
            pointers = self.network.pointers(lists, times)  # type: ignore[operator]
            check_finite_output(pointers.items)
            template = pointers.items.new_zeros(b, r, self.num_free)
            return PointerDistribution(pointers, template, width)
        scores = self.network.scores(lists, times)  # type: ignore[operator]
        scores = check_finite_output(scores).unflatten(0, (b, r))
        if self.first_fixed:
            scores = scores[..., 1:, 1:] if self.reverse.places else scores[..., 1:]
        return self.reverse(scores * self.sharpness, width)


def prepend_first(orders: Tensor, first_fixed: bool) -> Tensor:
    """Put the fixed item before orders of the free items, [..., m] -> [..., n].

    Without a fixed item orders are returned as they are.
    """
    if not first_fixed:
        return orders
    return torch.cat([torch.zeros_like(orders[..., :1]), orders + 1], -1)


def drop_first(orders: Tensor, first_fixed: bool) -> Tensor:
    """Remove the fixed item from orders, [..., n] -> [..., m]; the inverse of `prepend_first`."""
    return orders[..., 1:] - 1 if first_fixed else orders


def ignore_step(step: int, orders: Tensor) -> None:
    """Ignore the step: the default callback."""


class Decoder(ABC):
    """A way of choosing the reverse steps.

    Attributes:
        item_kind: the only kind of items that it can order; None for any.
        lower_bounds: whether the log-probabilities of its lists are lower bounds of those under the
            model, so that its best order can be certified, see `is_certified`.
    """

    item_kind: ClassVar[str | None] = None
    lower_bounds: ClassVar[bool] = False

    __repr__ = format_arguments

    def __call__(
        self,
        denoiser: Denoiser,
        times: Times,
        streams: SampleStreams,
        callback: StepCallback = ignore_step,
    ) -> Lists:
        """Order the items of a denoiser.

        Args:
            denoiser: of b lists.
            times: of the forward process.
            streams: random numbers of every list.
            callback: called at the start and after each step.

        Returns:
            Orders of the free items int64 [b, K, m], the best first, and log-probabilities [b, K].
        """
        b = len(denoiser.features)
        device = denoiser.features.device
        identity = identity_like(torch.empty(b, 1, denoiser.num_free, device=device)).contiguous()
        lists = identity, torch.zeros(b, 1, device=device)
        callback(0, identity[:, 0])
        for step, t in enumerate(reversed(times), 1):
            lists = self.step(denoiser, lists, t, streams.step(step))
            callback(step, lists[0][:, 0])
        return lists

    def step(self, denoiser: Denoiser, lists: Lists, t: int, streams: StepStreams) -> Lists:
        """Take lists from time t to the previous scheduled time."""
        raise NotImplementedError

    @abstractmethod
    def evaluations(self, steps: int, num_free: int) -> int:
        """Return the largest number of network evaluations of a list.

        Args:
            steps: of the schedule.
            num_free: free items.
        """


@component("decoder")
class Greedy(Decoder):
    """The most probable step each time; position by position for generalised Plackett-Luce.

    The log-probability is that of the steps taken.

    References: Zhang et al. 2025, section 3.5.
    """

    lower_bounds = True

    def step(self, denoiser: Denoiser, lists: Lists, t: int, streams: StepStreams) -> Lists:
        """Take lists from time t to the previous scheduled time."""
        state, log_prob = lists
        distribution = denoiser(state, t)
        sigma = self._choose(distribution, streams)
        return compose(state, sigma), log_prob + distribution.log_prob(sigma)

    def _choose(self, distribution: PermutationDistribution, streams: StepStreams) -> Tensor:
        """Return a reverse step of each list, int64 [b, K, m]."""
        return distribution.mode

    def evaluations(self, steps: int, num_free: int) -> int:
        """Return one evaluation for each step."""
        return steps


@component("decoder")
class Sample(Greedy):
    """Samples from the model. The log-probability is that of the steps drawn."""

    lower_bounds = False

    def _choose(self, distribution: PermutationDistribution, streams: StepStreams) -> Tensor:
        """Draw a reverse step of each list, int64 [b, K, m]."""
        return distribution.sample(Size(), streams)


@component("decoder")
@dataclass(frozen=True)
class Beam(Decoder):
    """A beam search that keeps the `width` most probable lists after each step.

    The most probable steps from each list come from an inner beam search over positions, where they
    cannot be found exactly. Equal lists are merged, with the sum of their probabilities. If all
    lists are kept the search is exact, and its best is the most probable order.

    Args:
        width: lists to keep; None for 16, or all lists of up to five items.
        inner: smallest width of the beam search over positions.

    Raises:
        ValueError: a width below 1.

    References: Zhang et al. 2025, section 3.5 and appendix D.
    """

    width: int | None = None
    inner: int = 64
    lower_bounds = True

    def __post_init__(self) -> None:
        if (self.width is not None and self.width < 1) or self.inner < 1:
            raise ValueError(
                f"width and inner of a beam must be at least 1, not {self.width} and {self.inner}"
            )

    def step(self, denoiser: Denoiser, lists: Lists, t: int, streams: StepStreams) -> Lists:
        """Keep the best of K orders by K steps each, after merging."""
        state, log_prob = lists
        width = self._num_kept(denoiser.num_free)
        steps, step_log_probs = denoiser(state, t, max(self.inner, width)).top(width)
        # steps of -1 do not exist: they become any order, with a log-probability of -inf
        orders = compose(state.unsqueeze(2), steps.clamp(min=0)).flatten(1, 2)
        log_probs = (log_prob.unsqueeze(2) + step_log_probs).flatten(1, 2)
        return most_probable(*merge_duplicates(orders, log_probs), width)

    def evaluations(self, steps: int, num_free: int) -> int:
        """Return one evaluation for the first list, and one for each list kept at later steps."""
        return 1 + (steps - 1) * self._num_kept(num_free)

    def _num_kept(self, num_free: int) -> int:
        """Return the number of lists to keep."""
        if self.width:
            return self.width
        if num_free <= MAX_COMPLETE_ITEMS:
            return max(DEFAULT_BEAM_WIDTH, math.factorial(num_free))
        return DEFAULT_BEAM_WIDTH


@component("decoder")
class Best(Greedy):
    """The most probable order of up to five items; `Greedy` for more.

    A greedy order with more than half of all probability is certainly the best. Other lists are
    solved by a beam search that keeps all orders.

    References: this project; checked in tests/permutations/test_queries.py.
    """

    def __call__(
        self,
        denoiser: Denoiser,
        times: Times,
        streams: SampleStreams,
        callback: StepCallback = ignore_step,
    ) -> Lists:
        """Order the items of a denoiser, see `Decoder`."""
        orders, log_probs = super().__call__(denoiser, times, streams, callback)
        uncertain_rows: list[int] = []
        if denoiser.num_free <= MAX_COMPLETE_ITEMS:
            uncertain_rows = (log_probs[:, 0] < -math.log(2)).nonzero().squeeze(1).tolist()
        for i in uncertain_rows:
            beam_orders, beam_log_probs = Beam()(denoiser.select(i), times, streams)
            size = beam_orders.shape[1]
            num_missing = max(0, size - orders.shape[1])
            orders = torch.cat([orders, orders[:, :1].expand(-1, num_missing, -1)], 1)
            log_probs = F.pad(log_probs, (0, num_missing), value=-torch.inf)
            orders[i, :size] = beam_orders[0]
            log_probs[i, :size] = beam_log_probs[0]
        callback(len(times), orders[:, 0])
        return orders, log_probs

    def evaluations(self, steps: int, num_free: int) -> int:
        """Return the evaluations of `Greedy`, and of `Beam` for few items."""
        if num_free > MAX_COMPLETE_ITEMS:
            return steps
        return steps + Beam().evaluations(steps, num_free)


@component("decoder")
class TwoOpt(Decoder):
    """Tours by polar angle, improved by 2-opt.

    No network is evaluated; the log-probability is 0.
    """

    item_kind: ClassVar[str | None] = "points"

    def __call__(
        self,
        denoiser: Denoiser,
        times: Times,
        streams: SampleStreams,
        callback: StepCallback = ignore_step,
    ) -> Lists:
        """Order the items of a denoiser, see `Decoder`."""
        points = denoiser.items
        tours = two_opt(points.cpu(), polar_tours(points.cpu())).to(points.device)
        orders = drop_first(tours, denoiser.first_fixed).unsqueeze(1)
        callback(len(times), orders[:, 0])
        return orders, torch.zeros(orders.shape[:2], device=points.device)

    def evaluations(self, steps: int, num_free: int) -> int:
        """Return 0."""
        return 0


@component("decoder")
@dataclass(frozen=True)
class Borders(Decoder):
    """The pieces of a square picture, arranged by the fit of their borders.

    No network is evaluated. The log-probability is relative to the arrangements of the beam.

    Args:
        width: of the beam search.

    Raises:
        ValueError: width < 1.

    References: this project; checked in tests/permutations/test_borders.py.
    """

    width: int = BEAM_WIDTH
    item_kind: ClassVar[str | None] = "pieces"

    def __post_init__(self) -> None:
        ensure(self.width >= 1, f"width must be at least 1, not {self.width}")

    def __call__(
        self,
        denoiser: Denoiser,
        times: Times,
        streams: SampleStreams,
        callback: StepCallback = ignore_step,
    ) -> Lists:
        """Order the items of a denoiser, see `Decoder`."""
        pieces = denoiser.items
        identity = identity_like(torch.empty(pieces.shape[:2], device=pieces.device)).contiguous()
        callback(0, identity)
        scores = neighbour_scores(pieces)
        orders, sums = solve_by_borders(scores, grid_side(pieces.shape[1]), self.width)
        callback(len(times), orders[:, 0])
        return orders, sums.log_softmax(-1)

    def evaluations(self, steps: int, num_free: int) -> int:
        """Return 0."""
        return 0


def is_certified(log_probs: Tensor) -> Tensor:
    """Return whether the first of several orders is certainly the most probable, bool [b].

    Any other order has at most the probability of the second, plus all probability that was not
    found.

    Args:
        log_probs: lower bounds of the log-probabilities, in falling order, [b, K].

    References: this project; checked in tests/permutations/test_shuffle_diffusion.py.
    """
    p = F.pad(log_probs.double().exp(), (0, 1))
    missing_probability = (1 - p.sum(1)).clamp(min=0)
    return p[:, 0] >= p[:, 1] + missing_probability


def exact_distribution(denoiser: Denoiser, times: Times) -> Lists:
    """Return all orders and their probabilities under the model, summed over all reverse paths.

    Each step leaves out lists of a probability of at most 1e-10 and rounds as the network does. For
    `Matching`, whose probabilities do not sum to 1, they are relative.

    Args:
        denoiser: of b lists.
        times: of the forward process.

    Returns:
        Orders int64 [b, m!, m] and log-probabilities float64 [b, m!].

    References: Zhang et al. 2025, eq. 11.
    """
    b = len(denoiser.features)
    all_orders = all_permutations(denoiser.num_free).to(denoiser.features.device)
    start = torch.zeros(b, dtype=torch.int64, device=all_orders.device)
    mass = F.one_hot(start, len(all_orders)).double()
    chunk = max(1, EXACT_BATCH // len(all_orders))
    for t in reversed(times):
        previous = mass
        mass = torch.zeros_like(previous)
        for i in range(b):
            list_denoiser = denoiser.select(i)
            states = (previous[i] > MIN_MASS).nonzero().squeeze(1)
            for part in states.split(chunk):
                distribution = list_denoiser(all_orders[part].unsqueeze(0), t)
                log_probs = distribution.log_prob(all_orders[:, None, None]).squeeze(1)
                target = lexicographic_rank(compose(all_orders[part], all_orders.unsqueeze(1)))
                new_mass = log_probs.double().exp() * previous[i, part]
                mass[i].index_add_(0, target.flatten(), new_mass.flatten())
    return all_orders.expand(b, -1, -1), mass.log()


def sample_orders(denoiser: Denoiser, times: Times, generator: torch.Generator) -> Tensor:
    """Draw orders of a single list from the model: the last step of 1,200 states, 8 times each.

    Samples that share a state are dependent, which costs less than a path for each.

    Args:
        denoiser: of one list.
        times: of the forward process.
        generator: source of random numbers.

    Returns:
        int64 [1, 9600, m].

    References: Zhang et al. 2025, eq. 11; this project, checked in
        tests/permutations/test_queries.py.
    """
    num_steps = len(times)
    states = torch.arange(denoiser.num_free, device=denoiser.features.device).expand(1, 1, -1)
    for step, t in enumerate(reversed(times), 1):
        num_samples = NUM_SAMPLED_STATES if step == 1 else 1
        if step == max(1, num_steps - 1):
            num_samples *= 2
        if step == num_steps:
            num_samples *= SAMPLES_PER_STATE
        next_states: list[Tensor] = []
        for part in states.split(NETWORK_BATCH, 1):
            sigma = denoiser(part, t).sample(Size((num_samples,)), generator)
            next_states.append(compose(part, sigma).transpose(0, 1).flatten(1, 2))
        states = torch.cat(next_states, 1)
    return states

"""The forward process of shuffle diffusion: a card shuffle observed at scheduled times.

`denoising_schedule` and `default_schedule` choose the times by total variation distances.

Example:
    >>> import torch
    >>> from blackout.permutations import ForwardProcess, Riffle
    >>> process = ForwardProcess(Riffle(), [0, 2, 7])
    >>> states, inverse_steps = process.sample_walks(4, 8, 1, torch.Generator().manual_seed(0))
    >>> list(states.shape)
    [8, 1, 2, 4]

References: Zhang et al. 2025 (SymmetricDiffusers), section 3.4.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from blackout.component import component
from blackout.errors import ensure
from blackout.permutations.group import inverse
from blackout.permutations.shuffles import (
    MAX_RIFFLES,
    MAX_TRANSPOSED_CARDS,
    RandomTransposition,
    Riffle,
    Shuffle,
)
from blackout.random import RandomSource

MAX_SHUFFLES = 100_000  # in a schedule of other shuffles
# the rule for schedules, of Zhang et al. 2025, section 3.4; see `denoising_schedule`
MIXED_DISTANCE = 0.005  # distance from uniform at the final time
FIRST_DISTANCE = 0.46  # largest distance from uniform at the first time after 0
MIN_CHANGE = 0.29  # smallest distance between the distributions at two consecutive times
CUTOFF_FRACTION = 0.75  # of the mixing time, for the intermediate time of long transposition walks


@component("shuffle")
@dataclass(frozen=True)
class ForwardProcess:
    """The forward process X_t = X_0[pi_t]: a shuffle observed at several times.

    The times are 0 = t_0 < t_1 < ... < t_k.

    Args:
        method: the shuffle.
        schedule: the times t_0, ..., t_k, in numbers of shuffles.

    Raises:
        ValueError: a schedule that is not of rising integers from 0.

    References: Zhang et al. 2025, section 3.4, eq. 11.

    Example:
        >>> ForwardProcess(Riffle(), [0, 3, 5, 9]).increments
        [3, 2, 4]
    """

    method: Shuffle
    schedule: Sequence[float]

    def __post_init__(self) -> None:
        schedule = list(self.schedule)
        integers = len(schedule) > 1 and all(type(t) is int for t in schedule)
        rises = integers and schedule[0] == 0 and all(a < b for a, b in pairwise(schedule))
        ensure(
            rises,
            f"schedule must be whole numbers rising from 0, such as [0,3,5,9], not {schedule}",
        )
        limit = MAX_RIFFLES if isinstance(self.method, Riffle) else MAX_SHUFFLES
        ensure(
            schedule[-1] <= limit,
            f"schedule must end at {limit} shuffles at most, not {schedule[-1]}",
        )

    @property
    def times(self) -> list[int]:
        """The times t_1, ..., t_k."""
        return [int(t) for t in self.schedule[1:]]

    @property
    def increments(self) -> list[int]:
        """The number of shuffles of each step, t_i - t_{i-1}, k integers."""
        return [b - a for a, b in pairwise([0, *self.times])]

    def sample_walks(
        self, n: int, num_lists: int, num_walks: int, generator: RandomSource
    ) -> tuple[Tensor, Tensor]:
        """Draw walks at the scheduled times, with their exact joint distribution.

        Args:
            n: cards.
            num_lists: independent lists; with streams, one for each key.
            num_walks: walks of each list.
            generator: source of random numbers.

        Returns:
            The permutations pi at t_1, ..., t_k, int64 [num_lists, num_walks, k, n], with X_t =
            X_0[pi]; and the inverse steps of the same shape, with compose(pi at t_i, inverse step
            i) = pi at t_{i-1}.

        References: Zhang et al. 2025, section 3.4.
        """
        inverse_steps = self.method.sample_inverses(
            n, (num_lists, num_walks), self.increments, generator
        )
        steps = inverse(inverse_steps)
        states = torch.stack(list(accumulate(steps, lambda state, step: state.gather(-1, step))))
        return states.movedim(0, 2), inverse_steps.movedim(0, 2)

    def log_prob(self, inverse_steps: Tensor) -> Tensor:
        """Return log q of the steps, summed over the schedule, float64 [...].

        It is the part of the variational bound that does not depend on the network.

        Args:
            inverse_steps: int64 [..., k, n].

        References: Zhang et al. 2025, eq. 12.
        """
        steps = zip(inverse(inverse_steps).unbind(-2), self.increments, strict=True)
        return torch.stack([self.method.log_prob(sigma, times) for sigma, times in steps]).sum(0)


def default_schedule(method: Shuffle, n: int, *, every_step: bool) -> list[int]:
    """Return the scheduled times for n items where the settings choose none.

    For riffles by `denoising_schedule`. For other shuffles the final time is the mixing time at a
    distance of 0.005, with one time between, at a distance of 0.46; for transpositions of more than
    30 items, whose distances are not available, n/2 ln n and three quarters of it.

    Args:
        method: the shuffle.
        n: items.
        every_step: include the times after every single shuffle.

    References: Zhang et al. 2025, section 3.4; this project, checked in
        tests/permutations/test_mixing.py.
    """
    if isinstance(method, Riffle):
        times = denoising_schedule(n)
    else:
        if isinstance(method, RandomTransposition) and n > MAX_TRANSPOSED_CARDS:
            cutoff = n / 2 * math.log(n)
            mixing_times = [math.ceil(CUTOFF_FRACTION * cutoff), math.ceil(cutoff)]
        else:
            distances = (FIRST_DISTANCE, MIXED_DISTANCE)
            mixing_times = [mixing_time(method, n, distance) for distance in distances]
        times = sorted({0, *(max(t, 1) for t in mixing_times)})
    return list(range(times[-1] + 1)) if every_step else times


def denoising_schedule(n: int) -> list[int]:
    """Return the denoising schedule 0 = t_0 < t_1 < ... < t_k = T for riffles of n cards.

    T is the time whose distance from uniform is nearest to 0.005 on a logarithmic scale. t_1 is the
    first time with a distance of at most 0.46. Each further time is the first whose distribution is
    at least 0.29 from that at the time before; the last is T. The thresholds reproduce tables 9 and
    11 of the paper for 9, 25, 36 and 100 items.

    Raises:
        ValueError: n < 2.

    References: Zhang et al. 2025, section 3.4; this project, checked in
        tests/permutations/test_mixing.py.
    """
    ensure(n >= 2, f"a schedule needs at least 2 cards, not {n}")
    riffle = Riffle()
    mixed = mixing_time(riffle, n, MIXED_DISTANCE)
    log_errors = {
        t: abs(math.log(riffle.total_variation(n, t) / MIXED_DISTANCE)) for t in (mixed - 1, mixed)
    }
    final = min(log_errors, key=log_errors.__getitem__)
    times = [0, mixing_time(riffle, n, FIRST_DISTANCE)]
    for t in range(times[-1] + 1, final):
        if riffle.total_variation(n, times[-1], t) >= MIN_CHANGE:
            times.append(t)
    return times if times[-1] == final else [*times, final]


def mixing_time(shuffle: Shuffle, n: int, distance: float) -> int:
    """Return the smallest number of shuffles that brings the cards close to uniform.

    Then the total variation distance from the uniform distribution is at most `distance`.

    References: Zhang et al. 2025, section 3.4. It is found by bisection.
    """
    upper = 1
    while shuffle.total_variation(n, upper) > distance:
        upper *= 2
    return bisect_left(
        range(upper), -distance, upper // 2, key=lambda t: -shuffle.total_variation(n, t)
    )

"""Mixtures of Mallows or Plackett-Luce distributions, fitted by expectation-maximisation.

References: Dempster et al. 1977; Hunter 2004; Arthur and Vassilvitskii 2007.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Size, Tensor

from blackout.errors import ensure
from blackout.permutations.distributions.mallows import Mallows, log_phi_of_distance
from blackout.permutations.distributions.plackett_luce import PlackettLuce, describe_worths
from blackout.permutations.kemeny import improve_order, kemeny_order
from blackout.random import SampleStreams, StepStreams
from blackout.representation import format_fields

# (orders [N, m], pair indicators [N, n^2], n, weights [N], present component or None)
# -> the fitted component and the log-probability of every order [N]
MaximisationStep: TypeAlias = Callable[[Any, Any, int, Any, Any], tuple[Any, Any]]

# expectation-maximisation of mixtures
MAX_FITTED_ORDERS = 4000  # orders to which mixtures are fitted
MIN_FITTED_ORDERS = 100  # the same for many items
MAX_PAIR_INDICATORS = 2**24  # orders x items^2 in memory
NUM_STARTS = 4  # for each number of components
NUM_TRIAL_ITERATIONS = 8  # by which the best start is chosen
NUM_ITERATIONS = 100  # at most, from the best start
MIN_GAIN = 1e-4  # in nats per order; iterations stop below it
HUNTER_STEPS = 2  # steps of Hunter's algorithm in each iteration
PSEUDO_COUNT = 0.1  # wins and losses added to each item in Hunter's algorithm
MAX_EXACT_CENTRE = 10  # items up to which every iteration finds the exact centre
PATIENCE = 3  # numbers of components in a row without an improvement, after which `choose` stops


@dataclass(frozen=True, eq=False)
class Mixture:
    """A mixture of Mallows or Plackett-Luce distributions.

    Args:
        weights: float64 [K], with sum 1.
        components: K distributions on orders of the same items.

    References: this project; checked in tests/permutations/distributions/test_mixture.py.
    """

    weights: Tensor
    components: Sequence[Mallows | PlackettLuce]

    __repr__ = format_fields

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of orders [..., n], float64 [...].

        Components of Plackett-Luce also accept orders [..., m] of some of the items.
        """
        log_probs = [component.log_prob(value) for component in self.components]
        return (torch.stack(log_probs, -1).double() + self.weights.log()).logsumexp(-1)

    def describe(self, names: Sequence[str]) -> dict[str, Any]:
        """Return weights and components as plain values, the heaviest first.

        Args:
            names: of the items.
        """
        components: list[dict[str, Any]] = []
        for number in self.weights.argsort(descending=True).tolist():
            component = self.components[number]
            if isinstance(component, Mallows):
                description = component.describe(names)
            else:
                description = describe_worths(component, names)
            components.append({"weight": float(self.weights[number]), **description})
        return {"components": components}

    def sample(self, num_samples: int, streams: StepStreams | None = None, seed: int = 0) -> Tensor:
        """Draw orders of all items, int64 [num_samples, n].

        Args:
            num_samples: how many.
            streams: of random numbers; None makes them from the seed.
            seed: without streams.
        """
        if streams is None:
            streams = SampleStreams(seed, torch.arange(num_samples)).step(0)
        u = streams.next_draw().uniform((num_samples, 1))
        index = torch.searchsorted(self.weights.cumsum(0)[:-1], u.double())
        size = Size([num_samples])
        orders = torch.stack([component.sample(size, streams) for component in self.components], 1)
        return orders[torch.arange(num_samples), index.squeeze(1)]

    @classmethod
    def fit(
        cls,
        orders: Tensor,
        family: type[Mallows | PlackettLuce],
        num_components: int,
        num_items: int | None = None,
    ) -> Mixture:
        """Fit a mixture by expectation-maximisation.

        The best of several starts, with components about distant orders of the data, is continued.
        Each iteration of Plackett-Luce takes steps of Hunter's algorithm, with a pseudo-count of
        0.1 for every win and loss.

        Args:
            orders: int64 [N, m]; the first 4,000 at most are used.
            family: of the components; Mallows orders all items, Plackett-Luce any m of them.
            num_components: at least 1.
            num_items: total; None for m.

        Raises:
            ValueError: no components, no orders, or orders with an item twice or out of range, or
                of some items only for Mallows.

        References: Dempster et al. 1977; Hunter 2004; Arthur and Vassilvitskii 2007.
        """
        ensure(num_components >= 1, f"a mixture has at least one component, not {num_components}")
        orders, n = _check_orders(orders, family, num_items)
        rng = np.random.default_rng(0)
        max_orders = min(MAX_FITTED_ORDERS, MAX_PAIR_INDICATORS // n**2)
        data = orders[: max(MIN_FITTED_ORDERS, max_orders)].cpu().numpy()
        pairs = _pair_indicators(data, n)
        step = _mallows_step if family is Mallows else _plackett_luce_step
        # 1. short runs from several starts
        num_starts = 1 if num_components == 1 else NUM_STARTS
        starts = [_distant_start(pairs, n, num_components, rng) for _ in range(num_starts)]
        trials = [
            _maximise_expectation(data, pairs, n, step, start, NUM_TRIAL_ITERATIONS)
            for start in starts
        ]
        # 2. a long run from the best of them
        responsibilities, _, _ = max(trials, key=lambda trial: trial[2])
        responsibilities, components, _ = _maximise_expectation(
            data, pairs, n, step, responsibilities, NUM_ITERATIONS
        )
        return cls(torch.from_numpy(responsibilities.mean(0)), components)

    @classmethod
    def choose(
        cls,
        orders: Tensor,
        validation: Tensor,
        family: type[Mallows | PlackettLuce],
        num_items: int | None = None,
    ) -> Mixture:
        """Fit mixtures of 1, 2, 3, ... components, and return the best on validation orders.

        It stops when three numbers in a row are no better, or when there is a component for every
        order.

        Args:
            orders: as for `fit`.
            validation: orders for the choice, int64 [M, m].
            family: as for `fit`.
            num_items: as for `fit`.

        Raises:
            ValueError: see `fit`; or no validation orders.

        References: this project; checked in tests/permutations/distributions/test_mixture.py.
        """
        validation, _ = _check_orders(validation, family, num_items)
        best = cls.fit(orders, family, 1, num_items)
        best_score = float(best.log_prob(validation).mean())
        best_number = 1
        number = 1
        while number < len(orders) and number - best_number < PATIENCE:
            number += 1
            mixture = cls.fit(orders, family, number, num_items)
            score = float(mixture.log_prob(validation).mean())
            if score > best_score:
                best = mixture
                best_score = score
                best_number = number
        return best


def _check_orders(orders: Tensor, family: type, num_items: int | None) -> tuple[Tensor, int]:
    """Return orders int64 [N, m] as a tensor, and the number of items n.

    Raises:
        ValueError: see `Mixture.fit`.
    """
    orders = torch.as_tensor(orders)
    n = num_items or orders.shape[-1]
    if not orders.numel() or orders.ndim != 2 or (family is Mallows and n != orders.shape[1]):
        raise ValueError(f"orders [N, m] of all {n} items are needed, not {list(orders.shape)}")
    rows = orders.sort(1).values
    in_range = not orders.is_floating_point() and int(rows.min()) >= 0 and int(rows.max()) < n
    ensure(
        in_range and bool((rows.diff() > 0).all()),
        f"each order must name different items of 0..{n - 1} once",
    )
    return orders, n


def _pair_indicators(orders: np.ndarray, n: int) -> np.ndarray:
    """Return whether each order has item a before item b, float32 [N, n * n].

    Orders [N, m] may be partial. The entry of a pair is 0 if one of its items is missing.
    """
    ranks = np.full((len(orders), n), n)
    np.put_along_axis(ranks, orders, np.arange(orders.shape[1])[None], 1)
    before = (ranks[:, :, None] < ranks[:, None, :]) & (ranks < n)[:, None, :]
    return before.reshape(len(orders), -1).astype(np.float32)


def _distant_start(
    pairs: np.ndarray, n: int, num_components: int, rng: np.random.Generator
) -> np.ndarray:
    """Return initial responsibilities of mixture components, [N, num_components].

    The centres of the components are orders drawn far from each other (k-means++).

    Args:
        pairs: indicators [N, n * n].
        n: items.
        num_components: how many.
        rng: source of random numbers.

    References: Arthur and Vassilvitskii 2007.
    """
    distances: list[np.ndarray] = []
    probabilities = np.full(len(pairs), 1 / len(pairs))
    for _ in range(num_components):
        centre = pairs[rng.choice(len(pairs), p=probabilities)].reshape(n, n)
        distances.append(pairs @ centre.T.ravel())
        nearest = np.minimum.reduce(distances).astype(np.float64) + 1e-9
        probabilities = nearest / nearest.sum()
    nearest = np.minimum.reduce(distances)
    weights = np.exp(nearest[:, None] - np.stack(distances, 1).astype(np.float64))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def _maximise_expectation(
    orders: np.ndarray,
    pairs: np.ndarray,
    n: int,
    step: MaximisationStep,
    responsibilities: np.ndarray,
    num_iterations: int,
) -> tuple[np.ndarray, list[Any], float]:
    """Run expectation-maximisation until the log-likelihood gains less than 1e-4 nats per order.

    Args:
        orders: [N, m].
        pairs: indicators [N, n * n].
        n: items.
        step: maximisation step of a component.
        responsibilities: [N, K].
        num_iterations: at most.

    Returns:
        Responsibilities, components, and the log-likelihood.

    References: Dempster et al. 1977.
    """
    components: list[Any] = [None] * responsibilities.shape[1]
    log_likelihood = -math.inf
    for _ in range(num_iterations):
        # 1. maximisation
        fits = [
            step(orders, pairs, n, weights, component)
            for weights, component in zip(responsibilities.T, components, strict=True)
        ]
        components = [component for component, _ in fits]
        # 2. expectation
        log_weights = np.log(responsibilities.mean(0) + 1e-12)
        joint = np.stack([log_probs for _, log_probs in fits], 1) + log_weights
        marginal = np.logaddexp.reduce(joint, axis=1)
        responsibilities = np.exp(joint - marginal[:, None])
        previous = log_likelihood
        log_likelihood = float(marginal.sum())
        if log_likelihood - previous < MIN_GAIN * len(orders):
            break
    return responsibilities, components, log_likelihood


def _mallows_step(
    orders: np.ndarray, pairs: np.ndarray, n: int, weights: np.ndarray, component: Mallows | None
) -> tuple[Mallows, np.ndarray]:
    """Return the Mallows distribution of weighted orders, and the log-probability of every order.

    It is `Mallows.fit` with weights [N], the maximisation step of Dempster et al. 1977.
    """
    wins = (weights.astype(np.float32) @ pairs).reshape(n, n).astype(np.float64)
    if component is None or component.reference is None or n <= MAX_EXACT_CENTRE:
        centre = np.array(kemeny_order(wins))
    else:
        centre = np.array(improve_order(wins, component.reference.tolist()))
    ranks = centre.argsort()
    distance = pairs @ (ranks[:, None] > ranks[None]).astype(np.float32).ravel()
    log_phi = log_phi_of_distance(n, float(weights @ distance / max(weights.sum(), 1e-12)))
    log_normaliser = np.logaddexp.accumulate(log_phi * np.arange(n)).sum()
    fit = Mallows(n, math.exp(log_phi), torch.from_numpy(centre))
    return fit, log_phi * distance - log_normaliser


def _plackett_luce_step(
    orders: np.ndarray,
    pairs: np.ndarray,
    n: int,
    weights: np.ndarray,
    component: PlackettLuce | None,
) -> tuple[PlackettLuce, np.ndarray]:
    """Fit a Plackett-Luce distribution to weighted orders [N, m], from the present component.

    Return it, and the log-probability of every order under it, [N].

    The worth of an item is its wins, divided by the sum over its choices of 1 / the total worth of
    the alternatives. Worths have mean 1.

    References: Hunter 2004.
    """
    m = orders.shape[1]
    worths = np.ones(n) if component is None else component.scores.exp().numpy()
    wins = np.bincount(orders[:, :-1].ravel(), np.repeat(weights, m - 1), n) + PSEUDO_COUNT
    for _ in range(HUNTER_STEPS):
        total_worth = worths[orders][:, ::-1].cumsum(1)[:, ::-1]  # of the items left
        inverse_totals = np.append(1 / total_worth[:, :-1], np.zeros((len(orders), 1)), 1)
        exposure = weights[:, None] * np.cumsum(inverse_totals, 1)
        worths = wins / (np.bincount(orders.ravel(), exposure.ravel(), n) + PSEUDO_COUNT)
        worths = worths / worths.mean()
    order_worths = worths[orders]
    probabilities = order_worths / order_worths[:, ::-1].cumsum(1)[:, ::-1]
    return PlackettLuce(torch.from_numpy(np.log(worths))), np.log(probabilities).sum(1)

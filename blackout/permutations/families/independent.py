"""Classical families whose code has independent digits: one pass of a model on that code is enough for them."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Size, Tensor

from blackout.permutations.codes import Code, FisherYates, Insertion, Lehmer
from blackout.permutations.distributions.base import OrderDistribution, best, check_k
from blackout.permutations.distributions.beam import best_digits
from blackout.permutations.families.consensus import consensus
from blackout.permutations.group import is_permutation
from blackout.random import RandomSource, cumulative


class IndependentDigits(OrderDistribution):
    """A product over the digits of a code.

    Args:
        log_weights: [..., n, n], digit i over its values, not normalised; outside the support they are not looked at.
        reference: the order relative to which orders are coded, int64 [n]; None is 0, 1, 2, ...

    Raises:
        ValueError: the reference is no order of n items.
    """

    code: ClassVar[type[Code]]

    def __init__(self, log_weights: Tensor, reference: Tensor | None = None) -> None:
        n = log_weights.shape[-1]
        super().__init__(log_weights.shape[:-2], n, None, False)
        if reference is not None and (reference.shape != (n,) or not bool(is_permutation(reference))):
            raise ValueError(f"the reference must be an order of the items 0..{n - 1}")
        self.reference = reference
        outside = ~self.code.support(n, log_weights.device)
        self.digit_log_probs = log_weights.double().masked_fill(outside, -math.inf).log_softmax(-1)
        """Of every digit's values, float64 [*batch, n, n]."""

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], float64.

        Raises:
            ValueError: a value is no permutation.
        """
        digits = self.code.encode(value, self.reference)
        shape = torch.broadcast_shapes(digits.shape[:-1], self.batch_shape)
        table = self.digit_log_probs.expand(*shape, self._n, self._n)
        return table.gather(-1, digits.expand(*shape, self._n).unsqueeze(-1)).squeeze(-1).sum(-1)

    @torch.no_grad()
    def sample(self, sample_shape: Size = Size(), generator: RandomSource = None) -> Tensor:  # type: ignore[override]
        """Orders int64 [*sample_shape, *batch, n]."""
        u = self._uniform(tuple(sample_shape), (self._n,), generator, self.digit_log_probs)
        rows = u.reshape(-1, *self.batch_shape, self._n).movedim(0, -1).contiguous()
        digits = torch.searchsorted(cumulative(self.digit_log_probs.exp()), rows, right=True)
        return self.code.decode(digits.movedim(-1, 0).reshape(u.shape), self.reference)

    @torch.no_grad()
    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable orders, exactly."""
        check_k(k)
        digits, log_probs = best_digits(self.digit_log_probs, k)
        possible = (log_probs > -math.inf).unsqueeze(-1)
        certain = self.digit_log_probs.argmax(-1).unsqueeze(-2)  # in place of digits outside the support
        return best(self.code.decode(torch.where(possible, digits, certain), self.reference), log_probs, k)

    def _moments(self, statistic: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the sum over digits i of statistic[i, c_i], [*batch] each."""
        p = self.digit_log_probs.exp()
        mean = (p * statistic).sum(-1)
        return mean.sum(-1), ((p * statistic**2).sum(-1) - mean**2).sum(-1)


class Mallows(IndependentDigits):
    """phi^d / Z, d the Kendall distance of an order from the centre (Mallows 1957).

    With weights, phi^(sum of w_i L_i), L the Lehmer digits of the order relative to the centre: the digits of place i
    have their own spread phi^w_i (Fligner & Verducci 1986).

    Args:
        n: items.
        phi: not negative, a number or a tensor [...]: 0 is the centre alone, 1 uniform.
        centre: an order int64 [n]; None is 0, 1, 2, ...
        weights: not negative, [n], by place; None is all 1.

    Raises:
        ValueError: n < 1, a negative phi or weight, weights or a centre that do not fit.
    """

    code = Lehmer

    def __init__(
        self, n: int, phi: float | Tensor, centre: Tensor | None = None, weights: Tensor | None = None
    ) -> None:
        _check_size(n)
        self.phi = torch.as_tensor(phi, dtype=torch.float64)
        self.weights = torch.ones(n, dtype=torch.float64) if weights is None else weights.double()
        if not bool(((self.phi >= 0) & self.phi.isfinite()).all()):
            raise ValueError(f"phi must be a number that is not negative, not {phi}")
        if self.weights.shape != (n,) or not bool((self.weights >= 0).all()):
            raise ValueError(f"weights must be {n} numbers that are not negative")
        exponents = self.weights.to(self.phi.device).unsqueeze(-1) * torch.arange(n, device=self.phi.device)
        super().__init__(torch.special.xlogy(exponents, self.phi[..., None, None]), centre)

    @property
    def centre(self) -> Tensor:
        """The order of distance 0, int64 [n]."""
        return torch.arange(self._n) if self.reference is None else self.reference

    @property
    def distance_mean(self) -> Tensor:
        """Of the Kendall distance to the centre, [*batch]."""
        return self._moments(torch.arange(self._n, device=self.phi.device).double())[0]

    @property
    def distance_variance(self) -> Tensor:
        """Of the Kendall distance to the centre, [*batch]."""
        return self._moments(torch.arange(self._n, device=self.phi.device).double())[1]

    @classmethod
    def fit(cls, orders: Tensor, centre: Tensor | None = None) -> Mallows:
        """The maximum likelihood of orders [N, n], without weights.

        The centre, unless given, minimises the total distance (`consensus`: exactly to 14 items, above that a local
        minimum); phi makes the mean distance that of the data, which is where the likelihood, concave in log phi, is
        largest.

        Raises:
            ValueError: no orders, or all of them the reverse of a given centre (phi has no maximum).
        """
        n = orders.shape[-1]
        centre = consensus(orders) if centre is None else centre
        wanted = float(Lehmer.encode(orders, centre).sum(-1).double().mean())
        if wanted == 0:
            return cls(n, 0.0, centre)
        if wanted >= n * (n - 1) / 2:
            raise ValueError("all orders are the reverse of the centre: no phi is the most likely")
        least, most = -50.0, 50.0
        for _ in range(80):
            middle = (least + most) / 2
            low = float(cls(n, math.exp(middle)).distance_mean) < wanted
            least, most = (middle, most) if low else (least, middle)
        return cls(n, math.exp((least + most) / 2), centre)


class RepeatedInsertion(IndependentDigits):
    """Items go in one after another, item k at place v of the list so far with probability pi_k(v).

    Doignon, Pekec & Regenwetter (2004). Mallows is pi_k(v) proportional to phi^(k - v).

    Args:
        probabilities: [..., n, n], row k over v = 0..k.
        reference: the items in the order in which they go in, int64 [n]; None is 0, 1, 2, ...

    Raises:
        ValueError: rows that are no probabilities, or have some outside 0..k; a reference that does not fit.
    """

    code = Insertion

    def __init__(self, probabilities: Tensor, reference: Tensor | None = None) -> None:
        n = probabilities.shape[-1]
        if probabilities.ndim < 2 or probabilities.shape[-2] != n or n < 1:
            raise ValueError(f"probabilities must be [..., n, n], not {list(probabilities.shape)}")
        outside = probabilities.masked_select(~Insertion.support(n, probabilities.device))
        sums = probabilities.double().sum(-1)
        if bool((probabilities < 0).any()) or bool((outside != 0).any()) or bool(((sums - 1).abs() > 1e-5).any()):
            raise ValueError("row k must hold probabilities of the places 0..k, with sum 1, and 0 beyond")
        super().__init__(probabilities.double().log(), reference)

    @property
    def distance_mean(self) -> Tensor:
        """Of the Kendall distance to the reference, [*batch]."""
        return self._moments(self._inversions)[0]

    @property
    def distance_variance(self) -> Tensor:
        """Of the Kendall distance to the reference, [*batch]."""
        return self._moments(self._inversions)[1]

    @property
    def _inversions(self) -> Tensor:
        """k - v [n, n]: how many earlier items come after item k."""
        k = torch.arange(self._n, device=self.digit_log_probs.device).double()
        return k.unsqueeze(-1) - k

    @classmethod
    def fit(cls, orders: Tensor, reference: Tensor | None = None, prior: float = 0.0) -> RepeatedInsertion:
        """The maximum likelihood of orders [N, n] given the reference: how often items went in where.

        Args:
            prior: added to every count; 0 is the maximum likelihood.

        Raises:
            ValueError: no orders, or a negative prior.
        """
        if orders.ndim != 2 or not len(orders) or prior < 0:
            raise ValueError(
                f"orders [N, n], at least one, and prior >= 0 are needed, not {list(orders.shape)}, {prior}"
            )
        n = orders.shape[-1]
        digits = Insertion.encode(orders, reference)
        counts = torch.nn.functional.one_hot(digits, n).sum(0).double() + prior * Insertion.support(n, orders.device)
        return cls(counts / counts.sum(-1, keepdim=True), reference)


class Ewens(IndependentDigits):
    """theta^cycles / (theta (theta + 1) ... (theta + n - 1)) (Ewens 1972): independent digits of Fisher-Yates.

    Args:
        n: items.
        theta: not negative, a number or a tensor [...]: 1 is uniform, 0 uniform over the single cycles.

    Raises:
        ValueError: n < 1, or a negative theta.
    """

    code = FisherYates

    def __init__(self, n: int, theta: float | Tensor) -> None:
        _check_size(n)
        self.theta = torch.as_tensor(theta, dtype=torch.float64)
        if not bool(((self.theta >= 0) & self.theta.isfinite()).all()):
            raise ValueError(f"theta must be a number that is not negative, not {theta}")
        log_weights = torch.zeros(*self.theta.shape, n, n, dtype=torch.float64, device=self.theta.device)
        log_weights[..., :-1, 0] = self.theta.log().unsqueeze(-1)  # the last digit is 0 whatever theta
        super().__init__(log_weights)

    @property
    def cycles_mean(self) -> Tensor:
        """Of the number of cycles, [*batch]."""
        return self._moments(self._zeros)[0]

    @property
    def cycles_variance(self) -> Tensor:
        """Of the number of cycles, [*batch]."""
        return self._moments(self._zeros)[1]

    @property
    def _zeros(self) -> Tensor:
        """1 for a digit that is 0: it closes a cycle."""
        return (torch.arange(self._n, device=self.theta.device) == 0).double()


def _check_size(n: int) -> None:
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")

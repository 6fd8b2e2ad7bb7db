"""Upper bounds on -log p(X_0), in nats per sample, and bits per dimension.

Continuous time, tight when y is the exact conditional mean:

    -log p(X_0) <= int_0^inf dtau E sum_i [y_i - N_i + N_i log(N_i / y_i)],    dtau = q du,  0 log 0 = 0.

between the ends [-15, 15] of the logit u. Outside, up to 255, it has less than 1e-3 nats per element with a good model;
larger counts have ends further out, and what the ends cost is added:

    KL(Binomial(X_0, q_T) || Poisson(q_T E[X_0])) at the start,    y - N log y + log N! for the births of the last step.

Finite time: the sampler that takes Poisson(y r_k) births per step is a latent variable model with an exactly known
bound, the KL of its start and of each of its T steps; it falls to the continuous one as T grows. The paper has both up
to constants, with other weights [Santos 2023, eqs. 64 and 70; see `losses`]; as bounds they are ours
(tests/verification/test_likelihood_laws.py, test_end_laws.py).

Where entries of a sample are missing, what can be bounded is the likelihood of what was seen (`mask_missing_entries`).

At the end the estimates of each bound over images (`continuous_bits` and its like): means with standard errors, and
`strict_bits`, one of each image, to be compared with baselines.
Several processes share the images; all of them must call, and all get the same estimate.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from blackout.confidence_intervals import interval, spread
from blackout.counts import expand_time, per_sample
from blackout.diffusion.guidance import start_mean
from blackout.diffusion.predictions import NEVER, TINY, CountPrediction, Denoiser
from blackout.diffusion.processes import DiscreteTimeChain, FiniteProcess, JumpProcess, Process, PureDeath
from blackout.diffusion.schedules import (
    Schedule,
    half_width,
    logit_survival,
    missing_fraction,
    step_fraction,
    time_of_logit,
    widening,
)
from blackout.distributed import my_batches, sum_over_processes
from blackout.errors import ensure
from blackout.random import RandomSource, SampleStreams, fold_seed, low_discrepancy

LIMIT = half_width(15.0)
"""Logit of survival at the earliest time of a likelihood bound: the paper's grid spans as much."""
_WIDTH = 3.0
"""Of the logistic distribution of u that estimates of the continuous bound draw from.

Narrower ones leave out the tails, where a network errs most and one image in thousands then counts for hundreds."""
_IMPOSSIBLE = 1e-30
"""E[X_0] that stands for "never a unit": its logarithm is finite."""
LARGEST_TABLE = 4095
"""Largest count for which tables of E log D! are made."""
PAIRS = 2000
"""Pairs of times, over all images, from which on the mean of what is skewed has an interval that holds."""
_BATCH = 256
"""Images bounded together."""
_FINITE, _ENDS, _PATHS = 1001, 1002, 1003
"""Keys of the other bounds: not those of the first thousand repeats, nor of training, whose seed may be the same."""


def bits_per_dim(nats: Tensor, shape: tuple[int, ...]) -> Tensor:
    """nats per sample [B] -> bits per dimension [B] of a sample of `shape`: over log 2 and its elements.

    The unit of likelihoods of images [Uria 2014]; tested in tests/verification/test_likelihood_laws.py.
    """
    return nats / (math.prod(shape) * math.log(2))


@torch.no_grad()
def likelihood_bound(
    denoiser: Denoiser,
    process: Process,
    x0: Tensor,
    v: Tensor,
    generator: RandomSource = None,
    final_time: Tensor | None = None,
    mean: Tensor | None = None,
) -> Tensor:
    """One unbiased estimate per sample of the bound of any process. Ours (tests/verification/test_process_laws.py).

    The path's part (`path_bound`; for a chain `chain_bound`), plus the KL at the final time from where sampling starts,
    plus, for finite jump processes, -log P(X_0 | X_t) at the earliest time. Pure death adds what its ends cost
    (`end_bound`) for counts beyond 255; up to 255 it is left to the caller.

    Args:
        denoiser: (xt, t [B]) -> prediction.
        process: the forward process.
        x0: counts [B, ...].
        v: float64 [B] in (0, 1), where along the path each sample is observed; stratify it over the data set.
        final_time: where sampling starts from the prior and the path ends; None for logit survival -LIMIT, as always
            for pure death.
        mean: E[X_0], broadcastable to x0, of pure death's Poisson start.

    Returns:
        float64 [B], nats per sample.

    Raises:
        ValueError: pure death of counts beyond 255 without a mean.
    """
    if isinstance(process, DiscreteTimeChain):
        return chain_bound(denoiser, process, x0, v, generator)
    assert isinstance(process, JumpProcess)
    if isinstance(process, PureDeath):
        path = path_bound(denoiser, process, x0, v, generator, None)
        if not adds_ends(process):
            return path
        if mean is None:
            raise ValueError("the bound of counts beyond 255 needs the mean of the data")
        return path + end_bound(denoiser, process, x0, mean, generator)
    first, last = path_ends(process, final_time, x0.device)
    nats = path_bound(denoiser, process, x0, v, generator, final_time)
    nats = nats + per_sample(process.prior_divergence(x0, last))
    if not isinstance(process, FiniteProcess):
        return nats
    prediction = predicted(denoiser, process, process.sample(x0, first, generator), first.expand(len(x0)))
    return nats - per_sample(prediction.log_probs.double().gather(1, x0.long()[:, None]))


def path_bound(
    denoiser: Denoiser, process: JumpProcess, x0: Tensor, v: Tensor, generator: RandomSource, end: Tensor | None
) -> Tensor:
    """One unbiased estimate per sample of the path's part of the continuous-time bound of any jump process.

    Over types r of jumps, int dt E sum_r [kappa_r - lambda_r + lambda_r log(lambda_r / kappa_r)], dt = (1 - q) du,
    between logits of survival u at its `reach` and that of the end, else of minus its reach [Santos 2023, eqs. 64 and
    72, with their constants; Campbell 2022, Proposition 2]. For pure death what lies outside is below 4e-4 nats per
    element for 8-bit data, and the integrand dies out like e^-|u| on both sides, so u is drawn from a (wider) logistic
    distribution, see `proposal`. Of counts x0 [B, ...] and v [B], see `likelihood_bound`; float64 [B], nats.
    """
    limit, plateau = reach(process)
    u, density = proposal(v, -limit if end is None else float(logit_survival(end)), limit, plateau)
    t = time_of_logit(u)
    xt = process.sample(x0, t, generator)
    rates = process.rates(predicted(denoiser, process, xt, t).expected, xt, t)
    return torch.sigmoid(-u) / density * per_sample(rate_divergence(rates, process.reverse_rates(x0, xt, t)))


def chain_bound(
    denoiser: Denoiser, process: DiscreteTimeChain, x0: Tensor, v: Tensor, generator: RandomSource
) -> Tensor:
    """The KL of one of the chain's steps, times their number, and the prior's KL at its end. float64 [B], nats.

    [Austin 2021, eq. 1], with one step drawn by v.
    """
    steps = process.num_steps
    t = 1.0 + (v * steps).floor().clamp(max=steps - 1.0)
    xt = process.sample(x0, t, generator)
    path = steps * process.step_divergence(predicted(denoiser, process, xt, t).expected, x0, xt, t - 1, t)
    return per_sample(path + process.prior_divergence(x0, torch.tensor(float(steps))))


def rate_divergence(kappa: Tensor, rate: Tensor) -> Tensor:
    """kappa - lambda + lambda log(lambda / kappa) of rates [B, ...], float64 [B, ...], >= 0.

    [Campbell 2022, Proposition 2].
    """
    log_ratio = torch.log(rate.clamp(min=TINY)) - torch.log(kappa.clamp(min=TINY))
    return kappa - rate + rate * log_ratio


def proposal(v: Tensor, last: float, limit: float, plateau: float) -> tuple[Tensor, Tensor]:
    """Logits u [B] of quantiles v [B] in (0, 1), and the density there: a logistic law cut to [last, limit].

    Ours (tests/verification/test_end_laws.py).

    With a plateau of half-width a, flat between -a and a and logistic beyond: of density

        [sigma((u + a) / w) - sigma((u - a) / w)] / 2a,

    because an element whose counts go up to M has something to tell at every logit between -log M and log M.
    """
    if plateau == 0:
        low, high = (1 / (1 + math.exp(-end / _WIDTH)) for end in (last, limit))
        u = _WIDTH * torch.logit(low + (high - low) * v)
        return u, torch.sigmoid(u / _WIDTH) * torch.sigmoid(-u / _WIDTH) / (_WIDTH * (high - low))
    a = plateau / _WIDTH
    ends, zero = torch.tensor([last, limit], dtype=torch.float64) / _WIDTH, torch.zeros(2, dtype=torch.float64)
    low, high = (torch.logaddexp(ends + a, zero) - torch.logaddexp(ends - a, zero)).tolist()
    reached = low + (high - low) * v
    # F = log(1 + e^(u/w + a)) - log(1 + e^(u/w - a)) is the distribution function times 2a; its inverse is
    # e^(u/w) = (e^F - 1) / (e^a - e^(F - a))
    u = _WIDTH * (torch.log(torch.expm1(reached)) - a - torch.log(-torch.expm1(reached - 2 * a)))
    return u, (torch.sigmoid(u / _WIDTH + a) - torch.sigmoid(u / _WIDTH - a)) / (_WIDTH * (high - low))


def reach(process: Process) -> tuple[float, float]:
    """Logit of survival at the earliest time of a bound, and half the width of where all times tell as much.

    Two numbers; ours (tests/verification/test_end_laws.py).

    Pure death of counts beyond 255 reaches further out by log(max_count / 255), and is flat over log(max_count) to
    either side.
    """
    wide = widening(process.max_count) if isinstance(process, PureDeath) else 0.0
    return LIMIT + wide, math.log(process.max_count) if wide > 0 else 0.0


def path_ends(process: Process, final_time: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """The earliest time of a bound, and the final one, else of minus the `reach`: float64, of `time_of_logit`."""
    limit, _ = reach(process)
    first, last = time_of_logit(torch.tensor([limit, -limit], dtype=torch.float64, device=device))
    return first, last if final_time is None else final_time


def predicted(denoiser: Denoiser, process: Process, xt: Tensor, t: Tensor) -> Any:
    """The prediction given X_t, of the process's kind.

    Raises:
        ValueError: it is of another kind.
    """
    prediction, kind = denoiser(xt, t), process.prediction
    if isinstance(prediction, kind):
        return prediction
    which = f"{type(process).__name__} needs a {kind.__name__}"
    raise ValueError(f"the likelihood bound of the process {which}, not the head's {type(prediction).__name__}")


def adds_ends(process: PureDeath) -> bool:
    """Whether the bound of these counts contains what its ends cost."""
    return widening(process.max_count) > 0


@torch.no_grad()
def end_bound(denoiser: Denoiser, process: PureDeath, x0: Tensor, mean: Tensor, source: RandomSource = None) -> Tensor:
    """What the ends of the continuous bound cost: KL of the Poisson start, and -log Poisson(N; y) of the last step.

    Ours (tests/verification/test_end_laws.py).

    Args:
        denoiser, process, x0, source: as for `likelihood_bound`; one evaluation at the earliest time.
        mean: E[X_0], broadcastable to x0.

    Returns:
        float64 [B], nats per sample, unbiased; infinite where what is missing was held to be impossible.
    """
    first, last = path_ends(process, None, x0.device)
    xt = process.sample(x0, first, source)
    prediction, missing = predicted(denoiser, process, xt, first.expand(len(x0))), x0.long() - xt.long()
    # -log Poisson(missing; y)
    n = missing.double()
    chosen = torch.where(n > 0, n * prediction.log_mean.double(), 0.0)
    return start_bound(process, x0, last, mean) + per_sample(prediction.expected - chosen + torch.lgamma(n + 1))


@torch.no_grad()
def step_bound(
    denoiser: Denoiser, process: PureDeath, x0: Tensor, s: Tensor, t: Tensor, generator: RandomSource = None
) -> Tensor:
    """E KL(q(X_s | X_0, X_t) || Poisson(y r) births), one draw of X_t per sample: one term of the finite-time bound.

    [Santos 2023, eqs. 69 and 70, with their constant.]

    Args:
        denoiser: (xt, t) -> prediction.
        process: pure death.
        x0: counts [B, ...].
        s, t: float64 scalars, a step of the grid.

    Returns:
        float64 [B], nats per sample.

    Raises:
        ValueError: max_count above 4095, for which the table of E log (N - D)! is too large.
    """
    xt = process.sample(x0, t, generator)
    prediction = predicted(denoiser, process, xt, t)
    missing = x0.long() - xt.long()
    constant = _births_constant(process.max_count, float(s), float(t)).to(x0.device)[missing]
    r = step_fraction(s, t)
    births = missing.double() * r
    cross = prediction.expected * r - births * (prediction.log_mean.double() + torch.log(r))
    return per_sample(constant + cross)


def start_bound(process: PureDeath, x0: Tensor, t: Tensor, mean: Tensor) -> Tensor:
    """KL(Binomial(X_0, q_T) || Poisson(q_T mean)), where sampling starts. Ours (tests/verification/test_end_laws.py).

    Elements whose mean over the data is 0 contribute 0 when they are 0 here, and infinity otherwise. Counts beyond
    4,095 get a bound on it: KL(Binomial(n, q) || Poisson(n q)) <= -log(1 - q) - q, about q^2 / 2, which is never more
    than 2.6 times as much (by enumeration).

    Args:
        process: pure death.
        x0: counts [B, ...].
        t: the final time.
        mean: E[X_0], broadcastable to x0.

    Returns:
        float64 [B], nats per sample.
    """
    t = torch.as_tensor(t, dtype=torch.float64)
    rate = (torch.exp(-t) * mean.double()).expand(x0.shape)
    expected = x0.double() * torch.exp(-t)
    if process.max_count > LARGEST_TABLE:
        surplus = torch.where(x0 > 0, -torch.log1p(-torch.exp(-t)) - torch.exp(-t), 0.0)
        divergence = torch.where(expected > 0, expected * torch.log(expected / rate), 0.0) + rate - expected
        return per_sample(surplus + divergence)
    # Poisson counts of rate q_T mean are the births of a step from an empty pixel, infinitely late
    constant = _births_constant(process.max_count, float(t), math.inf).to(x0.device)[x0.long()]
    return per_sample(constant + rate - torch.special.xlogy(expected, rate))


@lru_cache(maxsize=4096)
def _births_constant(max_count: int, s: float, t: float) -> Tensor:
    """-H(D) + E log D! for D ~ Binomial(N, r), the births of a step from t to s, float64 [max_count + 1] over N.

    Equals log N! - E log (N - D)! + N (r log r + (1 - r) log(1 - r)): what [Santos 2023, eq. 70] leaves out of eq. 69
    (tests/verification/test_likelihood_laws.py).
    """
    beyond = f"the finite-time bound needs max_count up to {LARGEST_TABLE}, not {max_count}: use the continuous one"
    ensure(max_count <= LARGEST_TABLE, beyond)
    step = torch.tensor([s, t], dtype=torch.float64)
    r, stays = step_fraction(*step), missing_fraction(*step)
    n = torch.arange(max_count + 1, dtype=torch.float64)
    log_factorial = torch.lgamma(n + 1)
    lost = (n[:, None] - n).clamp(min=0)  # of n rows, where as many as the column are kept
    log_ways = log_factorial[:, None] - log_factorial - torch.lgamma(lost + 1)
    pmf = torch.exp(log_ways + torch.special.xlogy(n, stays) + torch.special.xlogy(lost, r)).tril()
    both = torch.stack([r, stays])  # 0 where nothing is left at the final time
    entropy_rate = torch.special.xlogy(both, both).sum()
    return log_factorial - pmf @ log_factorial + n * entropy_rate


def fill_missing_with_mean(xt: Tensor, t: Tensor, seen: Tensor, mean: Tensor) -> Tensor:
    """What a network reads: X_t where seen, else what is expected of it, e^-t E[X_0], which tells it nothing.

    Ours (tests/diffusion/test_missing.py).

    Args:
        xt: counts [B, *shape].
        t: float64, a scalar or [B].
        seen: bool [B, *shape].
        mean: E[X_0], [*shape].

    Returns:
        float32 [B, *shape].
    """
    return torch.where(seen, xt.float(), torch.exp(-expand_time(t, xt)).float() * mean)


def mask_missing_entries(
    seen: Tensor | None, denoiser: Denoiser, start: Tensor, mean: Tensor
) -> tuple[Denoiser, Tensor, Tensor | float]:
    """What a likelihood bound needs in place of a denoiser and the start's mean, and the share [B] of entries it is of.

    Where X_0 is missing, and 0, nothing is predicted to be missing, so that every term of the bounds is 0 there. Ours
    (tests/diffusion/test_missing.py).

    Args:
        seen: bool [B, *shape]; None where all entries were.
        denoiser: of all entries.
        start: E[X_0] of where sampling starts, broadcastable to [B, *shape].
        mean: E[X_0], [*shape].
    """
    if seen is None:
        return denoiser, start, 1.0
    share = seen.double().flatten(1).mean(1).clamp(min=1 / seen[0].numel())

    def of_what_was_seen(xt: Tensor, t: Tensor) -> CountPrediction:
        """Predict states [B, *shape], with nothing missing where nothing was observed."""
        prediction = denoiser(fill_missing_with_mean(xt, t, seen, mean), t)
        assert isinstance(prediction, CountPrediction)
        log_mean = torch.where(seen, prediction.log_mean, NEVER)
        return dataclasses.replace(prediction, mean=torch.where(seen, prediction.mean, 0.0), log_mean=log_mean)

    return of_what_was_seen, torch.where(seen, start, _IMPOSSIBLE), share


@torch.no_grad()
def path_log_weights(
    denoiser: Denoiser, process: PureDeath, times: Tensor, x0: Tensor, mean: Tensor, streams: SampleStreams
) -> Tensor:
    """log p(X_0, path) - log q(path | X_0) of one forward path per sample, by T evaluations [Burda 2016].

    Births of p are Poisson(y r), of q binomial [Santos 2023, eq. 53];
    checked in tests/verification/test_weighted_paths.py.

    Births are not clipped at max_count here, as in the finite-time bound: what the sampler clips only adds to p(X_0).

    Args:
        denoiser: (xt, t) -> prediction.
        process: pure death.
        times: the sampler's grid, float64 [T + 1], from 0.
        x0: counts [B, ...].
        mean: E[X_0], broadcastable to x0, of the Poisson start.
        streams: of the samples; step k draws from `streams.at(k)`.

    Returns:
        float64 [B], nats; -inf where a path has births that the network holds to be impossible.
    """
    # the factorials of Poisson births and of the ways to die cancel but for those of X_0
    total, x = -per_sample(torch.lgamma(x0.double() + 1)), x0
    for k in range(1, len(times)):
        s, t = times[k - 1], times[k]
        xt = process.sample(x, t - s, streams.at(k))
        births, r = (x.long() - xt.long()).double(), step_fraction(s, t)
        prediction = predicted(denoiser, process, xt, t)
        log_rate = prediction.log_mean.double() + torch.log(r)
        chosen = torch.where(births > 0, births * (log_rate - torch.log(-torch.expm1(s - t))), 0.0)
        total = total + per_sample(chosen - prediction.expected * r + xt.double() * (t - s))
        x = xt
    rate = (torch.exp(-times[-1]) * mean.double()).expand(x0.shape)
    return total + per_sample(torch.special.xlogy(x.double(), rate) - rate)


@torch.no_grad()
def weighted_path_bound(
    denoiser: Denoiser, process: PureDeath, times: Tensor, x0: Tensor, mean: Tensor, streams: list[SampleStreams]
) -> Tensor:
    """One estimate per sample of the bound by as many paths as there are streams: float64 [B], nats [Burda 2016].

    The sampler is a latent variable model: its latent variables are the states of a path, its proposal is the forward
    process. With log w = log p(path) - log q(path | X_0) of K forward paths

        -log p(X_0) <= -E log (1/K sum_k w_k),

    which falls with K and ends at -log p(X_0) itself [Burda 2016, Theorem 1]: a network that is wrong in a way that
    paths can make up for is bounded more tightly than by the mean of -log w, which is the finite-time bound.
    """
    weights = [path_log_weights(denoiser, process, times, x0, mean, mine) for mine in streams]
    return math.log(len(weights)) - torch.logsumexp(torch.stack(weights), 0)


class Bounded(Protocol):
    """What a bound asks of a model, `blackout.diffusion.BlackoutDiffusion`."""

    process: Process
    schedule: Schedule
    mean: Tensor
    class_mean: Tensor | None

    def denoiser(self, classes: Tensor | None = None) -> Denoiser:
        """(xt, t) -> prediction, given classes [B] or None."""


@dataclass(frozen=True)
class Estimate:
    """A mean over n images, its standard error and its 95 % interval (`interval`), in bits per dimension."""

    value: float
    standard_error: float
    n: int
    low: float
    high: float

    @staticmethod
    def of(nats: Tensor, shape: tuple[int, ...], place: Tensor | None = None) -> Estimate:
        """Mean, standard error and `interval` in bits of one estimate per image [n], in nats; `place` as for `spread`.

        Ours (tests/verification/test_likelihood_laws.py).
        """
        bits = bits_per_dim(nats.double(), shape)
        error = spread(bits, place) / math.sqrt(len(bits)) if len(bits) > 1 else math.inf
        return Estimate(float(bits.mean()), error, len(bits), *interval(bits, place))


def continuous_bits(
    module: Bounded, counts: Tensor, repeats: int | None = None, seed: int = 0, labels: Tensor | None = None
) -> Estimate:
    """The mean of `continuous_nats` over images in bits; its standard error is that of images whose times are close.

    Arguments are those of `continuous_nats`.
    """
    nats = continuous_nats(module, counts, repeats, seed, labels)
    return Estimate.of(nats, counts.shape[1:], low_discrepancy(torch.arange(len(counts))))


def continuous_nats(
    module: Bounded, counts: Tensor, repeats: int | None = None, seed: int = 0, labels: Tensor | None = None
) -> Tensor:
    """`likelihood_bound` of every image, float64 [n]: an upper bound in the mean; see there for its source.

    Each image is observed at `repeats` pairs of antithetic times v and 1 - v; over images, v follows a Weyl sequence,
    which covers the times evenly.

    Args:
        module: the model, in eval mode.
        counts: integer counts [n, *shape].
        repeats: pairs of network evaluations per image; None for as many as make `PAIRS`.
        labels: class of each image, int64 [n], for -log p(x | class) as validation bounds it; None for -log p(x).
    """
    pairs, end = repeats or math.ceil(PAIRS / len(counts)), module.schedule.times[-1]

    def bound(denoiser: Denoiser, x0: Tensor, mean: Tensor, index: Tensor) -> Tensor:
        """`likelihood_bound` in nats [b] of images [b, *shape], the mean over pairs of times v and 1 - v."""
        total = torch.zeros(len(x0), dtype=torch.float64, device=x0.device)
        for repeat in range(pairs):
            v = low_discrepancy(index + repeat * len(counts))
            for half, times in enumerate((v, 1 - v)):
                streams = SampleStreams(fold_seed(seed, repeat, half), index).at(0)
                nats = likelihood_bound(denoiser, module.process, x0, times, streams, final_time=end, mean=mean)
                total += nats / (2 * pairs)
        return total

    return _of_images(module, counts, labels, bound)


_Bound: TypeAlias = Callable[[Denoiser, Tensor, Tensor, Tensor], Tensor]
"""(denoiser, x0 [b, *shape], E[X_0], numbers of the images, int64 [b]) -> nats [*parts, b]."""


def _of_images(module: Bounded, counts: Tensor, labels: Tensor | None, bound: _Bound, *parts: int) -> Tensor:
    """A bound of every image in nats, float64 [*parts, n]; given their classes, or not.

    Args:
        bound: see `_Bound`.
        parts: of the bound, if it has any.
    """
    total = torch.zeros(*parts, len(counts), dtype=torch.float64)
    for index in my_batches(len(counts), _BATCH):
        denoiser, mean, here = module.denoiser(), module.mean, index.to(module.mean.device)
        if labels is not None:
            classes = labels[index].to(module.mean.device)
            denoiser, mean = module.denoiser(classes), start_mean(module.mean, module.class_mean, classes)
        total[..., index] = bound(denoiser, counts[index].to(module.mean.device), mean, here).cpu()
    return sum_over_processes(total)


def end_bits(module: Bounded, counts: Tensor, seed: int = 0, labels: Tensor | None = None) -> Estimate | None:
    """The mean of `end_nats` over images in bits; None for processes other than pure death."""
    nats = end_nats(module, counts, seed, labels)
    return None if nats is None else Estimate.of(nats, counts.shape[1:])


def end_nats(module: Bounded, counts: Tensor, seed: int = 0, labels: Tensor | None = None) -> Tensor | None:
    """`end_bound` of every image: what the ends of the continuous bound of pure death cost; None for other processes.

    The continuous bound contains it for counts beyond 255 alone, see `likelihood_bound`. One evaluation per image.
    """
    process = module.process
    if not isinstance(process, PureDeath):
        return None

    def bound(denoiser: Denoiser, x0: Tensor, mean: Tensor, index: Tensor) -> Tensor:
        """`end_bound` in nats [b] of images [b, *shape]."""
        return end_bound(denoiser, process, x0, mean, SampleStreams(fold_seed(seed, _ENDS), index).at(0))

    return _of_images(module, counts, labels, bound)


def strict_bits(module: Bounded, counts: Tensor, nats: Tensor, labels: Tensor | None = None) -> Tensor | None:
    """Return upper bounds in bits per dimension of every image, float64 [n], from values of `likelihood_bound`.

    What the bound of pure death leaves out up to 255 counts (`end_bound`) is added.

    Args:
        module: the model, in eval mode.
        counts: integer counts [n, *shape].
        nats: of `likelihood_bound`, float64 [n].
        labels: class of each image, int64 [n], or None.

    Returns:
        None for processes whose bound lacks its last step: those on unbounded counts other than pure death.
    """
    process = module.process
    if isinstance(process, PureDeath):
        if not adds_ends(process):
            ends = end_nats(module, counts, labels=labels)
            assert ends is not None
            nats = nats + ends
    elif not isinstance(process, FiniteProcess | DiscreteTimeChain):
        return None
    return bits_per_dim(nats, counts.shape[1:])


def finite_time_bits(
    module: Bounded, counts: Tensor, num_steps: int, seed: int = 0, labels: Tensor | None = None
) -> dict[str, Estimate]:
    """The rigorous bound of pure death's Poisson sampler with `num_steps` steps of the model's schedule, and its parts.

    `start_bound` and `step_bound` over images, which say where they are from. It takes `num_steps` network evaluations
    per image.

    Args:
        module, counts, labels: as for `continuous_bits`.
        num_steps: T.

    Returns:
        `total`, and what it is the sum of: `start`, the divergence at the final time, `path`, and `last_step`, the
        births of the step to 0.

    Raises:
        ValueError: max_count is above 4095.
    """
    process, times = module.process, module.schedule.grid(num_steps)
    assert isinstance(process, PureDeath)

    def bound(denoiser: Denoiser, x0: Tensor, mean: Tensor, index: Tensor) -> Tensor:
        """`start_bound` and `step_bound` in nats [3, b] of images [b, *shape]: start, path and last step."""
        parts = torch.zeros(3, len(x0), dtype=torch.float64, device=x0.device)
        parts[0] = start_bound(process, x0, times[-1], mean)
        streams = SampleStreams(fold_seed(seed, _FINITE), index)
        for k in range(num_steps, 0, -1):
            parts[1 if k > 1 else 2] += step_bound(denoiser, process, x0, times[k - 1], times[k], streams.at(k))
        return parts

    start, path, last = _of_images(module, counts, labels, bound, 3)
    named = {"total": start + path + last, "start": start, "path": path, "last_step": last}
    return {name: Estimate.of(nats, counts.shape[1:]) for name, nats in named.items()}


def weighted_path_bits(
    module: Bounded, counts: Tensor, num_steps: int, paths: int, seed: int = 0, labels: Tensor | None = None
) -> Estimate:
    """The importance-weighted bound of pure death's Poisson sampler with `num_steps` steps, by `paths` paths per image.

    `weighted_path_bound` over images [Burda 2016], by `num_steps` x `paths` network evaluations each; arguments as for
    `continuous_bits`.
    """
    process, times = module.process, module.schedule.grid(num_steps)
    assert isinstance(process, PureDeath)

    def bound(denoiser: Denoiser, x0: Tensor, mean: Tensor, index: Tensor) -> Tensor:
        """`weighted_path_bound` in nats [b] of images [b, *shape]."""
        streams = [SampleStreams(fold_seed(seed, _PATHS, path), index) for path in range(paths)]
        return weighted_path_bound(denoiser, process, times, x0, mean, streams)

    return Estimate.of(_of_images(module, counts, labels, bound), counts.shape[1:])

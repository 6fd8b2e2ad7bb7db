"""Upper bounds on -log p(X_0), in nats per sample.

    likelihood_bound       of any process: `path_bound`, or `chain_bound` in discrete time
    end_bound              cost of the ends of the continuous bound
    step_bound             a step of the finite-time bound of pure death, with `start_bound`
    weighted_path_bound    the importance-weighted bound of pure death

Continuous time, tight when y is the exact conditional mean:

    -log p(X_0) <= int_0^inf dtau E sum_i [y_i - N_i + N_i log(N_i / y_i)],    dtau = q du,

between the ends [-15, 15] of the logit u. Outside, counts up to 255 have less than 1e-3 nats per
element with a good model; larger counts have ends further out, and the cost of the ends is added:

    KL(Binomial(X_0, q_T) || Poisson(q_T E[X_0])) at the start,
    y - N log y + log N! for the last step.

Finite time: the sampler that takes Poisson(y r_k) births per step is a latent variable model with
an exactly known bound, the KL of its start and of each of its T steps; it falls to the continuous
one as T grows.

Estimates over a data set are in `blackout.diffusion.likelihood_estimates`.

References: Santos et al. 2023, eqs. 64, 70 and 72, up to constants and with other weights (see
    `losses`); Campbell et al. 2022, Proposition 2; as bounds this project, checked in
    tests/verification/test_likelihood_bounds.py and tests/verification/test_time_grid_ends.py.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from blackout.counts import per_sample
from blackout.diffusion.grid_ends import extra_logits
from blackout.diffusion.predictions import TINY, Denoiser
from blackout.diffusion.processes import (
    DiscreteTimeChain,
    FiniteProcess,
    JumpProcess,
    Process,
    PureDeath,
)
from blackout.diffusion.survival import (
    half_width,
    logit_survival,
    missing_fraction,
    step_fraction,
    time_of_logit,
)
from blackout.errors import ensure
from blackout.random import RandomSource, SampleStreams

LIMIT = half_width(15.0)  # logit of survival at the earliest time of a bound: the paper's grid
# Scale of the logistic distribution of u from which times are drawn. Smaller scales leave out the
# tails, where a network errs most and one image in thousands then counts for hundreds.
PROPOSAL_SCALE = 3.0
LARGEST_TABLE = 4095  # largest count for which tables of E log D! are computed


def bits_per_dim(nats: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Convert nats per sample, [B], to bits per dimension of a sample of `shape`, [B].

    References: Uria et al. 2014.
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
    data_mean: Tensor | None = None,
) -> Tensor:
    """Estimate the likelihood bound of any process, unbiased, from one observation per sample.

    It is the path's part (`path_bound`; for a chain `chain_bound`), plus the KL at the final time
    from the distribution that sampling starts from, plus, for finite jump processes, -log P(X_0 |
    X_t) at the earliest time. For pure death of counts beyond 255 the cost of the ends is added
    (`end_bound`); up to 255 that is left to the caller.

    References: this project; checked in tests/verification/test_bounds_and_losses.py.

    Args:
        denoiser: (xt, t [B]) -> prediction.
        process: the forward process.
        x0: counts [B, ...].
        v: float64 [B] in (0, 1), where along the path each sample is observed; stratify it over the
            data set.
        generator: source of random numbers.
        final_time: where sampling starts from the prior and the path ends; None for logit survival
            -LIMIT, as always for pure death.
        data_mean: E[X_0], broadcastable to x0, of pure death's Poisson start.

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
        if not includes_ends(process):
            return path
        if data_mean is None:
            raise ValueError("the bound of counts beyond 255 needs data_mean, the mean of the data")
        return path + end_bound(denoiser, process, x0, data_mean, generator)

    first, last = path_ends(process, final_time, x0.device)
    nats = path_bound(denoiser, process, x0, v, generator, final_time)
    nats = nats + per_sample(process.prior_divergence(x0, last))
    if not isinstance(process, FiniteProcess):
        return nats
    xt = process.sample(x0, first, generator)
    prediction = predict(denoiser, process, xt, first.expand(len(x0)))
    return nats - per_sample(prediction.log_probs.double().gather(1, x0.long()[:, None]))


def predict(denoiser: Denoiser, process: Process, xt: Tensor, t: Tensor) -> Any:
    """Evaluate the denoiser, and check that its prediction is of the kind that the process needs.

    Raises:
        ValueError: it is of another kind.
    """
    prediction = denoiser(xt, t)
    kind = process.prediction
    if isinstance(prediction, kind):
        return prediction
    raise ValueError(
        f"the likelihood bound of the process {type(process).__name__} needs a {kind.__name__}, "
        f"not the head's {type(prediction).__name__}"
    )


# --- the path


def path_bound(
    denoiser: Denoiser,
    process: JumpProcess,
    x0: Tensor,
    v: Tensor,
    generator: RandomSource,
    end: Tensor | None,
) -> Tensor:
    """Estimate the integral over the path in the bound of a jump process, unbiased, per sample.

    Over types r of jumps,

        int dt E sum_r [kappa_r - lambda_r + lambda_r log(lambda_r / kappa_r)],    dt = (1 - q) du,

    between the ends of `bound_range`. For pure death the rest is below 4e-4 nats per element for
    8-bit data. The integrand decays like e^-|u| on both sides, so u is drawn from a (wider)
    logistic distribution, see `propose_logits`.

    References: Santos et al. 2023, eqs. 64 and 72, with their constants; Campbell et al. 2022,
        Proposition 2.

    Args:
        denoiser: (xt, t) -> prediction.
        process: in continuous time.
        x0: counts or levels [B, ...].
        v: uniforms [B] that choose the times.
        generator: source of random numbers.
        end: the final time; None for minus the limit of `bound_range`.

    Returns:
        float64 [B], nats.
    """
    limit, plateau = bound_range(process)
    last = -limit if end is None else float(logit_survival(end))
    u, density = propose_logits(v, last, limit, plateau)
    t = time_of_logit(u)
    xt = process.sample(x0, t, generator)
    model_rates = process.rates(predict(denoiser, process, xt, t).expected, xt, t)
    divergence = rate_divergence(model_rates, process.reverse_rates(x0, xt, t))
    return torch.sigmoid(-u) / density * per_sample(divergence)


def rate_divergence(kappa: Tensor, rate: Tensor) -> Tensor:
    """Return the KL rate kappa - lambda + lambda log(lambda / kappa) of true rates lambda.

    References: Campbell et al. 2022, Proposition 2.
    """
    log_ratio = torch.log(rate.clamp(min=TINY)) - torch.log(kappa.clamp(min=TINY))
    return kappa - rate + rate * log_ratio


def bound_range(process: Process) -> tuple[float, float]:
    """Return the range of logits over which a bound is integrated, and where it is flat.

    Returns:
        The largest logit of survival, and half the width of the plateau, on which all times
        contribute alike. For pure death of counts above 255, the range is wider by
        log(max_count / 255), and the plateau extends log(max_count) to either side.

    References: this project; checked in tests/verification/test_time_grid_ends.py.
    """
    extension = extra_logits(process.max_count) if isinstance(process, PureDeath) else 0.0
    plateau = math.log(process.max_count) if extension > 0 else 0.0
    return LIMIT + extension, plateau


def path_ends(
    process: Process, final_time: Tensor | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the earliest and the final time of a bound, float64 scalars.

    Args:
        process: whose `bound_range` has the earliest time.
        final_time: None for minus the limit of `bound_range`.
        device: of the times.
    """
    limit, _ = bound_range(process)
    logits = torch.tensor([limit, -limit], dtype=torch.float64, device=device)
    first, last = time_of_logit(logits)
    return first, last if final_time is None else final_time


def propose_logits(v: Tensor, last: float, limit: float, plateau: float) -> tuple[Tensor, Tensor]:
    """Draw logits u by inversion from the proposal on [last, limit], and return their density.

    With a plateau of half-width a it is flat between -a and a and logistic beyond, of density

        [sigma((u + a) / w) - sigma((u - a) / w)] / 2a,

    because an element whose counts go up to M changes at every logit between -log M and log M.

    References: this project; checked in tests/verification/test_time_grid_ends.py.

    Args:
        v: float64 [B] in (0, 1).
        last: smallest logit.
        limit: largest logit.
        plateau: a; 0 for a logistic distribution.

    Returns:
        u, density: float64 [B].
    """
    w = PROPOSAL_SCALE
    if plateau == 0:
        low = 1 / (1 + math.exp(-last / w))
        high = 1 / (1 + math.exp(-limit / w))
        u = w * torch.logit(low + (high - low) * v)
        density = torch.sigmoid(u / w) * torch.sigmoid(-u / w) / (w * (high - low))
        return u, density

    # F = log(1 + e^(u/w + a)) - log(1 + e^(u/w - a)) is the distribution function times 2a; its
    # inverse is e^(u/w) = (e^F - 1) / (e^a - e^(F - a))
    a = plateau / w
    ends = torch.tensor([last, limit], dtype=torch.float64) / w
    zero = torch.zeros(2, dtype=torch.float64)
    low, high = (torch.logaddexp(ends + a, zero) - torch.logaddexp(ends - a, zero)).tolist()
    mass = low + (high - low) * v
    u = w * (torch.log(torch.expm1(mass)) - a - torch.log(-torch.expm1(mass - 2 * a)))
    density = (torch.sigmoid(u / w + a) - torch.sigmoid(u / w - a)) / (w * (high - low))
    return u, density


def chain_bound(
    denoiser: Denoiser,
    process: DiscreteTimeChain,
    x0: Tensor,
    v: Tensor,
    generator: RandomSource,
) -> Tensor:
    """Estimate the bound of a chain in discrete time, float64 [B], nats: its steps and its end.

    One step, chosen by v, is multiplied by the number of steps.

    References: Austin et al. 2021, eq. 1.
    """
    steps = process.num_steps
    t = 1.0 + (v * steps).floor().clamp(max=steps - 1.0)
    xt = process.sample(x0, t, generator)
    expected = predict(denoiser, process, xt, t).expected
    path = steps * process.step_divergence(expected, x0, xt, t - 1, t)
    return per_sample(path + process.prior_divergence(x0, torch.tensor(float(steps))))


# --- the ends of pure death


def includes_ends(process: PureDeath) -> bool:
    """Return whether `likelihood_bound` adds `end_bound`: for counts above 255."""
    return extra_logits(process.max_count) > 0


@torch.no_grad()
def end_bound(
    denoiser: Denoiser,
    process: PureDeath,
    x0: Tensor,
    data_mean: Tensor,
    source: RandomSource = None,
) -> Tensor:
    """Return the part of the continuous bound outside its range: the start and the last step.

    It is the KL of the Poisson start, and -log Poisson(N; y) of the last step.

    References: this project; checked in tests/verification/test_time_grid_ends.py.

    Args:
        denoiser: (xt, t) -> prediction, which is evaluated once, at the earliest time.
        process: pure death.
        x0: counts [B, ...].
        data_mean: E[X_0], broadcastable to x0.
        source: of random numbers.

    Returns:
        float64 [B], nats per sample, unbiased; infinite for missing units that were predicted to be
        impossible.
    """
    first, last = path_ends(process, None, x0.device)
    xt = process.sample(x0, first, source)
    prediction = predict(denoiser, process, xt, first.expand(len(x0)))
    n = (x0.long() - xt.long()).double()
    log_power = torch.where(n > 0, n * prediction.log_mean.double(), 0.0)
    last_step = prediction.expected - log_power + torch.lgamma(n + 1)
    return start_bound(process, x0, last, data_mean) + per_sample(last_step)


def start_bound(process: PureDeath, x0: Tensor, t: Tensor, data_mean: Tensor) -> Tensor:
    """Return the KL of the Poisson start: KL(Binomial(X_0, q_T) || Poisson(q_T E[X_0])).

    Elements whose mean over the data is 0 contribute 0 when they are 0 here, and infinity
    otherwise. Counts beyond 4,095 get a bound on it: KL(Binomial(n, q) || Poisson(n q)) <= -log(1 -
    q) - q, about q^2 / 2, which is twice as much (by enumeration, for q up to 0.99).

    References: this project; checked in tests/verification/test_time_grid_ends.py.

    Args:
        process: pure death.
        x0: counts [B, ...].
        t: the final time.
        data_mean: E[X_0], broadcastable to x0.

    Returns:
        float64 [B], nats per sample.
    """
    t = torch.as_tensor(t, dtype=torch.float64)
    rate = (torch.exp(-t) * data_mean.double()).expand(x0.shape)
    expected = x0.double() * torch.exp(-t)
    if process.max_count > LARGEST_TABLE:
        surplus = torch.where(x0 > 0, -torch.log1p(-torch.exp(-t)) - torch.exp(-t), 0.0)
        poisson_divergence = torch.where(expected > 0, expected * torch.log(expected / rate), 0.0)
        return per_sample(surplus + (poisson_divergence + rate - expected))
    # Poisson(q_T E[X_0]) is the number of births of a step from an empty pixel, infinitely late
    table = births_constant(process.max_count, float(t), math.inf)
    constant = table.to(x0.device)[x0.long()]
    return per_sample(constant + rate - torch.special.xlogy(expected, rate))


# --- finite time


@torch.no_grad()
def step_bound(
    denoiser: Denoiser,
    process: PureDeath,
    x0: Tensor,
    s: Tensor,
    t: Tensor,
    generator: RandomSource = None,
) -> Tensor:
    """Estimate one term of the finite-time bound, E KL(q(X_s | X_0, X_t) || Poisson(y r) births).

    There is one draw of X_t per sample.

    References: Santos et al. 2023, eqs. 69 and 70, with their constant.

    Args:
        denoiser: (xt, t) -> prediction.
        process: pure death.
        x0: counts [B, ...].
        s: end of the step, a time of the grid, float64 scalar.
        t: the time of the grid after s, where the step begins, float64 scalar.
        generator: source of random numbers.

    Returns:
        float64 [B], nats per sample.

    Raises:
        ValueError: max_count above 4,095, for which the table of E log (N - D)! is too large.
    """
    xt = process.sample(x0, t, generator)
    prediction = predict(denoiser, process, xt, t)
    missing = x0.long() - xt.long()
    constant = births_constant(process.max_count, float(s), float(t)).to(x0.device)[missing]
    r = step_fraction(s, t)
    births = missing.double() * r
    log_rate = prediction.log_mean.double() + torch.log(r)
    return per_sample(constant + (prediction.expected * r - births * log_rate))


@lru_cache(maxsize=4096)
def births_constant(max_count: int, s: float, t: float) -> Tensor:
    """Return the part of `step_bound` without the network, -H(D) + E log D!, for every N.

    D ~ Binomial(N, r) are the births of a step from t to s. The value equals
    log N! - E log (N - D)! + N (r log r + (1 - r) log(1 - r)).

    References: Santos et al. 2023, eq. 69, of which eq. 70 leaves this out; checked in
        tests/verification/test_likelihood_bounds.py.

    Returns:
        float64 [max_count + 1], over N.

    Raises:
        ValueError: max_count above 4,095.
    """
    ensure(
        max_count <= LARGEST_TABLE,
        f"the finite-time bound needs max_count up to {LARGEST_TABLE}, not {max_count}: "
        "use the continuous one",
    )
    times = torch.tensor([s, t], dtype=torch.float64)
    r = step_fraction(*times)
    stay = missing_fraction(*times)
    n = torch.arange(max_count + 1, dtype=torch.float64)
    log_factorial = torch.lgamma(n + 1)
    # row N, column N - D
    born = (n[:, None] - n).clamp(min=0)
    log_ways = log_factorial[:, None] - log_factorial - torch.lgamma(born + 1)
    log_pmf = log_ways + torch.special.xlogy(n, stay) + torch.special.xlogy(born, r)
    pmf = torch.exp(log_pmf).tril()
    probabilities = torch.stack([r, stay])  # r is 0 where nothing is left at the final time
    entropy_rate = torch.special.xlogy(probabilities, probabilities).sum()
    return log_factorial - pmf @ log_factorial + n * entropy_rate


# --- importance weights


@torch.no_grad()
def path_log_weights(
    denoiser: Denoiser,
    process: PureDeath,
    times: Tensor,
    x0: Tensor,
    data_mean: Tensor,
    streams: SampleStreams,
) -> Tensor:
    """Return the log importance weight log p(X_0, path) - log q(path | X_0) of a random path.

    One path of the forward process is drawn per sample. It costs T network evaluations.

    Births of p are Poisson(y r), of q binomial. They are not clipped at max_count, as in the
    finite-time bound: clipping in the sampler only adds to p(X_0).

    References: Burda et al. 2016; Santos et al. 2023, eq. 53; checked in
        tests/verification/test_weighted_paths.py.

    Args:
        denoiser: (xt, t) -> prediction.
        process: pure death.
        times: the sampler's grid, float64 [T + 1], from 0.
        x0: counts [B, ...].
        data_mean: E[X_0], broadcastable to x0, of the Poisson start.
        streams: of the samples; step k draws from `streams.step(k)`.

    Returns:
        float64 [B], nats; -inf where a path has births that the network predicts to be impossible.
    """
    # the factorials of Poisson births and of the ways to die cancel but for those of X_0
    log_weight = -per_sample(torch.lgamma(x0.double() + 1))
    x = x0
    for k in range(1, len(times)):
        s = times[k - 1]
        t = times[k]
        xt = process.sample(x, t - s, streams.step(k))
        births = (x.long() - xt.long()).double()
        r = step_fraction(s, t)
        prediction = predict(denoiser, process, xt, t)
        log_rate = prediction.log_mean.double() + torch.log(r)
        log_ratio = births * (log_rate - torch.log(-torch.expm1(s - t)))
        log_births = torch.where(births > 0, log_ratio, 0.0)
        step_log_weight = log_births - prediction.expected * r + xt.double() * (t - s)
        log_weight = log_weight + per_sample(step_log_weight)
        x = xt
    rate = (torch.exp(-times[-1]) * data_mean.double()).expand(x0.shape)
    return log_weight + per_sample(torch.special.xlogy(x.double(), rate) - rate)


@torch.no_grad()
def weighted_path_bound(
    denoiser: Denoiser,
    process: PureDeath,
    times: Tensor,
    x0: Tensor,
    data_mean: Tensor,
    streams: list[SampleStreams],
) -> Tensor:
    """Estimate the importance-weighted bound from K paths per sample, float64 [B], nats.

    The sampler is a latent variable model: its latent variables are the states of a path, its
    proposal is the forward process. With log w = log p(path) - log q(path | X_0) of K forward paths

        -log p(X_0) <= -E log (1/K sum_k w_k),

    which falls with K to -log p(X_0) itself. A network whose errors paths can make up for is
    bounded more tightly than by the mean of -log w, which is the finite-time bound.

    References: Burda et al. 2016, Theorem 1.

    Args:
        denoiser: (xt, t) -> prediction.
        process: pure death.
        times: the sampler's grid, float64 [T + 1], from 0.
        x0: counts [B, ...].
        data_mean: E[X_0], broadcastable to x0, of the Poisson start.
        streams: of each of the K paths.
    """
    log_weights = [
        path_log_weights(denoiser, process, times, x0, data_mean, path_streams)
        for path_streams in streams
    ]
    return math.log(len(log_weights)) - torch.logsumexp(torch.stack(log_weights), 0)

"""Upper bounds on -log p(X_0) in continuous time and for chains, in nats per sample.

    likelihood_bound    of any process: `path_bound`, or `chain_bound` in discrete time
    end_bound           cost of the ends of the continuous bound of pure death

Continuous time, tight when y is the exact conditional mean:

    -log p(X_0) <= int_0^inf dtau E sum_i [y_i - N_i + N_i log(N_i / y_i)],    dtau = q du,

between the ends [-15, 15] of the logit u. Outside, counts up to 255 have less than 1e-3 nats per
element with a good model; larger counts have ends further out, and the cost of the ends is added:

    KL(Binomial(X_0, q_T) || Poisson(q_T E[X_0])) at the start,
    y - N log y + log N! for the last step.

The bounds of the Poisson sampler in finite time are in `blackout.diffusion.finite_time_bound`.
Estimates over a data set are in `blackout.diffusion.likelihood_estimates`.

References: Santos et al. 2023, eqs. 64, 70 and 72, up to constants and with other weights (see
    `losses`); Campbell et al. 2022, Proposition 2; as bounds this project, checked in
    tests/verification/test_likelihood_bounds.py and tests/verification/test_time_grid_ends.py.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blackout.counts import per_sample
from blackout.diffusion.finite_time_bound import start_bound
from blackout.diffusion.grid_ends import extra_logits
from blackout.diffusion.predictions import TINY, Denoiser, predict_statistic
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
    time_of_logit,
)
from blackout.random import RandomSource

LIMIT = half_width(15.0)  # logit of survival at the earliest time of a bound: the paper's grid
# Scale of the logistic distribution of u from which times are drawn. Smaller scales leave out the
# tails, where a network errs most and one image in thousands then counts for hundreds.
PROPOSAL_SCALE = 3.0


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
    prediction = predict_statistic(denoiser, process, xt, first.expand(len(x0)))
    return nats - per_sample(prediction.log_probs.double().gather(1, x0.long()[:, None]))


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
    model_rates = process.rates(predict_statistic(denoiser, process, xt, t).expected, xt, t)
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
    expected = predict_statistic(denoiser, process, xt, t).expected
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
    prediction = predict_statistic(denoiser, process, xt, first.expand(len(x0)))
    n = (x0.long() - xt.long()).double()
    log_power = torch.where(n > 0, n * prediction.log_mean.double(), 0.0)
    last_step = prediction.expected - log_power + torch.lgamma(n + 1)
    return start_bound(process, x0, last, data_mean) + per_sample(last_step)

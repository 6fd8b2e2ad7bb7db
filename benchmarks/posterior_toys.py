"""Posterior samplers on distributions that are known exactly; see benchmarks/posterior.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from benchmarks.exact_distributions import Chain, Dna, Motif, Ring, Synthetic, hellinger
from blackout.diffusion.predictions import CategoricalPrediction
from blackout.diffusion.processes import Uniform
from blackout.posterior import (
    Auto,
    Binomial,
    Camera,
    Function,
    Gaussian,
    Identity,
    Inpaint,
    InverseProblem,
    Matrix,
    Method,
    Poisson,
    Pool,
    Prior,
    Reward,
    SplitGibbs,
    anneal,
)
from blackout.posterior.gathered_samples import COST_COLUMNS
from blackout.posterior.likelihood_steps import HeatBath, Metropolis
from blackout.posterior.measurements import Measurements
from blackout.posterior.report import PosteriorOutputs
from blackout.posterior.rewards import Tilt
from blackout.random import SampleStreams
from blackout.verification.draws import count_states
from blackout.verification.toys import total_variation
from tests.verification.posterior_claims import cases

Row = dict[str, Any]


def synthetic(quick: bool) -> Iterator[Row]:
    """The grid with D = 2, 5, 10 elements.

    Compared are exact draws, the prior, and corrected and published chains of 50 sweeps of 10 D
    proposals.
    """
    number, sweeps = (100, 2) if quick else (10_000, 50)
    for elements in (2,) if quick else (2, 5, 10):
        model = Synthetic(elements)
        operator = Reward(Ring())
        prior = model.prior()
        streams = SampleStreams(1, torch.arange(number))
        problem = InverseProblem(operator, operator.noise, torch.ones(1, dtype=torch.float64))
        marginal = model.exact(Ring(), 1.0)
        chain = SplitGibbs(anneal(sweeps, 3.0, 0.01), "metropolis", 10 * elements, start="prior")
        published = replace(chain, levels=anneal(sweeps, prior.final_time, 1e-4), published=True)
        weights = torch.ones(number, 2, 50, dtype=torch.float64)
        perfect = Chain(marginal, marginal.expand(50, 50), 2).draw(weights, streams.step(0))
        samples = {
            "perfect draws": perfect,
            "prior": prior.draw(number, streams),
            "split Gibbs, corrected": chain.sample(prior, problem, number).samples,
            "split Gibbs, as published": published.sample(prior, problem, number).samples,
        }
        exact = torch.outer(marginal, marginal).numpy()
        for name, x in samples.items():
            x1, x2 = x[:, :2].double().T.numpy()
            frequencies = np.histogram2d(x1, x2, bins=50, range=[[-0.5, 49.5]] * 2)[0] / len(x)
            yield {
                "elements": elements,
                "method": name,
                "Hellinger": hellinger(frequencies, exact),
                "total variation": float(np.abs(frequencies - exact).sum() / 2),
            }


class Restarted(SplitGibbs):
    """The right potential, but Metropolis starts at z = x in every sweep."""

    def make_likelihood_step(self, prior: Any, problem: Any) -> HeatBath | Metropolis:
        step = super().make_likelihood_step(prior, problem)
        return replace(step, restarted=True) if isinstance(step, Metropolis) else step


def dna(quick: bool) -> Iterator[Row]:
    """The mean number of CG in 40 letters at scale 1.5: exactly 1.068, without a reward 0.254."""
    number, sweeps = (20, 2) if quick else (500, 100)
    model = Dna()
    operator = Motif((1, 2), 1.5)
    tilt = Tilt(operator.scale)
    problem = InverseProblem(operator, tilt, tilt.measurements((39,)))
    prior = model.prior()
    levels = anneal(sweeps, 3.0, 0.01)
    wide = anneal(max(2, sweeps // 4), prior.final_time, 1e-4)
    methods = {
        f"heat bath, {sweeps // 4} sweeps": SplitGibbs(anneal(max(1, sweeps // 4), 3.0, 0.01)),
        f"heat bath, {sweeps} sweeps": SplitGibbs(levels),
        f"200 proposals, {sweeps} sweeps": SplitGibbs(levels, "metropolis", 200),
        "the same, restarted at z = x": Restarted(levels, "metropolis", 200),
        f"published, 200 proposals, {len(wide)} sweeps": SplitGibbs(
            wide, published=True, proposals=200, start="prior"
        ),
    }
    for name, method in methods.items():
        words = operator(method.sample(prior, problem, number).samples.long()).sum(1)
        yield {
            "method": name,
            "mean CG": float(words.mean()),
            "standard error": float(words.std() / number**0.5),
        }


def processes(quick: bool) -> Iterator[Row]:
    """Distance to the posterior above that of exact draws, by process and number of sweeps.

    Two elements of four levels send photons from their weighted sum; reverse runs are exact.
    """
    number = 100 if quick else 10_000
    for sweeps in (2,) if quick else (15, 60, 240):
        for case in cases(separable=False):
            last = 0.05 if case.name == "pure death" else 0.01
            posterior_samples = SplitGibbs(anneal(sweeps, 3.0, last)).sample(
                case.prior, case.problem, number
            )
            posterior = case.toy.posterior
            exact_draws = np.random.default_rng(0).multinomial(number, posterior) / number
            distance = total_variation(
                count_states(posterior_samples.samples, 4) / number, posterior
            )
            excess = distance - total_variation(exact_draws, posterior)
            yield {
                "process": case.name,
                "sweeps": sweeps,
                "total variation": distance,
                "above the floor": excess,
            }


class Templates:
    """Four templates of 48 elements of eight levels, equal in pairs in the first half.

    With probability `share` an element has its template's level, otherwise a uniform one.
    """

    elements = 48
    process = Uniform(7)
    config: ClassVar[dict[str, Any]] = {}  # of a model that names nothing

    def __init__(self, seed: int, share: float = 0.7) -> None:
        generator = torch.Generator().manual_seed(seed)
        level = torch.randint(0, 8, (4, self.elements), generator=generator)
        level[1::2, : self.elements // 2] = level[::2, : self.elements // 2]
        # [template, element, level]
        self.probabilities = share * torch.eye(8, dtype=torch.float64)[level] + (1 - share) / 8
        self._generator = generator

    def truth(self) -> Tensor:
        """Return a draw, int64 [1, elements]."""
        template = int(torch.randint(0, 4, (1,), generator=self._generator))
        return torch.multinomial(self.probabilities[template], 1, generator=self._generator).T

    def prior(self) -> Prior:
        """Return the prior with the exact denoiser."""
        return Prior(self._denoise, self.process, (self.elements,))

    def _denoise(self, xt: Tensor, t: Tensor) -> CategoricalPrediction:
        forward = self.process.log_likelihood(xt, t).double().transpose(1, 2)  # [n, element, level]
        joint = self.probabilities.log() + forward[:, None]
        element_log_prob = joint.logsumexp(-1, keepdim=True)
        template = element_log_prob.sum(2, keepdim=True).log_softmax(1)
        return CategoricalPrediction(
            (joint - element_log_prob + template).logsumexp(1).transpose(1, 2)
        )


def faults(quick: bool) -> Iterator[Row]:
    """How often a warning names a planted failure, and a good case; five cases of a kind.

    Each case has eight samples. Where the operator may be wrong, `share` is high, since with a low
    share even the exact log p(y) does not reveal two of five. Such cases have sixteen samples,
    whose evaluations allow sixty draws of the model.
    """
    stuck = SplitGibbs((0.05,) * (8 if quick else 60), start="prior")
    number = torch.arange(Templates.elements)
    is_first_half = number < 24
    is_first_half_swapped = number.view(6, 8).T.flatten() < 24
    identity = Identity()
    normal = Gaussian(1.0)
    photons = Poisson(2.0)
    sums = Pool(2)
    pairs = Matrix(torch.eye(24).repeat(1, 2))
    camera = Camera(2.0, readout=0.5)
    ones = torch.rand(48, 48, generator=torch.Generator().manual_seed(0)).argsort(1) < 3
    subset = Matrix(ones.double())
    transposed = Matrix(ones.T.double())
    twice = Matrix(torch.eye(48).repeat(2, 1))
    mask_operators = (
        Inpaint(is_first_half),
        Inpaint(is_first_half_swapped),
        Matrix(torch.diag(is_first_half_swapped.double())),
    )
    failures = {
        "outlier": (identity, normal, identity, normal),
        "wrong operator": (sums, photons, pairs, photons),
        "wrong noise": (identity, normal, identity, Gaussian(3.0)),
        "stuck chains": (mask_operators[0], Gaussian(0.5), mask_operators[0], Gaussian(0.5)),
        "axes of the mask swapped": (
            mask_operators[0],
            Gaussian(0.5),
            mask_operators[2],
            Gaussian(0.5),
        ),
        "gain of 3 forgotten": (identity, camera, identity, replace(camera, gain=3.0)),
        "offset of 10 forgotten": (identity, camera, identity, replace(camera, offset=10.0)),
        "background of 4 forgotten": (identity, photons, identity, Poisson(2.0, 4.0)),
        "operator transposed": (subset, photons, transposed, photons),
        "12 of 48 dead": (identity, photons, Matrix(torch.diag((number >= 12).double())), photons),
        "saturated at 8": (identity, photons, identity, photons),
        "half from another model": (identity, normal, identity, normal),
        "less noise than said": (identity, normal, identity, Gaussian(0.2)),
        "too narrow a black box": (box := Function(subset), photons, box, photons),
    }
    correct = {
        "normal noise": (identity, normal),
        "photons": (identity, photons),
        "thinning": (identity, Binomial(0.5)),
        "sums": (sums, photons),
        "camera": (identity, camera),
        "mask": (mask_operators[1], Gaussian(0.5)),
        "sums of three": (subset, photons),
        "measured twice": (twice, normal),
    }
    for kind, (operator, noise, true_operator, true_noise) in (
        failures | {f"right, {name}": (*parts, *parts) for name, parts in correct.items()}
    ).items():
        num_cases = 1 if quick else 5
        num_named = 0
        for seed in range(num_cases):
            is_sharp = operator is sums or operator is subset or true_operator is not operator
            share, samples = (0.95, 16) if is_sharp else (0.7, 8)
            templates = Templates(seed, share)
            prior = templates.prior()
            truth = templates.truth()
            if kind == "half from another model":
                truth = torch.where(is_first_half, truth, Templates(seed + 100).truth())
            y = true_noise.draw(
                true_operator(truth.double()),
                SampleStreams(seed, torch.zeros(1, dtype=torch.int64)).step(0),
            )
            y[0, 3] += 30.0 * (kind == "outlier")
            y = y.clamp(max=8.0) if kind.startswith("saturated") else y
            method = (
                stuck
                if kind == "stuck chains"
                else Auto().resolve(prior, InverseProblem(operator, noise, y))
            )
            num_named += bool(
                warnings_of(
                    templates,
                    method,
                    Measurements(
                        operator,
                        noise,
                        prior.shape,
                        7,
                        torch.zeros(1, dtype=torch.int64),
                        lambda seed: None,
                        y,
                        "planted",
                    ),
                    samples,
                )
            )
        yield {"case": kind, "named": num_named, "of": num_cases}


def warnings_of(
    templates: Templates, method: Method, measurements: Measurements, samples: int
) -> list[str]:
    """Return the warnings that `sample.py` would give."""
    prior = templates.prior()
    problem = measurements.problem(0).select(torch.zeros(samples, dtype=torch.int64), (48,))
    posterior = method.sample(prior, problem, samples)
    sampling_run = SimpleNamespace(
        model=templates,
        method=method,
        measurements=measurements,
        num_samples=samples,
        cost=[],
        nfe=sum(sweep["network_evaluations"] for sweep in posterior.trace),
        draw_unconditional=lambda number, seed: prior.draw(
            number, SampleStreams(seed, torch.arange(number))
        ),
        perturb=lambda x, number, seed: prior.perturb(
            x, SampleStreams(seed, torch.arange(len(x))), number
        ),
    )
    outputs = PosteriorOutputs(sampling_run, 0)
    cost = torch.tensor(
        [[sweep[name] for name in COST_COLUMNS] for sweep in posterior.trace], dtype=torch.float64
    )
    arrays = {
        name: getattr(posterior, name)
        for name in ("samples", "log_likelihood", "chains", "num_repaired")
    }
    outputs.update({**arrays, "_cost": cost.expand(samples, -1, -1)}, torch.arange(samples))
    with TemporaryDirectory() as folder:
        return list(outputs.write(Path(folder))["warnings"])

"""Posterior samplers on laws that are known exactly; see benchmarks/posterior.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.exact_laws import Chain, Dna, Motif, Ring, Synthetic, hellinger
from blackout.laws.claims import histogram
from blackout.laws.toys import total_variation
from blackout.posterior import Measured, Reward, SplitGibbs, anneal
from blackout.posterior.split_gibbs import HeatBath, Metropolis
from blackout.random import SampleStreams
from tests.laws.posterior_claims import cases

Row = dict[str, Any]


def synthetic(quick: bool) -> Iterator[Row]:
    """The grid with D = 2, 5, 10: a floor, the prior, corrected and published chains of 50 sweeps of 10 D proposals."""
    number, sweeps = (100, 2) if quick else (10_000, 50)
    for elements in (2,) if quick else (2, 5, 10):
        model, operator = Synthetic(elements), Reward(Ring())
        prior, streams = model.prior(), SampleStreams(1, torch.arange(number))
        problem = Measured(operator, operator.noise, torch.ones(1, dtype=torch.float64))
        one = model.exact(Ring(), 1.0)
        chain = SplitGibbs(anneal(sweeps, 3.0, 0.01), "metropolis", 10 * elements, start="prior")
        published = replace(chain, levels=anneal(sweeps, prior.final_time, 1e-4), published=True)
        perfect = Chain(one, one.expand(50, 50), 2).draw(torch.ones(number, 2, 50, dtype=torch.float64), streams.at(0))
        drawn = {
            "perfect draws": perfect, "prior": prior.draw(number, streams),
            "split Gibbs, corrected": chain.sample(prior, problem, number).samples,
            "split Gibbs, as published": published.sample(prior, problem, number).samples,
        }  # fmt: skip
        exact = torch.outer(one, one).numpy()
        for name, x in drawn.items():
            found = np.histogram2d(*x[:, :2].double().T.numpy(), bins=50, range=[[-0.5, 49.5]] * 2)[0] / len(x)
            yield {
                "elements": elements, "method": name, "Hellinger": hellinger(found, exact),
                "total variation": float(np.abs(found - exact).sum() / 2),
            }  # fmt: skip


class Restarted(SplitGibbs):
    """The right potential, but Metropolis starts at z = x in every sweep."""

    def likelihood_step(self, prior: Any, problem: Any) -> HeatBath | Metropolis:
        step = super().likelihood_step(prior, problem)
        return replace(step, restarted=True) if isinstance(step, Metropolis) else step


def dna(quick: bool) -> Iterator[Row]:
    """The mean number of CG in 40 letters at scale 1.5, exactly 1.068 and without a reward .254."""
    number, sweeps = (20, 2) if quick else (500, 100)
    model, operator = Dna(), Motif((1, 2), 1.5)
    problem = Measured(operator, operator.noise, operator.noise.measurements((39,)))
    prior = model.prior()
    levels, wide = anneal(sweeps, 3.0, 0.01), anneal(max(2, sweeps // 4), prior.final_time, 1e-4)
    methods = {
        f"heat bath, {sweeps // 4} sweeps": SplitGibbs(anneal(max(1, sweeps // 4), 3.0, 0.01)),
        f"heat bath, {sweeps} sweeps": SplitGibbs(levels),
        f"200 proposals, {sweeps} sweeps": SplitGibbs(levels, "metropolis", 200),
        "the same, restarted at z = x": Restarted(levels, "metropolis", 200),
        f"published, 200 proposals, {len(wide)} sweeps": SplitGibbs(wide, published=True, proposals=200, start="prior"),
    }
    for name, method in methods.items():
        words = operator(method.sample(prior, problem, number).samples.long()).sum(1)
        yield {"method": name, "mean CG": float(words.mean()), "standard error": float(words.std() / number**0.5)}


def processes(quick: bool) -> Iterator[Row]:
    """Two elements of four levels, photons from their weighted sum, exact reverse runs: the distance to the posterior
    above that of as many exact draws, by process and number of sweeps.
    """
    number = 100 if quick else 10_000
    for sweeps in (2,) if quick else (15, 60, 240):
        for case in cases(separable=False):
            last = 0.05 if case.name == "pure death" else 0.01
            found = SplitGibbs(anneal(sweeps, 3.0, last)).sample(case.prior, case.problem, number)
            posterior = case.toy.posterior
            floor = np.random.default_rng(0).multinomial(number, posterior) / number
            off = total_variation(histogram(found.samples, 4) / number, posterior)
            above = off - total_variation(floor, posterior)
            yield {"process": case.name, "sweeps": sweeps, "total variation": off, "above the floor": above}

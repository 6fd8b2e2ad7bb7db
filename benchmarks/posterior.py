"""Posterior samplers side by side: `python -m benchmarks.posterior --what tasks --model runs/digits/<run_id>`.

`tasks`: every method and task; `ablations` of split Gibbs sampling; `speed` of its likelihood step; `synthetic`: the
grid of Chu et al. 2025, which needs no model. Results in docs/posterior.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import arguments, interleaved, report, summary
from blackout import load_model
from blackout.data import CountData
from blackout.diffusion.predictions import CategoricalPrediction
from blackout.diffusion.processes import PureDeath, Uniform
from blackout.posterior import (
    And,
    Binomial,
    Direct,
    Exact,
    Identity,
    InpaintBox,
    Measured,
    NoiseDenoise,
    Poisson,
    Pool,
    Prior,
    SplitGibbs,
    Xor,
    anneal,
)
from blackout.posterior.baselines import DPS, SMC, SVDD, NoPrior, Overwrite, PriorAlone
from blackout.posterior.chains import Method, Posterior
from blackout.posterior.couplings import Coupling
from blackout.posterior.diagnostics import psnr
from blackout.posterior.steps import make_step
from blackout.random import SampleStreams

Row = dict[str, Any]


class Bench:
    """A model, held-out truths and their measurements.

    Args:
        path: of the model.
        truths, samples: how many, and of each.
        data_dir: where its dataset is.
    """

    def __init__(self, path: str, truths: int, samples: int, data_dir: str) -> None:
        model = load_model(path)
        self.model, self.samples = model, samples
        self.largest = model.process.max_count
        sampler = model.sampler
        self.prior = Prior(
            model.denoiser(), model.process, model.shape, sampler.kernel, model.mean, model.times(sampler)
        )
        self.truths = _held_out(model, data_dir)[:truths]

    def tasks(self) -> dict[str, Measured]:
        """By name."""
        parts = (
            {"xor .5": (Xor(0.5), None), "and 4": (And(4.0), None)}
            if self.largest == 1
            else {"thinning .3": (Identity(), Binomial(0.3)), "pooled photons": (Pool(2), Poisson())}
        )
        box = InpaintBox((5, 19), (5, 24)) if self.largest == 1 else InpaintBox((2, 5), (1, 6))
        parts = {**parts, "box": (box, Exact())}
        made = {}
        for name, (operator, noise) in parts.items():
            noise = noise or operator.noise
            source = SampleStreams(5, torch.arange(len(self.truths))).at(0)
            made[name] = Measured(operator, noise, noise.draw(operator(self.truths.double()), source))
        return made

    def run(self, task: str, name: str, method: Method, problem: Measured, prior: Prior | None = None) -> Row:
        """One line of the table."""
        number = len(self.truths) * self.samples
        began, cpu = time.perf_counter(), time.process_time()
        with torch.no_grad(), self.model.sampler.evaluation.of(self.model.averaged):
            found = method.sample(prior or self.prior, problem, number)
        spent = {
            "ms": (time.perf_counter() - began) / number * 1e3,
            "cpu ms": (time.process_time() - cpu) / number * 1e3,
        }
        return {"task": task, "method": name, **self._quality(found, problem), **spent}

    def _quality(self, found: Posterior, problem: Measured) -> Row:
        x = problem.repaired(found.samples)
        truth = self.truths.repeat(self.samples, *[1] * (self.truths.ndim - 1))
        mean = x.double().view(self.samples, *self.truths.shape).mean(0)
        shape = tuple(x.shape[1:])
        seen = problem.operator.seen(shape)
        wrong = problem.operator(x.double()) != problem._rows(problem.operator(x.double()))
        wrong = wrong if seen is None else wrong & seen
        return {
            "PSNR": float(psnr(x, truth, self.largest).mean()),
            "of mean": float(psnr(mean, self.truths, self.largest).mean()),
            "mismatches": float(wrong.flatten(1).double().sum(1).mean()),
            "log L": float(problem.log_likelihood(x.double()).mean()),
            "NFE": sum(sweep["evaluations"] for sweep in found.trace),
        }  # fmt: skip


def _held_out(model: Any, data_dir: str) -> Tensor:
    from blackout.training.export import family_of

    source = family_of(model.config).source({"data_dir": data_dir}, model.config)
    assert isinstance(source, CountData)
    return source.test


def tasks(bench: Bench) -> Iterator[Row]:
    """Every method on every task it can solve."""
    last, quick = (0.02 if bench.largest == 1 else 0.2), len(bench.truths) < 4
    ladder = anneal(3 if quick else 60, 3.0, last)
    for task, problem in bench.tasks().items():
        methods: dict[str, Method] = {
            "prior": PriorAlone(), "no prior": NoPrior(2 if quick else 50), "sgdd": SplitGibbs(ladder),
            "noise-denoise": NoiseDenoise(moves=2 if quick else 60), "SVDD-PM": SVDD(2 if quick else 20),
            "SMC": SMC(2 if quick else 20, power=0.1 if bench.largest == 1 else 1.0),
        }  # fmt: skip
        if task.startswith("thinning"):
            methods["direct"] = Direct()
        if task == "box":
            methods["overwrite"] = Overwrite()
        if bench.largest > 1:
            methods["DPS"] = DPS()
        for name, method in methods.items():
            yield bench.run(task, name, method, problem)


def ablations(bench: Bench) -> Iterator[Row]:
    """Ladders, budgets and steps on the first two tasks."""
    sweeps = 3 if len(bench.truths) < 4 else 30
    for task, problem in list(bench.tasks().items())[:2]:
        for first, last in ((3.0, 0.2), (3.0, 0.02), (1.0, 0.02), (0.5, 0.5), (0.2, 0.2)):
            levels = anneal(sweeps, first, last)
            yield bench.run(task, f"levels {first:g} to {last:g}", SplitGibbs(levels), problem)
        levels = anneal(sweeps, 3.0, 0.1)
        for name, method in {
            "heat bath": SplitGibbs(levels), "Metropolis, persistent": SplitGibbs(levels, "metropolis"),
            "start: prior": SplitGibbs(levels, start="prior"),
            "published": SplitGibbs(anneal(sweeps, bench.prior.final_time, 1e-4), published=True, start="prior",
                                    proposals=2 * bench.truths[0].numel()),
        }.items():  # fmt: skip
            yield bench.run(task, name, method, problem)
        for per_logit in (0.5, 2.0):
            prior = replace(bench.prior, denoiser=bench.model.denoiser(), steps_per_logit=per_logit)
            yield bench.run(task, f"{per_logit:g} steps per logit", SplitGibbs(levels), problem, prior)


def speed(quick: bool) -> Iterator[Row]:
    """XOR on 1,024 pixels, 16 chains: one pass of the heat bath against as many proposals as there are pixels."""
    elements = 64 if quick else 1024
    shape = (1, elements // 32, 32)
    x = torch.randint(0, 2, (16, *shape), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    for process in (PureDeath(1), Uniform(1)):
        problem, streams = Measured(Xor(0.5), Xor(0.5).noise, Xor(0.5)(x[:1])), SampleStreams(0, torch.arange(16))
        steps = {
            "heat bath": make_step(problem, Coupling(process), shape, passes=1),
            "Metropolis": make_step(problem, Coupling(process), shape, "metropolis", elements),
        }
        cases = {name: partial(step, x, x, 0.5, streams) for name, step in steps.items()}
        timed = interleaved(cases, 1 if quick else 3, torch.device("cpu"))
        seconds = {name: summary(one)["median"] for name, one in timed.items()}
        times = seconds["Metropolis"] / seconds["heat bath"]
        yield {"process": type(process).__name__, **seconds, "times faster": times}


class Grid:
    """Independent elements of a normal law on 50 points of -5..5, and |x| near y: four modes in two dimensions."""

    y, centre, levels = 8.5, 24.5, 50

    def __init__(self, elements: int) -> None:
        weight = torch.exp(-(torch.linspace(-5, 5, self.levels, dtype=torch.float64) ** 2) / 8)
        self.p, self.elements, self.process = weight / weight.sum(), elements, Uniform(self.levels - 1)

    def log_likelihood(self, x: Tensor) -> Tensor:
        """-mean_i (|x_i - c| - y)^2 / 9."""
        return -(((x - self.centre).abs() - self.y) ** 2).mean(1) / 9

    def denoiser(self, xt: Tensor, t: Tensor) -> CategoricalPrediction:
        """Exact: elements are independent."""
        logits = self.process.log_likelihood(xt, t) + self.p.log().view(1, -1, 1)
        return CategoricalPrediction(torch.log_softmax(logits, 1))

    def errors(self, x: Tensor) -> tuple[float, float]:
        """Hellinger distance and total variation of the first two elements to the posterior of all of them."""
        level = torch.arange(self.levels, dtype=torch.float64)
        one = self.p * torch.exp(-(((level - self.centre).abs() - self.y) ** 2) / 9 / self.elements)
        exact = torch.outer(one, one).numpy() / float(one.sum()) ** 2
        found = np.histogram2d(*x[:, :2].double().T.numpy(), bins=self.levels, range=[[-0.5, 49.5]] * 2)[0] / len(x)
        return float(np.sqrt(max(0.0, 1 - np.sqrt(found * exact).sum()))), float(0.5 * np.abs(found - exact).sum())

    def perfect(self, number: int) -> Tensor:
        """Draws of the posterior: what any sampler's errors are to be compared with."""
        level = torch.arange(self.levels, dtype=torch.float64)
        one = self.p * torch.exp(-(((level - self.centre).abs() - self.y) ** 2) / 9 / self.elements)
        drawn = torch.multinomial(one, number * 2, replacement=True, generator=torch.Generator().manual_seed(0))
        return drawn.view(number, 2)


def synthetic(quick: bool) -> Iterator[Row]:
    """The grid with D = 2, 5, 10: a floor, the prior, corrected and published chains of 50 sweeps of 10 D proposals."""
    number, sweeps = (100, 2) if quick else (10_000, 50)
    for elements in (2,) if quick else (2, 5, 10):
        grid = Grid(elements)
        prior = Prior(grid.denoiser, grid.process, (elements,))
        chain = SplitGibbs(anneal(sweeps, 3.0, 0.01), "metropolis", 10 * elements, start="prior")
        published = replace(chain, levels=anneal(sweeps, prior.final_time, 1e-4), published=True)
        drawn = {
            "perfect draws": grid.perfect(number), "prior": prior.draw(number, SampleStreams(1, torch.arange(number))),
            "split Gibbs, corrected": chain.sample(prior, grid, number).samples,
            "split Gibbs, as published": published.sample(prior, grid, number).samples,
        }  # fmt: skip
        for name, x in drawn.items():
            hellinger, distance = grid.errors(x)
            yield {"elements": elements, "method": name, "Hellinger": hellinger, "total variation": distance}


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--what", choices=("tasks", "ablations", "speed", "synthetic"), default="synthetic")
    parser.add_argument("--model", type=Path, default=None, help="run directory or exported model, for the first two")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--truths", type=int, default=16)
    parser.add_argument("--samples", type=int, default=4, help="of each")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    if options.what in ("tasks", "ablations"):
        if options.model is None:
            parser.error(f"--what {options.what} needs --model")
        truths, samples = (2, 1) if options.quick else (options.truths, options.samples)
        bench = Bench(str(options.model), truths, samples, options.data_dir)
        rows = list((tasks if options.what == "tasks" else ablations)(bench))
    else:
        rows = list((speed if options.what == "speed" else synthetic)(options.quick))
    report(f"posterior sampling, {options.what}", rows, options)


if __name__ == "__main__":
    main()

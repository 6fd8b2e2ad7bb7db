"""Compare posterior samplers: `python -m benchmarks.posterior --what tasks --model runs/digits/ID`.

With a trained model:
    tasks      every method on every task; particles and split Gibbs at equal network evaluations
    ablations, budgets, ratios    split Gibbs sampling as in Chu et al. 2025, appendix B
    speed      of the likelihood step of split Gibbs sampling
    share      of its time that the network takes
    hidden     errors of hidden elements, compared with draws from weighted training data
    widths     the width of a blur, chosen by evidence
Without a model: `synthetic`, `dna`, `processes` and `faults` (benchmarks/posterior_toys.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks.measure import arguments, interleaved, report, summary
from benchmarks.posterior_toys import Restarted, dna, faults, processes, synthetic
from blackout import load_model
from blackout.data import CountData
from blackout.diffusion.processes import PureDeath, Uniform
from blackout.posterior import (
    SMC,
    And,
    Auto,
    Binomial,
    Blur,
    Coupling,
    Direct,
    Identity,
    InpaintBox,
    InpaintRandom,
    InverseProblem,
    Method,
    Noise,
    NoiseDenoise,
    Operator,
    Overwrite,
    Poisson,
    Pool,
    PosteriorSamples,
    Prior,
    SplitGibbs,
    SteeredParticles,
    Xor,
    anneal,
)
from blackout.posterior.diagnostics import psnr
from blackout.posterior.draw import make_prior
from blackout.posterior.method import Run
from blackout.posterior.problem import Streams
from blackout.posterior.split_gibbs import RelaxedLikelihood, make_step
from blackout.random import SampleStreams

Row = dict[str, Any]


@dataclass(frozen=True)
class PriorAlone(Method):
    """Unconditional samples, as if nothing had been measured."""

    follows_grid: ClassVar[bool] = True

    def draw(self, run: Run) -> Tensor:
        x = run.prior.draw(run.num_samples, run.streams)
        run.record(run.prior.final_time, x)
        return x


@dataclass(frozen=True)
class Flat(Coupling):
    """No tie at all: all data levels alike whatever x is, for the likelihood alone."""

    symmetric = True

    def log_table(self, t: float, device: torch.device | str = "cpu") -> Tensor:
        """Zeros, float64 [max_count + 1, max_count + 1]."""
        levels = self.process.max_count + 1
        return torch.zeros(levels, levels, dtype=torch.float64, device=device)

    def relax(self, problem: Any, shape: tuple[int, ...], t: float) -> RelaxedLikelihood:
        """The likelihood of counts as they are."""
        return RelaxedLikelihood(problem, lambda z: [z.double().clamp(max=self.process.max_count)])


@dataclass(frozen=True)
class NoPrior(Method):
    """The likelihood alone, over all data alike: heat bath or Metropolis.

    Args:
        passes: over all elements.
        proposals: of Metropolis in every pass; None for four per element.
    """

    is_markov_chain: ClassVar[bool] = True
    passes: int = 50
    proposals: int | None = None

    def num_sweeps(self, prior: Prior) -> int:
        return self.passes

    def check(self, prior: Prior, problem: Any) -> None:
        if self.passes < 1:
            raise ValueError(f"passes must be at least 1, not {self.passes}")

    def draw(self, run: Run) -> Tensor:
        level = run.prior.final_time
        flat = Flat(run.prior.process)
        step = make_step(run.problem, flat, run.prior.shape, proposals=self.proposals, passes=1)
        x = run.initial_samples("data")
        for turn in range(self.passes):
            x, info = step(x, x, level, run.streams.fold_in(turn))
            evaluations = info.likelihood_evaluations + 1
            run.record(level, x, acceptance=info.acceptance, likelihood_evaluations=evaluations)
        return x


class Bench:
    """A model, held-out truths and their measurements.

    Args:
        path: of the model.
        truths, samples: how many, and of each.
        data_dir: where its dataset is.
        seed: of samples of what is hidden.
        first: number of the first truth.
    """

    def __init__(
        self, path: str, truths: int, samples: int, data_dir: str, seed: int = 0, first: int = 0
    ) -> None:
        model = load_model(path)
        self.model = model
        self.samples = samples
        self.seed = seed
        self.largest = model.process.max_count
        self.prior = make_prior(model, model.sampler)
        held_out, self.training = _data(model, data_dir)
        self.truths = held_out[first : first + truths]

    def tasks(self) -> dict[str, InverseProblem]:
        """By name."""
        if self.largest == 1:
            box = InpaintBox((5, 19), (5, 24))
            return {
                "xor .5": self.measure(Xor(0.5)),
                "and 4": self.measure(And(4.0)),
                "box": self.measure(box),
            }
        return {
            "pooled photons": self.measure(Pool(2)),
            "photons .5": self.measure(Identity(), Poisson(0.5)),
            "thinning .3": self.measure(Identity(), Binomial(0.3)),
            "box": self.measure(InpaintBox((2, 5), (1, 6))),
        }

    def measure(self, operator: Operator, noise: Noise | None = None) -> InverseProblem:
        """Measurements of all truths by an operator."""
        noise = noise or operator.noise
        source = SampleStreams(5, torch.arange(len(self.truths))).step(0)
        return InverseProblem(operator, noise, noise.draw(operator(self.truths.double()), source))

    def run(
        self,
        task: str,
        name: str,
        method: Method,
        problem: InverseProblem,
        prior: Prior | None = None,
    ) -> Row:
        """One line of the table."""
        number = len(self.truths) * self.samples
        began = time.perf_counter()
        cpu = time.process_time()
        with torch.no_grad(), self.model.sampler.evaluating(self.model.averaged):
            found = method.sample(prior or self.prior, problem, number)
        spent = {
            "ms": (time.perf_counter() - began) / number * 1e3,
            "cpu ms": (time.process_time() - cpu) / number * 1e3,
        }
        return {"task": task, "method": name, **self._quality(found, problem), **spent}

    def _quality(self, found: PosteriorSamples, problem: InverseProblem) -> Row:
        x = problem.repair(found.samples)
        truth = self.truths.repeat(self.samples, *[1] * (self.truths.ndim - 1))
        mean = x.double().view(self.samples, *self.truths.shape).mean(0)
        shape = tuple(x.shape[1:])
        seen = problem.operator.observed_mask(shape)
        wrong = problem.operator(x.double()) != problem.measurement_rows(
            problem.operator(x.double())
        )
        wrong = wrong if seen is None else wrong & seen
        return {
            "PSNR": float(psnr(x, truth, self.largest).mean()),
            "of mean": float(psnr(mean, self.truths, self.largest).mean()),
            "mismatches": float(wrong.flatten(1).double().sum(1).mean()),
            "log L": float(problem.log_likelihood(x.double()).mean()),
            "NFE": sum(sweep["network_evaluations"] for sweep in found.trace),
        }


def _data(model: Any, data_dir: str) -> tuple[Tensor, Tensor]:
    """Held-out and training counts."""
    from blackout.config.instantiate import instantiate

    source = instantiate(model.config["family"], "family").source(
        {"data_dir": data_dir}, model.config
    )
    assert isinstance(source, CountData)
    test = source.test
    train = source.train
    assert isinstance(test, Tensor) and isinstance(train, Tensor)  # in memory
    return test, train


_KERNELS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 14.0)
_POWERS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03)


def hidden(bench: Bench) -> Iterator[Row]:
    """CRPS of hidden, blurred or pooled elements by `auto` and by weighted data, in counts.

    Both see the same truths. The CRPS of samples is the fair one for few samples [Ferro 2014]; the
    distribution of weighted data is scored exactly. Training data are weighted by the likelihood,
    by its best power of ten, or, if elements are known, by the best of ten normal kernels.
    `difference` is the mean over truths of the difference from the better baseline.
    """
    truths = bench.truths
    number = len(bench.truths)
    samples = bench.samples
    shape = bench.prior.shape
    levels = torch.arange(bench.largest + 1)
    below = (bench.training.flatten(1)[..., None] <= levels).double()
    cases: dict[str, tuple[Operator, Noise | None]] = {
        "rows 4-7 hidden": (InpaintBox((4, 7), (0, 7)), None),
        "80 % hidden": (InpaintRandom(0.8), None),
        "blur 1.2, photons .5": (Blur(width=1.2), Poisson(0.5)),
        "4x4 pooled, photons": (Pool(4), None),
    }
    for name, (operator, noise) in cases.items():
        problem = bench.measure(operator, noise)
        known = problem.known_elements(shape)
        scored = (
            torch.ones(truths[0].numel(), dtype=torch.bool)
            if known is None
            else ~known[1].flatten()
        )
        reached = (truths.flatten(1)[:, scored, None] <= levels).double()

        def of_law(weight: Tensor, scored: Tensor = scored, reached: Tensor = reached) -> Tensor:
            law = torch.einsum("nt,tdl->ndl", weight, below[:, scored])
            return ((law - reached) ** 2).sum(-1).mean(-1)

        if known is None:
            many = replace(
                problem, measurement=problem.measurement.repeat_interleave(len(bench.training), 0)
            )
            log_l = many.log_likelihood(bench.training.double().repeat(number, 1, 1, 1)).view(
                number, -1
            )
            laws = [torch.softmax(power * log_l, 1) for power in _POWERS]
        else:
            seen = known[1]
            off = (
                (bench.training[:, seen].double()[None] - truths[:, seen].double()[:, None]) ** 2
            ).sum(-1)
            laws = [torch.softmax(-off / (2 * width**2), 1) for width in _KERNELS]
        found = [of_law(law) for law in laws]
        best = min(found, key=lambda one: float(one.mean()))
        with torch.no_grad(), bench.model.sampler.evaluating(bench.model.averaged):
            drawn = (
                Auto()
                .resolve(bench.prior, problem)
                .sample(bench.prior, problem, number * samples, bench.seed)
            )
        x = drawn.samples.double().view(samples, number, -1)[..., scored]
        apart = (x[:, None] - x[None]).abs().sum((0, 1)) / max(1, 2 * samples * (samples - 1))
        auto = ((x - truths.flatten(1)[:, scored].double()).abs().mean(0) - apart).mean(1)
        nfe = sum(sweep["network_evaluations"] for sweep in drawn.trace)
        rows = {"auto": auto, "training data": best} | (
            {} if known else {"the same, by the likelihood": found[0]}
        )
        for method, one in rows.items():
            off_best = one - best
            yield {
                "hidden": name,
                "method": method,
                "CRPS": float(one.mean()),
                "error": float(one.std() / number**0.5),
                "difference": float(off_best.mean()),
                "its error": float(off_best.std() / number**0.5),
                "NFE": nfe if method == "auto" else 0,
            }


_WIDTHS = (0.7, 1.2, 2.0)
_EXPOSURES = (0.5, 1.0, 2.0)
_OWN = 360


def widths(bench: Bench) -> Iterator[Row]:
    """How often the largest of three evidences is that of the width by which a truth was blurred.

    Truth k is blurred by width number k modulo 3. The evidence is estimated by `smc` with its
    defaults, and by the mean likelihood of the training data. `expected` is how often the largest
    would be right if the evidences were probabilities. For truths from the training data their
    mean likelihood is the exact evidence: no method is right more often on them.
    """
    operators = [Blur(5, width) for width in _WIDTHS]

    def simulate(truths: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Which operator is right, and the measurements."""
        number = torch.arange(len(truths))
        blurred = torch.stack([operator(truths) for operator in operators])[
            number % len(operators), number
        ]
        return number % len(operators), noise.draw(blurred, SampleStreams(5, number).step(0))

    def by_training(noise: Noise, y: Tensor) -> list[Tensor]:
        """log p(y) of every operator, up to a number, [n] each."""
        laws = [operator(bench.training) for operator in operators]
        log_l = [
            torch.stack([noise.log_prob(one[None], m).flatten(1).sum(1) for one in y]) for m in laws
        ]
        return [torch.logsumexp(one, 1) for one in log_l]

    for exposure in _EXPOSURES:
        noise = Poisson(exposure)
        (right, y) = simulate(bench.truths, noise)
        (own_right, own) = simulate(bench.training[:_OWN], noise)
        evidence = []
        spread = []
        number = len(y)
        for operator in operators:
            with torch.no_grad(), bench.model.sampler.evaluating(bench.model.averaged):
                drawn = SMC().sample(
                    bench.prior,
                    InverseProblem(operator, noise, y),
                    number * bench.samples,
                    bench.seed,
                )
            groups = drawn.log_evidence.view(bench.samples, number)
            if bench.samples > 1:
                spread.append(groups.std(0))
            evidence.append(torch.logsumexp(groups, 0) - math.log(bench.samples))
        found = {
            "smc": (right, evidence),
            "training data": (right, by_training(noise, y)),
            "training data, of themselves": (own_right, by_training(noise, own)),
        }
        deviation = (
            float(torch.cat(spread).median()) if spread else math.nan
        )  # of one group there is none
        for method, (wanted, values) in found.items():
            best = torch.softmax(torch.stack(values), 0).max(0)
            yield {
                "exposure": exposure,
                "method": method,
                "right": float((best.indices == wanted).double().mean()),
                "expected": float(best.values.mean()),
                "spread of groups": deviation if method == "smc" else 0.0,
                "NFE": sum(sweep["network_evaluations"] for sweep in drawn.trace)
                if method == "smc"
                else 0,
            }


def tasks(bench: Bench) -> Iterator[Row]:
    """Every method on every task it can solve; particles with as many evaluations as `sgdd`."""
    quick = len(bench.truths) < 4
    ladder = anneal(3 if quick else 60, 3.0, 0.02 if bench.largest == 1 else 0.2)
    for task, problem in bench.tasks().items():
        split = bench.run(task, "sgdd", SplitGibbs(ladder), problem)
        yield split
        first = problem.select(torch.zeros(1, dtype=torch.int64), bench.prior.shape)
        one = sum(
            sweep["network_evaluations"] for sweep in SMC(1).sample(bench.prior, first, 1).trace
        )
        number = max(2, round(split["NFE"] / one))
        methods: dict[str, Method] = {
            f"SVDD-PM, {number} particles": SMC(number, greedy=True),
            f"SMC, {number} particles": SMC(number, power=0.1 if bench.largest == 1 else 1.0),
            "noise-denoise": NoiseDenoise(moves=2 if quick else 60),
            "prior": PriorAlone(),
            "no prior": NoPrior(2 if quick else 50),
        }
        if task.startswith("thinning"):
            methods["direct"] = Direct()
        if task == "box":
            methods["overwrite"] = Overwrite()
        if bench.largest > 1:
            methods["DPS"] = SteeredParticles(1, guided=True)
        for name, method in methods.items():
            yield bench.run(task, name, method, problem)


def ablations(bench: Bench) -> Iterator[Row]:
    """Ladders, steps and starts on the first two tasks."""
    sweeps = 3 if len(bench.truths) < 4 else 30
    elements = bench.truths[0].numel()
    for task, problem in list(bench.tasks().items())[:2]:
        for first, last in (
            (3.0, 0.2),
            (3.0, 0.02),
            (1.0, 0.02),
            (0.5, 0.5),
            (0.2, 0.2),
            (0.05, 0.05),
        ):
            name = (
                f"levels {first:g} to {last:g}" if first != last else f"level {first:g} throughout"
            )
            yield bench.run(task, name, SplitGibbs(anneal(sweeps, first, last)), problem)
        levels = anneal(sweeps, 3.0, 0.1)
        wide = anneal(sweeps, bench.prior.final_time, 1e-4)
        for name, method in {
            "heat bath": SplitGibbs(levels),
            "heat bath, start: prior": SplitGibbs(levels, start="prior"),
            "Metropolis, persistent": SplitGibbs(levels, "metropolis", 2 * elements),
            "Metropolis, restarted": Restarted(levels, "metropolis", 2 * elements),
            "published": SplitGibbs(wide, published=True, start="prior", proposals=2 * elements),
        }.items():
            yield bench.run(task, name, method, problem)


def ratios(bench: Bench) -> Iterator[Row]:
    """The prior against none on a model of bits: AND of ever more pairs."""
    sweeps = 3 if len(bench.truths) < 4 else 30
    for ratio in (2.0, 4.0, 8.0):
        problem = bench.measure(And(ratio))
        yield bench.run(f"and {ratio:g}", "sgdd", SplitGibbs(anneal(sweeps, 3.0, 0.02)), problem)
        yield bench.run(f"and {ratio:g}", "no prior", NoPrior(4 * sweeps), problem)


@dataclass(frozen=True)
class FixedSteps(Prior):
    """A prior whose reverse runs take the same number of steps at every level.

    Args:
        number: of steps.
    """

    number: int = field(kw_only=True)

    def reverse(
        self, z: Tensor, t: float, source: Streams = None, steps: int | None = None
    ) -> Tensor:
        return super().reverse(
            z, t, source, max(1, self.number - 1)
        )  # the last one ends below the grid's first time


def budgets(bench: Bench) -> Iterator[Row]:
    """Sweeps and steps of each as in Table 6 of Chu et al. 2025, on the first task."""
    task, problem = next(iter(bench.tasks().items()))
    own = {f.name: getattr(bench.prior, f.name) for f in fields(Prior)} | {
        "denoiser": bench.model.denoiser()
    }
    last = 0.02 if bench.largest == 1 else 0.2
    for sweeps, steps in ((25, 2), (25, 4), (40, 5), (40, 10), (50, 20)):
        levels = anneal(3 if len(bench.truths) < 4 else sweeps, 3.0, last)
        prior = FixedSteps(**own, number=steps)
        yield bench.run(
            task, f"{sweeps} sweeps of {steps} steps", SplitGibbs(levels), problem, prior
        )


def share(bench: Bench) -> Iterator[Row]:
    """Share of the network in the CPU time of a run, by the number of chains, after a warm-up."""
    levels = anneal(3 if len(bench.truths) < 4 else 12, 3.0, 0.2)
    for number in (1, 4, len(bench.truths)):
        part = copy(bench)
        part.truths = bench.truths[:number]
        spent = [0.0]
        denoiser = bench.model.denoiser()

        def timed(xt: Tensor, t: Tensor, spent: list[float] = spent) -> Any:
            began = time.process_time()
            found = denoiser(xt, t)  # noqa: B023  (called within this turn)
            spent[0] += time.process_time() - began
            return found

        task, problem = next(iter(part.tasks().items()))
        part.prior = replace(bench.prior, denoiser=timed)
        for _ in range(2):
            spent[0] = 0.0
            began = time.process_time()
            part.run(task, "", SplitGibbs(levels, passes=1), problem)
            found = {
                "chains": number * bench.samples,
                "share of the network": spent[0] / (time.process_time() - began),
            }
        yield {"task": task, **found}


def speed(quick: bool) -> Iterator[Row]:
    """XOR on 1,024 pixels, 16 chains: one heat-bath pass against one proposal for each pixel."""
    elements = 64 if quick else 1024
    shape = (1, elements // 32, 32)
    x = torch.randint(0, 2, (16, *shape), generator=torch.Generator().manual_seed(0)).to(
        torch.uint8
    )
    for process in (PureDeath(1), Uniform(1)):
        problem = InverseProblem(Xor(0.5), Xor(0.5).noise, Xor(0.5)(x[:1]))
        streams = SampleStreams(0, torch.arange(16))
        steps = {
            "heat bath": make_step(problem, Coupling(process), shape, passes=1),
            "Metropolis": make_step(problem, Coupling(process), shape, "metropolis", elements),
        }
        cases = {name: partial(step, x, x, 0.5, streams) for name, step in steps.items()}
        timed = interleaved(cases, 1 if quick else 3, torch.device("cpu"))
        seconds = {name: summary(one)["median"] for name, one in timed.items()}
        times = seconds["Metropolis"] / seconds["heat bath"]
        yield {"process": type(process).__name__, **seconds, "times faster": times}


OF_A_MODEL = {
    "tasks": tasks,
    "ablations": ablations,
    "budgets": budgets,
    "ratios": ratios,
    "share": share,
    "hidden": hidden,
    "widths": widths,
}
ALONE = {
    "speed": speed,
    "synthetic": synthetic,
    "dna": dna,
    "processes": processes,
    "faults": faults,
}


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--what", choices=(*OF_A_MODEL, *ALONE), default="synthetic")
    parser.add_argument(
        "--model",
        type=Path,
        default=None,
        help="run directory or exported model, where one is needed",
    )
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--truths", type=int, default=16)
    parser.add_argument("--samples", type=int, default=4, help="of each")
    parser.add_argument("--seed", type=int, default=0, help="of samples of what is hidden")
    parser.add_argument("--first", type=int, default=0, help="number of the first held-out truth")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    if options.what in OF_A_MODEL:
        if options.model is None:
            parser.error(f"--what {options.what} needs --model")
        truths, samples = (2, 1) if options.quick else (options.truths, options.samples)
        bench = Bench(
            str(options.model), truths, samples, options.data_dir, options.seed, options.first
        )
        rows = list(OF_A_MODEL[options.what](bench))
    else:
        rows = list(ALONE[options.what](options.quick))
    report(f"posterior sampling, {options.what}", rows, options)


if __name__ == "__main__":
    main()

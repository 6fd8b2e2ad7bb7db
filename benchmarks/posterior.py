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
from blackout.posterior.coupling import RelaxedLikelihood
from blackout.posterior.diagnostics import psnr
from blackout.posterior.draw import make_prior
from blackout.posterior.likelihood_steps import make_step
from blackout.posterior.method import Run
from blackout.posterior.prior import Streams
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
    """A coupling that ignores x: all data levels are equally likely."""

    symmetric = True

    def log_table(self, t: float, device: torch.device | str = "cpu") -> Tensor:
        """Return zeros, float64 [max_count + 1, max_count + 1]."""
        levels = self.process.max_count + 1
        return torch.zeros(levels, levels, dtype=torch.float64, device=device)

    def relax(self, problem: Any, shape: tuple[int, ...], t: float) -> RelaxedLikelihood:
        """Return the likelihood of the counts themselves."""
        return RelaxedLikelihood(problem, lambda z: [z.double().clamp(max=self.process.max_count)])


@dataclass(frozen=True)
class NoPrior(Method):
    """Samples of the likelihood under a uniform prior, by heat bath or Metropolis.

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
        truths: number of truths.
        samples: number of samples of every truth.
        data_dir: folder of the data set.
        seed: of the samples of `hidden` and `widths`.
        first_truth: its number.
    """

    def __init__(
        self,
        path: str,
        truths: int,
        samples: int,
        data_dir: str,
        seed: int = 0,
        first_truth: int = 0,
    ) -> None:
        model = load_model(path)
        self.model = model
        self.samples = samples
        self.seed = seed
        self.largest = model.process.max_count
        self.prior = make_prior(model, model.sampler)
        held_out, self.training = load_counts(model, data_dir)
        self.truths = held_out[first_truth : first_truth + truths]

    def tasks(self) -> dict[str, InverseProblem]:
        """Return the problems of the tables, by name."""
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
        """Return the problem of measurements of all truths."""
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
        """Return a row of the table: scores and costs of a method on a task."""
        number = len(self.truths) * self.samples
        start = time.perf_counter()
        cpu = time.process_time()
        with torch.no_grad(), self.model.sampler.evaluating(self.model.averaged):
            posterior = method.sample(prior or self.prior, problem, number)
        times = {
            "ms": (time.perf_counter() - start) / number * 1e3,
            "cpu ms": (time.process_time() - cpu) / number * 1e3,
        }
        return {"task": task, "method": name, **self._quality(posterior, problem), **times}

    def _quality(self, posterior: PosteriorSamples, problem: InverseProblem) -> Row:
        x = problem.repair(posterior.samples)
        truth = self.truths.repeat(self.samples, *[1] * (self.truths.ndim - 1))
        mean = x.double().view(self.samples, *self.truths.shape).mean(0)
        shape = tuple(x.shape[1:])
        is_observed = problem.operator.observed_mask(shape)
        is_mismatch = problem.operator(x.double()) != problem.measurement_rows(
            problem.operator(x.double())
        )
        is_mismatch = is_mismatch if is_observed is None else is_mismatch & is_observed
        return {
            "PSNR": float(psnr(x, truth, self.largest).mean()),
            "of mean": float(psnr(mean, self.truths, self.largest).mean()),
            "mismatches": float(is_mismatch.flatten(1).double().sum(1).mean()),
            "log L": float(problem.log_likelihood(x.double()).mean()),
            "NFE": sum(sweep["network_evaluations"] for sweep in posterior.trace),
        }


def load_counts(model: Any, data_dir: str) -> tuple[Tensor, Tensor]:
    """Return test and training counts."""
    from blackout.config.instantiate import instantiate

    data = instantiate(model.config["family"], "family").source(
        {"data_dir": data_dir}, model.config
    )
    assert isinstance(data, CountData)
    test = data.test
    train = data.train
    assert isinstance(test, Tensor) and isinstance(train, Tensor)  # in memory
    return test, train


# of normal kernels by which training data are weighted, in counts
KERNEL_WIDTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 14.0)
# of the likelihood by which training data are weighted
LIKELIHOOD_POWERS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03)


def hidden(bench: Bench) -> Iterator[Row]:
    """CRPS of hidden, blurred or pooled elements by `auto` and by weighted data, in counts.

    Both see the same truths. The CRPS of samples is the fair one for few samples [Ferro 2014]; the
    distribution of weighted data is scored exactly. Training data are weighted as in
    `_training_weights`, and the best weighting is the baseline. `difference` is the mean over
    truths of the difference from it.
    """
    truths = bench.truths.flatten(1)
    num_truths = len(truths)
    cases: dict[str, tuple[Operator, Noise | None]] = {
        "rows 4-7 hidden": (InpaintBox((4, 7), (0, 7)), None),
        "80 % hidden": (InpaintRandom(0.8), None),
        "blur 1.2, photons .5": (Blur(width=1.2), Poisson(0.5)),
        "4x4 pooled, photons": (Pool(4), None),
    }
    for name, (operator, noise) in cases.items():
        # 1. Elements that are scored: those that are not known.
        problem = bench.measure(operator, noise)
        known_elements = problem.known_elements(bench.prior.shape)
        is_known = None if known_elements is None else known_elements[1]
        is_scored = torch.ones(truths.shape[1], dtype=torch.bool)
        if is_known is not None:
            is_scored = ~is_known.flatten()

        # 2. The best weighting of the training data.
        scores = []
        for weights in _training_weights(bench, problem, is_known):
            scores.append(_weighted_crps(bench, weights, is_scored))
        best = min(scores, key=lambda score: float(score.mean()))

        # 3. Samples of the posterior.
        with torch.no_grad(), bench.model.sampler.evaluating(bench.model.averaged):
            method = Auto().resolve(bench.prior, problem)
            posterior = method.sample(bench.prior, problem, num_truths * bench.samples, bench.seed)
        x = posterior.samples.double().view(bench.samples, num_truths, -1)
        nfe = sum(sweep["network_evaluations"] for sweep in posterior.trace)
        auto = _sample_crps(x[..., is_scored], truths[:, is_scored].double())

        # 4. A row for each.
        rows = {"auto": auto, "training data": best}
        if is_known is None:
            rows["the same, by the likelihood"] = scores[0]
        for method_name, score in rows.items():
            difference = score - best
            yield {
                "hidden": name,
                "method": method_name,
                "CRPS": float(score.mean()),
                "error": float(score.std() / num_truths**0.5),
                "difference": float(difference.mean()),
                "its error": float(difference.std() / num_truths**0.5),
                "NFE": nfe if method_name == "auto" else 0,
            }


def _training_weights(
    bench: Bench, problem: InverseProblem, is_known: Tensor | None
) -> list[Tensor]:
    """Return weights of the training data for every truth, [n, T], in several versions.

    They are powers of the likelihood, the first of them the likelihood itself, or, if elements are
    known, normal kernels of the distance of these elements.
    """
    if is_known is None:
        num_truths = len(bench.truths)
        measurement = problem.measurement.repeat_interleave(len(bench.training), 0)
        data = bench.training.double().repeat(num_truths, 1, 1, 1)
        log_likelihood = replace(problem, measurement=measurement).log_likelihood(data)
        log_likelihood = log_likelihood.view(num_truths, -1)
        return [torch.softmax(power * log_likelihood, 1) for power in LIKELIHOOD_POWERS]
    data = bench.training[:, is_known].double()
    truths = bench.truths[:, is_known].double()
    squared_distance = ((data[None] - truths[:, None]) ** 2).sum(-1)
    return [torch.softmax(-squared_distance / (2 * width**2), 1) for width in KERNEL_WIDTHS]


def _weighted_crps(bench: Bench, weights: Tensor, is_scored: Tensor) -> Tensor:
    """Return the mean CRPS [n] of scored elements under weighted training data."""
    levels = torch.arange(bench.largest + 1)
    data_cdf = (bench.training.flatten(1)[:, is_scored, None] <= levels).double()
    truth_cdf = (bench.truths.flatten(1)[:, is_scored, None] <= levels).double()
    cdf = torch.einsum("nt,tdl->ndl", weights, data_cdf)
    return ((cdf - truth_cdf) ** 2).sum(-1).mean(-1)


def _sample_crps(x: Tensor, truths: Tensor) -> Tensor:
    """Return the mean fair CRPS [n] of samples x [samples, n, D] of truths [n, D]."""
    num_pairs = max(1, 2 * len(x) * (len(x) - 1))
    spread = (x[:, None] - x[None]).abs().sum((0, 1)) / num_pairs
    return ((x - truths).abs().mean(0) - spread).mean(1)


WIDTHS = (0.7, 1.2, 2.0)  # of the blur, in pixels
EXPOSURES = (0.5, 1.0, 2.0)  # photons per count
NUM_TRAINING_TRUTHS = 360  # training data that serve as truths


def widths(bench: Bench) -> Iterator[Row]:
    """How often the largest of three evidences is that of the width by which a truth was blurred.

    Truth k is blurred by width number k modulo 3. The evidence is estimated by `smc` with its
    defaults, and by the mean likelihood of the training data. `expected` is how often the largest
    would be right if the evidences were probabilities. For truths from the training data their
    mean likelihood is the exact evidence: no method is right more often on them.
    """
    operators = [Blur(5, width) for width in WIDTHS]

    def simulate(truths: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Return the number of the right operator, and the measurements, of every truth."""
        number = torch.arange(len(truths))
        width_number = number % len(operators)
        blurred = torch.stack([operator(truths) for operator in operators])[width_number, number]
        return width_number, noise.draw(blurred, SampleStreams(5, number).step(0))

    def training_evidence(noise: Noise, y: Tensor) -> list[Tensor]:
        """Return log p(y) [n] of every operator, up to a constant."""
        clean = [operator(bench.training) for operator in operators]
        log_likelihood = [
            torch.stack([noise.log_prob(row[None], m).flatten(1).sum(1) for row in y])
            for m in clean
        ]
        return [torch.logsumexp(row, 1) for row in log_likelihood]

    for exposure in EXPOSURES:
        noise = Poisson(exposure)
        right_width, y = simulate(bench.truths, noise)
        training_width, training_y = simulate(bench.training[:NUM_TRAINING_TRUTHS], noise)
        evidence = []
        spread = []
        number = len(y)
        for operator in operators:
            with torch.no_grad(), bench.model.sampler.evaluating(bench.model.averaged):
                posterior = SMC().sample(
                    bench.prior,
                    InverseProblem(operator, noise, y),
                    number * bench.samples,
                    bench.seed,
                )
            groups = posterior.log_evidence.view(bench.samples, number)
            if bench.samples > 1:
                spread.append(groups.std(0))
            evidence.append(torch.logsumexp(groups, 0) - math.log(bench.samples))
        nfe = sum(sweep["network_evaluations"] for sweep in posterior.trace)
        cases = {
            "smc": (right_width, evidence),
            "training data": (right_width, training_evidence(noise, y)),
            "training data, of themselves": (training_width, training_evidence(noise, training_y)),
        }
        deviation = math.nan  # one group has no spread
        if spread:
            deviation = float(torch.cat(spread).median())
        for method, (width_number, values) in cases.items():
            best = torch.softmax(torch.stack(values), 0).max(0)
            yield {
                "exposure": exposure,
                "method": method,
                "right": float((best.indices == width_number).double().mean()),
                "expected": float(best.values.mean()),
                "spread of groups": deviation if method == "smc" else 0.0,
                "NFE": nfe if method == "smc" else 0,
            }


def tasks(bench: Bench) -> Iterator[Row]:
    """Every method on every task it can solve; particles with as many evaluations as `sgdd`."""
    quick = len(bench.truths) < 4
    ladder = anneal(3 if quick else 60, 3.0, 0.02 if bench.largest == 1 else 0.2)
    for task, problem in bench.tasks().items():
        split = bench.run(task, "sgdd", SplitGibbs(ladder), problem)
        yield split
        first_problem = problem.select(torch.zeros(1, dtype=torch.int64), bench.prior.shape)
        evaluations = sum(
            sweep["network_evaluations"]
            for sweep in SMC(1).sample(bench.prior, first_problem, 1).trace
        )
        number = max(2, round(split["NFE"] / evaluations))
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
        for first_level, last_level in (
            (3.0, 0.2),
            (3.0, 0.02),
            (1.0, 0.02),
            (0.5, 0.5),
            (0.2, 0.2),
            (0.05, 0.05),
        ):
            name = (
                f"levels {first_level:g} to {last_level:g}"
                if first_level != last_level
                else f"level {first_level:g} throughout"
            )
            yield bench.run(
                task, name, SplitGibbs(anneal(sweeps, first_level, last_level)), problem
            )
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
        # one further step goes from the grid's first time to 0
        return super().reverse(z, t, source, max(1, self.number - 1))


def budgets(bench: Bench) -> Iterator[Row]:
    """Sweeps and steps of each as in Table 6 of Chu et al. 2025, on the first task."""
    task, problem = next(iter(bench.tasks().items()))
    prior_settings = {f.name: getattr(bench.prior, f.name) for f in fields(Prior)} | {
        "denoiser": bench.model.denoiser()
    }
    last = 0.02 if bench.largest == 1 else 0.2
    for sweeps, steps in ((25, 2), (25, 4), (40, 5), (40, 10), (50, 20)):
        levels = anneal(3 if len(bench.truths) < 4 else sweeps, 3.0, last)
        prior = FixedSteps(**prior_settings, number=steps)
        yield bench.run(
            task, f"{sweeps} sweeps of {steps} steps", SplitGibbs(levels), problem, prior
        )


def share(bench: Bench) -> Iterator[Row]:
    """Share of the network in the CPU time of a run, by the number of chains, after a warm-up."""
    levels = anneal(3 if len(bench.truths) < 4 else 12, 3.0, 0.2)
    for number in (1, 4, len(bench.truths)):
        bench_part = copy(bench)
        bench_part.truths = bench.truths[:number]
        network_time = [0.0]
        denoiser = bench.model.denoiser()

        def timed_denoiser(xt: Tensor, t: Tensor, network_time: list[float] = network_time) -> Any:
            start = time.process_time()
            row = denoiser(xt, t)  # noqa: B023  (called within this turn)
            network_time[0] += time.process_time() - start
            return row

        task, problem = next(iter(bench_part.tasks().items()))
        bench_part.prior = replace(bench.prior, denoiser=timed_denoiser)
        for _ in range(2):
            network_time[0] = 0.0
            start = time.process_time()
            bench_part.run(task, "", SplitGibbs(levels, passes=1), problem)
            row = {
                "chains": number * bench.samples,
                "share of the network": network_time[0] / (time.process_time() - start),
            }
        yield {"task": task, **row}


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
        seconds = {name: summary(values)["median"] for name, values in timed.items()}
        speed_up = seconds["Metropolis"] / seconds["heat bath"]
        yield {"process": type(process).__name__, **seconds, "times faster": speed_up}


MODEL_TABLES = {
    "tasks": tasks,
    "ablations": ablations,
    "budgets": budgets,
    "ratios": ratios,
    "share": share,
    "hidden": hidden,
    "widths": widths,
}
TABLES = {
    "speed": speed,
    "synthetic": synthetic,
    "dna": dna,
    "processes": processes,
    "faults": faults,
}


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--what", choices=(*MODEL_TABLES, *TABLES), default="synthetic")
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
    if options.what in MODEL_TABLES:
        if options.model is None:
            parser.error(f"--what {options.what} needs --model")
        truths, samples = (2, 1) if options.quick else (options.truths, options.samples)
        bench = Bench(
            str(options.model), truths, samples, options.data_dir, options.seed, options.first
        )
        rows = list(MODEL_TABLES[options.what](bench))
    else:
        rows = list(TABLES[options.what](options.quick))
    report(f"posterior sampling, {options.what}", rows, options)


if __name__ == "__main__":
    main()

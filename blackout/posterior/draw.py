"""`posterior=` of `sample.py`: each way of sampling with the settings it has, and the draw it makes of a model.

A draw gives the samples of every measurement's posterior, measurement after measurement.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor

from blackout.diffusion.kernels import StatefulKernel
from blackout.diffusion.plots import grid
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.samplers import Sampler
from blackout.diffusion.sampling import taken_apart
from blackout.diffusion.steering import Kind
from blackout.distributed import rank
from blackout.errors import UserError, error_context
from blackout.family import BaseDraw, Drawn, OutputNames, Samples, Watch
from blackout.posterior.baselines import DPS, SMC, SVDD, Overwrite, Steered
from blackout.posterior.chains import Method, Posterior, anneal, suggested
from blackout.posterior.conjugate import Direct, conjugate
from blackout.posterior.measurements import STRIDE, Measurements, read
from blackout.posterior.outputs import SPENT, PosteriorOutputs
from blackout.posterior.problem import Blind, Measured, Prior, Problem, Unknown
from blackout.posterior.split_gibbs import Annealed, HeatBath, NoiseDenoise, SplitGibbs, known_mask
from blackout.random import SampleStreams
from blackout.training.components import make

if TYPE_CHECKING:
    from PIL import Image

_NUMBER = -4
_FIRST, _PUBLISHED = 3.0, (20.0, 1e-4)
_NEAR, _FAR = (1.0, 0.4, 0.1), (3.0, 1.0, 0.4)
"""Levels of moves that begin near the posterior, and of those that must find it."""
_BESIDE, _BESIDE_FEW, _FEW = (32, 12), (64, 80), 16
"""Particles beside known elements, and steps of each: below 800 evaluations of the network; of at most 16 elements,
where evaluations are cheap and laws may be spiky, more.
"""
_OF_BLACK_BOXES, _MOVES = 12, 16
"""Particles of likelihoods of which only values are known, and moves that mend them, for as many evaluations."""
_LAST_OF_COUNTS, _LAST_OF_BITS, _LAST = 0.2, 0.02, 0.01
"""Below t = 1 / max_count nothing moves; on counts the chains need births to become brighter."""


class Command(ABC):
    """One way of sampling, as the command line chooses it."""

    def draw(self, model: Any, sampler: Sampler, request: Mapping[str, Any]) -> PosteriorDraw:
        """What `sample.py` draws.

        Args:
            model: a trained model of counts.
            sampler: kernel, grid and batches.
            request: `operator` and `noise` as descriptions, `measurement`, `num_samples`.

        Raises:
            UserError: parts that do not go together, or not with the model.
        """
        if not request.get("operator"):
            raise UserError("operator must be given: operator=identity, inpaint_box, pool, ...")
        parts, unknown = _unknown(request)
        with error_context("operator"):
            operator = make(parts["operator"], "operator")
            operator.prepare(model)
        with error_context("noise"):
            noise = make(parts["noise"], "noise") if parts["noise"] else operator.noise
        with error_context("posterior"):
            asked = _asked(request)
            measurements = replace(read(model, sampler, operator, noise, asked), unknown=unknown)
            prior, problem = prior_of(model, sampler), measurements.example()
            problem.terms(model.mean[None].cpu().double())  # maps and matrices of another size are refused here
            method = self.method(prior, problem)
            method.check(prior, problem)
            simulated = str(asked).startswith("model:")
            _refuse_unused(request.get("sampler") or {}, simulated or _walks(method, problem, prior))
        folder = re.sub(r"(?<!^)(?=[A-Z])", "_", type(operator).__name__).lower()
        return PosteriorDraw(model, sampler, method, measurements, request["num_samples"], folder)

    @abstractmethod
    def method(self, prior: Prior, problem: Problem) -> Method:
        """The sampler for such a problem."""


_UNKNOWN = re.compile(r"unknown(?::([^-]+)-(.+))?")


def _unknown(request: Mapping[str, Any]) -> tuple[dict[str, Any], Unknown | None]:
    """Operator and noise with the middle of its prior for the number that is `unknown:low-high`, and that number."""
    parts: dict[str, Any] = {}
    found: list[Unknown] = []
    for of in ("operator", "noise"):
        parts[of] = dict(request.get(of) or {})
        for name, value in parts[of].items():
            if match := _UNKNOWN.fullmatch(str(value)):
                try:
                    found.append(Unknown(of, name, *map(float, match.groups())))
                except (TypeError, ValueError):
                    raise UserError(f"{of}.{name}={value}: its ends must be given, such as unknown:0.5-4") from None
                parts[of][name] = found[-1].middle
    if len(found) > 1:
        raise UserError(f"{found[1].of}.{found[1].name}: {found[0].of}.{found[0].name} is unknown; only one may be")
    return parts, found[0] if found else None


def _asked(request: Mapping[str, Any]) -> Any:
    """The setting `measurement`; so many truths of the model's own where `calibrate` is given in its place."""
    number = request.get("calibrate")
    if number is None:
        return request.get("measurement")
    if request.get("measurement") is not None or type(number) is not int or number < 10:
        raise UserError("calibrate draws so many truths from the model, at least 10, in place of a measurement")
    return f"model:0-{number - 1}"


_UNUSED = {
    "guidance": (1, "p(x | y) has no guided law"), "guidance_between": (None, "p(x | y) has no guided law"),
    "guidance_particles": (1, "p(x | y) has no guided law"), "corrector_steps": (0, "reverse runs take none"),
    "corrector": (None, "reverse runs take none"), "corrector_between": (None, "reverse runs take none"),
    "inpainting_particles": (None, "posterior=overwrite posterior.particles=16 is what inpaint= does"),
}  # fmt: skip
"""Settings of a sampler that posteriors have no use for, what leaves them out, and why."""
_OF_WALKS = ("num_steps", "poisson_start")


def _walks(method: Method, problem: Problem, prior: Prior) -> bool:
    """Whether anything is drawn by steps of the sampler's grid: walks, or unconditional samples to start from."""
    start = getattr(method, "start", "data")
    walks = method.walks and getattr(method, "steps", None) is None
    return walks or start == "prior" or (method.mixes and suggested(problem, 1, prior.shape) is None)


def _refuse_unused(given: Mapping[str, Any], walks: bool) -> None:
    """Refuse settings of a sampler that would change nothing.

    Args:
        given: fields that the user replaces in the model's own sampler, or a whole description, whose steps and
            corrector came with its name.
        walks: see `_walks`.
    """
    whole = "_target_" in given
    for name, (neutral, why) in _UNUSED.items():
        if given.get(name, neutral) not in (None, neutral) and not (whole and name == "corrector"):
            raise UserError(f"sampler.{name} is not for posteriors: {why}; leave it out")
    for name in () if whole or walks else _OF_WALKS:
        if given.get(name) is not None:
            raise UserError(
                f"sampler.{name} is not for this posterior, whose reverse runs take one step per unit of the logit of "
                "survival: posterior.sweeps, moves or steps set its length"
            )


def _check_start(start: str) -> None:
    if start not in ("data", "prior"):
        raise UserError(f"posterior.start must be data or prior, not {start}")


@dataclass(frozen=True)
class Sgdd(Command):
    """Split Gibbs sampling, corrected; see `SplitGibbs`.

    Args:
        sweeps: how many.
        first_level, last_level: ends of the ladder; None for what suits the process.
        polish: noise-denoise moves at the end.
        start: data or prior.
        step: auto, heat_bath or metropolis.
        proposals: of Metropolis; None for four per element.
        passes: of the heat bath; None for two on bits, else one.
    """

    sweeps: int = 60
    first_level: float | None = None
    last_level: float | None = None
    polish: int = 0
    start: str = "data"
    step: str = "auto"
    proposals: int | None = None
    passes: int | None = None
    kind: ClassVar[type[SplitGibbs]] = SplitGibbs

    def method(self, prior: Prior, problem: Problem) -> Method:
        for name in ("passes", "proposals"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"posterior.{name} must be at least 1, not {getattr(self, name)}")
        if self.polish < 0:
            raise UserError(f"posterior.polish must not be negative, not {self.polish}")
        _check_start(self.start)
        largest, counts = prior.process.max_count, isinstance(prior.process, PureDeath)
        default = (_LAST_OF_COUNTS if largest > 1 else _LAST_OF_BITS) if counts else _LAST
        first = min(_FIRST, prior.final_time) if self.first_level is None else self.first_level
        levels = anneal(self.sweeps, first, min(default, first) if self.last_level is None else self.last_level)
        passes = self.passes or (2 if largest == 1 else 1)
        return self.kind(levels, self.step, self.proposals, passes, self.polish, self.start)


@dataclass(frozen=True)
class Auto(Sgdd):
    """Direct where the measurement is the forward process itself; where elements are known exactly and particles can be
    weighed beside them, these; where each term of the likelihood depends on few elements, split Gibbs sampling and
    moves that mend it; of black boxes particles and such moves.
    """

    sweeps: int = 42
    polish: int = 20
    kind: ClassVar[type[SplitGibbs]] = Annealed

    def method(self, prior: Prior, problem: Problem) -> Method:
        found = conjugate(prior.process, problem, prior.shape)
        direct = found is not None and found[1] <= prior.final_time
        known = not direct and known_mask(prior, problem) is not None
        particles, steps = _BESIDE_FEW if math.prod(prior.shape) <= _FEW else _BESIDE
        annealed = super().method(prior, problem)
        assert isinstance(annealed, SplitGibbs)
        given = [one.name for one in dataclasses.fields(self) if getattr(self, one.name) != one.default]
        local = known or bool(given) or isinstance(annealed.likelihood_step(prior, problem), HeatBath)
        name, chosen = (
            ("direct", Direct()) if direct
            else (f"{particles} particles", Overwrite(particles, steps)) if known
            else ("sgdd, then noise_denoise", annealed) if local or isinstance(prior.kernel, StatefulKernel)
            else (f"smc of {_OF_BLACK_BOXES} particles, then noise_denoise", SMC(_OF_BLACK_BOXES, polish=_MOVES))
        )  # fmt: skip
        if rank() == 0:
            print(f"posterior=auto: {name}")
        if given and chosen is not annealed:
            raise UserError(f"posterior.{given[0]}: auto takes {name} here, which has none: posterior=sgdd has")
        return chosen


@dataclass(frozen=True)
class SgddPublished(Command):
    """As published, with its two errors: the wrong potential and the restarted Metropolis chain. For comparison.

    Args:
        sweeps: how many.
        first_level, last_level: ends of the ladder; None for the paper's, as far as the model goes.
        proposals: of Metropolis in every sweep; None for two per element.
    """

    sweeps: int = 50
    first_level: float | None = None
    last_level: float | None = None
    proposals: int | None = None

    def method(self, prior: Prior, problem: Problem) -> Method:
        first = min(_PUBLISHED[0], prior.final_time) if self.first_level is None else self.first_level
        levels = anneal(self.sweeps, first, _PUBLISHED[1] if self.last_level is None else self.last_level)
        proposals = self.proposals or 2 * math.prod(prior.shape)
        return SplitGibbs(levels, proposals=proposals, start="prior", published=True)


@dataclass(frozen=True)
class NoiseDenoiseCommand(Command):
    """Moves that leave the posterior itself invariant; see `NoiseDenoise`.

    Args:
        moves: how many.
        levels: taken in turn; None for 1, 0.4, 0.1 near a measurement, or 3, 1, 0.4 where chains begin far off.
        start: data or prior.
    """

    moves: int = 60
    levels: Sequence[float] | None = None
    start: str = "data"

    def method(self, prior: Prior, problem: Problem) -> Method:
        _check_start(self.start)
        if self.levels is not None:
            return NoiseDenoise(tuple(self.levels), self.moves, self.start)
        near = self.start == "data" and isinstance(problem, Measured) and problem.estimate(1, prior.shape) is not None
        return NoiseDenoise(tuple(min(t, prior.final_time) for t in (_NEAR if near else _FAR)), self.moves, self.start)


@dataclass(frozen=True)
class DirectCommand(Command):
    """One reverse run from the measurement; see `Direct`.

    Args:
        steps: of it.
    """

    steps: int = 25

    def method(self, prior: Prior, problem: Problem) -> Method:
        if self.steps < 1:
            raise UserError(f"posterior.steps must be at least 1, not {self.steps}")
        return Direct(self.steps)


@dataclass(frozen=True)
class Baseline(Command):
    """A method without settings that depend on the model.

    Args:
        how: the method itself.
    """

    how: Method

    def method(self, prior: Prior, problem: Problem) -> Method:
        return self.how


def overwrite(particles: int = 1, steps: int | None = None) -> Baseline:
    """See `baselines.Overwrite`."""
    return Baseline(Overwrite(particles, steps))


def dps() -> Baseline:
    """See `baselines.DPS`."""
    return Baseline(DPS())


def svdd(particles: int = 20, rollouts: int = 4) -> Baseline:
    """See `baselines.SVDD`."""
    return Baseline(SVDD(particles, rollouts))


def smc(particles: int = 20, rollouts: int = 4, power: float = 1.0, polish: int = 0) -> Baseline:
    """See `baselines.SMC`."""
    return Baseline(SMC(particles, rollouts, power, polish))


def fk(particles: int = 20, potential: Kind = "difference", every: int = 4, draws: int = 4) -> Baseline:
    """See `baselines.Steered`."""
    return Baseline(Steered(particles, False, potential, every, draws))


def tds(particles: int = 4) -> Baseline:
    """See `baselines.Steered`; 1 particle is classifier guidance."""
    return Baseline(Steered(particles, True))


def prior_of(model: Any, sampler: Sampler) -> Prior:
    """A model as a prior, with a sampler's kernel and grid; exact laws have their own."""
    if hasattr(model, "prior"):
        own: Prior = model.prior()
        return own
    mean, sampler = model.mean if sampler.poisson_start else None, taken_apart(sampler)
    times = model.times(sampler)
    return Prior(model.denoiser(), model.process, model.shape, sampler.kernel, mean, times, device=model.device)


@dataclass
class PosteriorDraw(BaseDraw):
    """Row m S + k is sample k of the m-th measurement, S samples of each.

    Args:
        model: in eval mode.
        sampler: whose kernel, grid and batches are used.
        method: how to sample.
        measurements: what is given.
        samples_of_each: S.
        folder: name of the directory of the results.
    """

    model: Any
    sampler: Sampler
    method: Method
    measurements: Measurements
    samples_of_each: int
    folder: str
    spent: list[dict[str, float]] = field(default_factory=list)
    """What a sample took, sweep by sweep, and the seconds of all, as `outputs` were given them."""
    resumable = True

    @property
    def names(self) -> OutputNames:  # type: ignore[override]
        """In a folder of the operator's."""
        return OutputNames(folder=f"posterior/{self.folder}")

    @property
    def condition(self) -> Mapping[str, Any]:  # type: ignore[override]
        """The measurements."""
        return {"measurement": self.measurements.source}

    def rows(self, num_samples: int) -> int:
        """num_samples of each measurement."""
        return len(self.measurements) * num_samples

    def outputs(self, seed: int) -> PosteriorOutputs:
        """Estimates, pictures and diagnostics."""
        return PosteriorOutputs(self, seed)

    @property
    def batch_size(self) -> int:
        """The sampler's."""
        return self.sampler.evaluation.batch_size

    @property
    def steps(self) -> int:
        """Sweeps."""
        return self.method.sweeps(prior_of(self.model, self.sampler))

    @property
    def nfe(self) -> int:
        """As counted in the first batch that `outputs` were given."""
        return int(sum(sweep["evaluations"] for sweep in self.spent))

    @property
    def description(self) -> Mapping[str, Any]:
        """Method, operator and noise with all their settings."""
        method = {name: value for name, value in _settings(self.method).items() if value is not None}
        parts = {"operator": self.measurements.operator, "noise": self.measurements.noise}
        named = {name: {"name": type(part).__name__, **_settings(part)} for name, part in parts.items()}
        return {"method": type(self.method).__name__, **method, **named, "measurement": self.measurements.source}

    def batches(self, indices: Tensor, seed: int, batch_size: int | None = None, watch: Watch | None = None) -> Drawn:
        """(indices [b], `samples` [b, *shape], `log_likelihood` and `pasted` [b], of particles `log_evidence` [b],
        `chains` [b, sweeps, ...], `_spent` of them float64 [b, sweeps, 5], see `outputs.SPENT`).
        """
        if not len(indices):
            return
        total = self.rows(self.samples_of_each)
        if int(indices.max()) >= total:
            raise UserError(f"indices must be below {total}: {len(self.measurements)} measurements x num_samples")
        size = batch_size or min(self.batch_size, len(indices))
        for part in indices.split(size):
            found = self._run(torch.cat([part, part[-1:].expand(size - len(part))]), seed, watch)
            named = {name: getattr(found, name) for name in ("samples", "log_likelihood", "chains", "pasted")}
            if isinstance(problem := self._problem(part, seed), Blind):
                x, streams = found.samples[: len(part)], self._streams(part, seed)
                named[problem.unknown.name] = problem.number(x, streams.fold(_NUMBER).at(0))
            named |= {"log_evidence": found.log_evidence} if len(found.log_evidence) else {}
            spent = torch.tensor([[sweep[name] for name in SPENT] for sweep in found.trace], dtype=torch.float64)
            spent[:, -1] /= len(part)
            named["_spent"] = spent.expand(size, -1, -1)
            yield part, {name: values[: len(part)].cpu() for name, values in named.items()}

    def _run(self, rows: Tensor, seed: int, watch: Watch | None) -> Posterior:
        streams, problem = self._streams(rows, seed), self._problem(rows, seed)
        prior = prior_of(self.model, self.sampler)

        def shown(sweep: int, sweeps: int, x: Tensor, z: Tensor, level: float) -> None:
            for step in (0, sweep) if sweep == 1 else (sweep,):
                cast(Watch, watch)(step, sweeps, torch.cat([x, z], -1))

        observer = None if watch is None else shown
        with torch.no_grad(), self.sampler.evaluation.of(self.model.averaged):
            return self.method.sample(prior, problem, len(rows), streams, observer=observer)

    def _streams(self, rows: Tensor, seed: int) -> SampleStreams:
        number, k = rows // self.samples_of_each, rows % self.samples_of_each
        return SampleStreams(seed, (self.measurements.numbers[number] * STRIDE + k).to(self.model.device))

    def _problem(self, rows: Tensor, seed: int) -> Measured:
        return self.measurements.problem(seed).select(rows // self.samples_of_each, self.model.shape)

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """A grid of the counts; None for points, vectors of fewer than three of them."""
        x = samples["samples"]
        return None if x[0].numel() < 3 else grid(x, self.model.process.max_count, columns)


def _settings(part: Any) -> dict[str, Any]:
    fields = dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
    given = {one.name: getattr(part, one.name) for one in fields}
    plain: dict[str, Any] = json.loads(json.dumps(given, default=lambda v: getattr(v, "__name__", type(v).__name__)))
    return plain

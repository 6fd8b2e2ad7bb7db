"""The draw of `sample.py`: samples of the posterior of every measurement, measurement after measurement."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from blackout.diffusion.sampling import Sampler
from blackout.errors import UserError
from blackout.family import BaseDraw, Names, Samples, Watch
from blackout.posterior.chains import Method, Posterior, Seen
from blackout.posterior.exact_model import ExactModel
from blackout.posterior.measurements import STRIDE, Measurements
from blackout.posterior.outputs import PosteriorOutputs
from blackout.posterior.prior import Prior
from blackout.random import SampleStreams

if TYPE_CHECKING:
    from PIL import Image


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
    repaired: int = 0

    @property
    def names(self) -> Names:  # type: ignore[override]
        """In a folder of the operator's."""
        return Names(folder=f"posterior/{self.folder}")

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
        return self.method.sweeps(self.prior())

    @property
    def nfe(self) -> int:
        """As counted in the first batch."""
        return int(sum(sweep["evaluations"] for sweep in self.spent))

    @property
    def description(self) -> Mapping[str, Any]:
        """Method, operator and noise with all their settings."""
        parts = {"operator": self.measurements.operator, "noise": self.measurements.noise}
        described = {name: {"name": type(part).__name__, **_settings(part)} for name, part in parts.items()}
        return {**self.method.settings, **described, "measurement": self.measurements.source}

    def prior(self) -> Prior:
        """The model as a prior; exact laws have their own."""
        model = self.model
        if isinstance(model, ExactModel):
            return model.prior()
        times = model.times(self.sampler)
        mean = model.mean if self.sampler.poisson_start else None
        return Prior(
            model.denoiser(), model.process, model.shape, self.sampler.kernel, mean, times, device=model.device
        )

    def batches(
        self, indices: Tensor, seed: int, batch_size: int | None = None, watch: Watch | None = None
    ) -> Iterator[tuple[Tensor, Samples]]:
        """(indices [b], `samples` [b, *shape], `log_likelihood` [b] and `chains` [b, sweeps, 4])."""
        total = self.rows(self.samples_of_each)
        if len(indices) and int(indices.max()) >= total:
            raise UserError(f"indices must be below {total}: {len(self.measurements)} measurements x num_samples")
        problem = self.measurements.problem(seed) if len(indices) else None
        size = batch_size or min(self.batch_size, max(1, len(indices)))
        for part in indices.split(size):
            if not len(part):
                return
            assert problem is not None
            padded = torch.cat([part, part[-1:].expand(size - len(part))])
            found = self._run(problem, padded, seed, watch)
            named = {"samples": found.samples, "log_likelihood": found.log_likelihood, "chains": found.chains}
            yield part, {name: values[: len(part)].cpu() for name, values in named.items()}

    def _run(self, problem: Any, rows: Tensor, seed: int, watch: Watch | None) -> Posterior:
        number, k = rows // self.samples_of_each, rows % self.samples_of_each
        streams = SampleStreams(seed, (self.measurements.numbers[number] * STRIDE + k).to(self.model.device))
        mine = problem.select(number, self.model.shape)
        with torch.no_grad(), self.sampler.evaluation.of(self.model.averaged):
            found = self.method.run(self.prior(), mine, len(rows), streams, seen=_shown(watch))
        self._count(found)
        x = mine.repaired(found.samples)
        self.repaired += int((x != found.samples).sum())
        found.log_likelihood = mine.log_likelihood(x.double())
        found.samples = x
        return found

    def _count(self, found: Posterior) -> None:
        """Keep what the first batch took, and the seconds of all."""
        if not self.spent:
            self.spent = [dict(sweep) for sweep in found.trace]
            return
        for sum_, sweep in zip(self.spent, found.trace, strict=True):
            sum_["seconds"] += sweep["seconds"]

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image:
        """A grid of the counts."""
        from blackout.diffusion.plots import grid

        return grid(samples["samples"], self.model.process.max_count, columns)


def _shown(watch: Watch | None) -> Seen | None:
    """States for an animation: x, z and a bar as high as the logarithm of the level."""
    if watch is None:
        return None
    first: list[float] = []

    def seen(sweep: int, sweeps: int, x: Tensor, z: Tensor, level: float) -> None:
        first.append(level)
        bright = int(x.max())
        bar = torch.zeros((*x.shape[:-1], 1), dtype=torch.int64, device=x.device)
        rows = bar.shape[-2] if bar.ndim > 2 else 1
        filled = round(rows * min(1.0, level / first[0]))
        if bar.ndim > 2:
            bar[..., rows - filled :, :] = bright
        state = torch.cat([x.long(), bar * 0, z.long(), bar], -1)
        if sweep == 1:
            watch(0, sweeps, state)
        watch(sweep, sweeps, state)

    return seen


def _settings(part: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(part):
        return {}
    values = {one.name: getattr(part, one.name) for one in dataclasses.fields(part)}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | str | type(None)):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return f"{type(value).__name__}" if not callable(value) else getattr(value, "__name__", type(value).__name__)

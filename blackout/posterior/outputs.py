"""What a posterior draw leaves besides its samples: estimates, their errors, pictures and diagnostics."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from blackout.diffusion.plots import grid
from blackout.family import Samples
from blackout.files import replacing, save_picture
from blackout.posterior import diagnostics
from blackout.posterior.exact_model import ExactModel
from blackout.posterior.noise import Exact
from blackout.posterior.operators import Judged
from blackout.posterior.rewards import Tilt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN, _SAMPLES_SHOWN = 8, 6
_CURVES = ("total", "hidden total", "log_likelihood", "projection 0")
_REFERENCE = 20_000
"""Training samples among which neighbours are looked for."""
_TRACED = ("sweep", "level", "log_likelihood", "moved", "acceptance", "evaluations", "seconds")


class PosteriorOutputs:
    """Takes all samples, then writes posterior.npz, trace.csv, reconstruction.png and, with truths, calibration.png.

    Args:
        draw: a `PosteriorDraw`, where they come from.
        seed: of the samples.
    """

    def __init__(self, draw: Any, seed: int) -> None:
        self._draw, self._seed = draw, seed
        self._parts: list[tuple[Tensor, Samples]] = []

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Take a batch."""
        self._parts.append((indices, dict(samples)))

    def write(self, directory: Path) -> dict[str, Any]:
        """Write the files; returns `values` and settings for metrics.json."""
        self._gather()
        self._save(directory / "posterior.npz")
        self._trace(directory / "trace.csv")
        save_picture(self._reconstruction(), directory / "reconstruction.png")
        values = self._mixing() | self._spent() | self._fit()
        if self.truth is not None:
            values |= self._errors(self.truth)
        judged = self._judged(directory)
        values |= judged.pop("values", {})
        if self.truth is None or min(map(len, self.rows)) < 2:
            return {**judged, "values": values}
        ranks, elements = self._positions(self.truth)
        if len(self.rows) > 1:
            save_picture(calibration_picture(ranks, elements), directory / "calibration.png")
        scores = {
            "coverage_50": diagnostics.coverage(elements, 0.5), "coverage_90": diagnostics.coverage(elements, 0.9),
            "rank_p_value": diagnostics.rank_p_value(ranks),
        }  # fmt: skip
        about = {"measurements": len(self.rows), "truths": self._draw.measurements.source.split(":")[0]}
        return {**judged, "values": values | scores, "calibration": scores | about}

    def _gather(self) -> None:
        """All samples, and what is known of their measurements."""
        measurements, names = self._draw.measurements, self._parts[0][1]
        self.drawn = {name: torch.cat([part[name] for _, part in self._parts]) for name in names}
        self.x, self.log_likelihood = self.drawn["samples"], self.drawn["log_likelihood"]
        self.of = torch.cat([indices for indices, _ in self._parts]) // self._draw.samples_of_each
        self.chosen, self.place = self.of.unique(return_inverse=True)
        self.rows = [(self.of == m).nonzero()[:, 0] for m in self.chosen]
        self.shape = tuple(self.x.shape[1:])
        self.problem = measurements.problem(self._seed)
        self.y, self.truths = measurements.of(self._seed)
        self.truth = None if self.truths is None else self.truths[self.chosen]
        groups = [self.x[rows].double() for rows in self.rows]
        self.mean = torch.stack([one.mean(0) for one in groups])
        self.std = torch.stack([one.std(0, unbiased=False) for one in groups])

    def _save(self, path: Path) -> None:
        arrays = {
            "measurement": _last(self.y[self.chosen]), "mean": _last(self.mean), "std": _last(self.std),
            "log_likelihood": self.log_likelihood,
            "best": torch.stack([rows[self.log_likelihood[rows].argmax()] for rows in self.rows]),
            "number": self._draw.measurements.numbers[self.chosen],
        }  # fmt: skip
        if self.truth is not None:
            arrays["truth"] = _last(self.truth)
        with replacing(path) as part, open(part, "wb") as file:
            np.savez_compressed(file, **{name: values.numpy() for name, values in arrays.items()})

    def _trace(self, path: Path) -> None:
        """Means over all chains of every sweep."""
        chains = self.drawn["chains"].double().mean(0)
        with replacing(path) as part, open(part, "w", newline="") as file:
            writer = csv.DictWriter(file, _TRACED, extrasaction="ignore")
            writer.writeheader()
            for sweep, kept in zip(self._draw.spent, chains.tolist(), strict=True):
                writer.writerow(sweep | {"log_likelihood": kept[0], "moved": kept[1], "acceptance": kept[2]})

    def _reconstruction(self) -> Image.Image:
        """A row for every measurement: truth | data it suggests | mean | standard deviation | samples.

        Black where there is nothing to show; the largest standard deviation is white.
        """
        largest = self._draw.model.process.max_count
        near = self.problem.estimate(len(self.y), self.shape)
        deviation = self.std * (largest / max(float(self.std.max()), 1e-12))
        shown = [self.x[rows[:_SAMPLES_SHOWN]].double() for rows in self.rows[:_SHOWN]]
        columns, blank, cells = 4 + max(map(len, shown)), torch.zeros_like(self.mean[0]), []
        for row, samples in enumerate(shown):
            cells.append(blank if self.truth is None else self.truth[row].double())
            cells.append(blank if near is None else near[self.chosen[row]].double().clamp(0, largest))
            cells += [self.mean[row], deviation[row], *samples] + [blank] * (columns - 4 - len(samples))
        return grid(torch.stack(cells), largest, columns)

    def _mixing(self) -> dict[str, float]:
        """Of the second half of the sweeps."""
        chains = self.drawn["chains"].double().numpy()
        late = chains[:, chains.shape[1] // 2 :]
        if min(map(len, self.rows)) < 2 or late.shape[1] < 4:
            return {}
        mixing: dict[str, float] = {}
        for name, number in (("log_likelihood", 0), ("total", 3)):
            if np.isfinite(late[..., number]).all():
                parts = [late[rows.numpy(), :, number] for rows in self.rows]
                mixing[f"r_hat_{name}"] = float(np.mean([diagnostics.r_hat(part) for part in parts]))
                mixing[f"ess_{name}"] = float(np.mean([diagnostics.effective_size(part) for part in parts]))
        return mixing

    def _spent(self) -> dict[str, float]:
        spent = self._draw.spent
        return {
            "network_calls": float(sum(sweep["evaluations"] for sweep in spent)),
            "likelihood_calls": float(sum(sweep["calls"] for sweep in spent)),
            "seconds": sum(sweep["seconds"] for sweep in spent),
            "repaired_share": self._draw.repaired / max(1, self.x.numel()),
            "samples": float(len(self.x)),
        }

    def _fit(self) -> dict[str, float]:
        """How well samples explain their measurements."""
        problem = self.problem.select(self.of, self.shape)
        noise, m, y = problem.noise, problem.operator(self.x.double()), problem.y(self.shape)
        seen = problem.operator.seen(self.shape)
        kept = torch.ones(m.shape[1:], dtype=torch.bool) if seen is None else seen
        error, variance = (noise.mean(m) - y)[:, kept], noise.variance(m)[:, kept]
        fit = {"log_likelihood": float(self.log_likelihood.mean())}
        if isinstance(noise, Tilt):
            fit["reward"] = float(m.flatten(1).sum(1).mean())
        if isinstance(noise, Exact):
            fit["violations"] = float((error != 0).double().sum(1).mean())
        elif bool((variance > 0).any()):
            ratio = torch.where(variance > 0, error**2 / variance.clamp(min=1e-12), (error != 0).double())
            fit["residual_chi_square"] = float(ratio.mean())
        return fit

    def _errors(self, truth: Tensor) -> dict[str, float]:
        largest, problem = self._draw.model.process.max_count, self.problem.select(self.chosen, self.shape)
        errors = {
            "psnr": float(diagnostics.psnr(self.x, truth[self.place], largest).mean()),
            "psnr_of_mean": float(diagnostics.psnr(self.mean, truth, largest).mean()),
            "std": float((self.x.double() - self.mean[self.place]).pow(2).mean().sqrt()),
            "log_likelihood_of_truth": float(problem.log_likelihood(truth.double()).mean()),
        }
        if not self._draw.measurements.source.startswith(("test", "train")):
            return errors
        source = self._draw.model.require_source()
        train = source.batch("train", torch.arange(min(_REFERENCE, source.size("train"))))
        if "label" in train:
            labels = [diagnostics.nearest_labels(x, train["x0"].cpu(), train["label"]) for x in (truth, self.x)]
            errors["label_agreement"] = float((labels[1] == labels[0][self.place]).double().mean())
        return errors

    def _judged(self, directory: Path) -> dict[str, Any]:
        """What an exact law and an operator say about the samples."""
        model, operator = self._draw.model, self._draw.measurements.operator
        judged = Judged(self.x, self.of, self.problem, self.truths, self._seed)
        law = model.judge(judged, directory) if isinstance(model, ExactModel) else {}
        own = operator.judge(judged, directory)
        return {**law, **own, "values": law.get("values", {}) | own.get("values", {})}

    def _positions(self, truth: Tensor) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Where truths lie among their samples: by statistic, [M] each, and every element, [M, D], hidden ones if some
        are.
        """
        log_l = self.problem.select(self.chosen, self.shape).log_likelihood(truth.double()).numpy()
        seen = self.problem.operator.seen(self.shape)
        hidden = ~seen.flatten().numpy() if seen is not None and self.y.shape[1:] == self.shape else None
        rng = np.random.default_rng(self._seed)
        ranks: dict[str, list[float]] = {}
        elements = []
        for rows, one, log_l_of_one in zip(self.rows, truth.double().flatten(1).numpy(), log_l, strict=True):
            x = self.x[rows].double().flatten(1).numpy()
            of_samples = diagnostics.statistics(x, self.log_likelihood[rows].numpy(), hidden)
            of_truth = diagnostics.statistics(one, log_l_of_one, hidden)
            for name, values in of_samples.items():
                at = diagnostics.positions(values, np.asarray(of_truth[name]), rng)
                ranks.setdefault(name, []).append(float(at))
            elements.append(diagnostics.positions(x, one, rng))
        at = np.stack(elements)
        return {name: np.array(values) for name, values in ranks.items()}, at if hidden is None else at[:, hidden]


def calibration_picture(ranks: dict[str, np.ndarray], elements: np.ndarray) -> Image.Image:
    """Histograms of the positions of truths among samples, and how often intervals cover.

    Args:
        ranks: positions [M] by statistic.
        elements: positions of elements [M, D].
    """
    shown = [name for name in _CURVES if name in ranks]
    figure = new_figure((3 * (len(shown) + 1), 2.6))
    axes = figure.subplots(1, len(shown) + 1)
    for axis, name in zip(axes, shown, strict=False):
        bins = max(2, min(10, len(ranks[name]) // 5))
        axis.hist(ranks[name], bins, (0, 1))
        axis.axhline(len(ranks[name]) / bins, color="black", linewidth=1)
        axis.set_title(f"rank of the true {name.replace('_', ' ')}", fontsize=8)
    share = np.linspace(0.02, 0.98, 49)
    axes[-1].plot(share, [diagnostics.coverage(elements, one) for one in share])
    axes[-1].plot((0, 1), (0, 1), color="black", linewidth=1)
    axes[-1].set_title("coverage of intervals by their share", fontsize=8)
    return picture_of(figure)


def new_figure(size: tuple[float, float]) -> Figure:
    """An empty figure of so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def picture_of(figure: Figure) -> Image.Image:
    """A figure as pixels, 100 to the inch."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return Image.open(buffer).convert("RGB")


def _last(values: Tensor) -> Tensor:
    """Images channels last."""
    return values.permute(0, 2, 3, 1).contiguous() if values.ndim == 4 else values

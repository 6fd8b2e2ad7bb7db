"""What a posterior draw leaves besides its samples: estimates, their errors, pictures and diagnostics."""

from __future__ import annotations

import csv
import io
from functools import cached_property
from pathlib import Path
from typing import Any

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
from blackout.posterior.operators import Tilt
from blackout.posterior.operators.base import Findings

# --- Pictures of posteriors.

_CURVES = ("total", "hidden total", "log_likelihood", "projection 0")


def reconstruction(
    truth: Tensor | None, near: Tensor | None, mean: Tensor, std: Tensor, samples: list[Tensor], max_count: int
) -> Image.Image:
    """A row for every measurement: truth | measurement | mean | standard deviation | samples.

    Args:
        truth: counts [M, *shape]; black where it is not known, like `near`.
        near: data that the measurement suggests, [M, *shape].
        mean, std: [M, *shape]; the largest standard deviation is white.
        samples: of the rows that are shown, counts [k, *shape] each.
        max_count: white.
    """
    columns = 4 + max(len(one) for one in samples)
    cells = []
    for row, drawn in enumerate(samples):
        blank = torch.zeros_like(mean[row])
        cells.append(blank if truth is None else truth[row].double())
        cells.append(blank if near is None else near[row].double().clamp(0, max_count))
        cells += [mean[row], std[row] * (max_count / max(float(std.max()), 1e-12))]
        cells += [one.double() for one in drawn] + [blank] * (columns - 4 - len(drawn))
    return grid(torch.stack(cells), max_count, columns)


def calibration_picture(ranks: dict[str, np.ndarray], elements: np.ndarray) -> Image.Image:
    """Histograms of the positions of truths among samples, and how often intervals cover.

    Args:
        ranks: positions [M] by statistic.
        elements: positions of elements [M, D].
    """
    from matplotlib.figure import Figure

    shown = [name for name in _CURVES if name in ranks]
    figure = Figure(figsize=(3 * (len(shown) + 1), 2.6), layout="constrained")
    axes = figure.subplots(1, len(shown) + 1)
    for axis, name in zip(axes, shown, strict=False):
        bins = max(2, min(10, len(ranks[name]) // 5))
        axis.hist(ranks[name], bins, (0, 1))
        axis.axhline(len(ranks[name]) / bins, color="black", linewidth=1)
        axis.set_title(f"rank of the true {name.replace('_', ' ')}", fontsize=8)
    share = np.linspace(0.02, 0.98, 49)
    axes[-1].plot(share, [(np.abs(elements - 0.5) <= one / 2).mean() for one in share])
    axes[-1].plot((0, 1), (0, 1), color="black", linewidth=1)
    axes[-1].set_title("coverage of intervals by their share", fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return Image.open(buffer).convert("RGB")


_SHOWN, _SAMPLES_SHOWN = 8, 6
_REFERENCE = 20_000
"""Training samples among which neighbours are looked for."""


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

    @cached_property
    def _all(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Numbers of the measurements, [n], and everything by name."""
        of = torch.cat([indices for indices, _ in self._parts]) // self._draw.samples_of_each
        names = self._parts[0][1]
        return of, {name: torch.cat([part[name] for _, part in self._parts]) for name in names}

    def write(self, directory: Path) -> dict[str, Any]:
        """Write the files; returns `values` and settings for metrics.json."""
        of, drawn = self._all
        y, truths = self._draw.measurements.of(self._seed)
        groups = [(int(m), (of == m).nonzero()[:, 0]) for m in of.unique(sorted=True)]
        chosen = of.unique(sorted=True)
        parts = [drawn["samples"][rows].double() for _, rows in groups]
        mean = torch.stack([one.mean(0) for one in parts])
        std = torch.stack([one.std(0, unbiased=False) for one in parts])
        truth = None if truths is None else truths[chosen]
        self._save(directory, groups, y[chosen], truth, mean, std)
        self._trace(directory)
        self._picture(directory, groups, chosen, truth, mean, std)
        values = self._mixing(groups) | self._spent()
        values |= self._fit(of) if truth is None else self._errors(of, chosen, truth, mean)
        judged = self._judged(directory)
        values |= judged.pop("values", {})
        if truth is None or min(map(len, parts)) < 2:
            return {**judged, "values": values}
        found = self._calibration(groups, truth)
        if len(groups) > 1:
            save_picture(calibration_picture(found["ranks"], found["elements"]), directory / "calibration.png")
        calibration = found["calibration"]
        return {**judged, "values": values | dict(list(calibration.items())[:3]), "calibration": calibration}

    def _judged(self, directory: Path) -> dict[str, Any]:
        """What an exact law or an operator says about the samples."""
        draw, (of, drawn) = self._draw, self._all
        problem, truths = draw.measurements.problem(self._seed), draw.measurements.of(self._seed)[1]
        findings = Findings(drawn["samples"], of, problem, truths, self._seed)
        law = draw.model.judge(findings, directory) if isinstance(draw.model, ExactModel) else {}
        own = draw.measurements.operator.judge(findings, directory)
        return {**law, **own, "values": law.get("values", {}) | own.get("values", {})}

    def _picture(
        self, directory: Path, groups: list[tuple[int, Tensor]], chosen: Tensor, truth: Tensor | None, mean: Tensor,
        std: Tensor,
    ) -> None:  # fmt: skip
        """reconstruction.png."""
        model, drawn = self._draw.model, self._all[1]["samples"]
        near = self._draw.measurements.problem(self._seed).estimate(len(self._draw.measurements), model.shape)
        near = None if near is None else near[chosen]
        shown = [drawn[rows[:_SAMPLES_SHOWN]] for _, rows in groups[:_SHOWN]]
        picture = reconstruction(truth, near, mean, std, shown, model.process.max_count)
        save_picture(picture, directory / "reconstruction.png")

    def _save(
        self, directory: Path, groups: list[tuple[int, Tensor]], y: Tensor, truth: Tensor | None, mean: Tensor,
        std: Tensor,
    ) -> None:  # fmt: skip
        _, drawn = self._all
        ranked = [drawn["log_likelihood"][rows] for _, rows in groups]
        arrays = {
            "measurement": _last(y), "mean": _last(mean), "std": _last(std),
            "log_likelihood": drawn["log_likelihood"],
            "best": torch.stack([rows[values.argmax()] for (_, rows), values in zip(groups, ranked, strict=True)]),
            "number": self._draw.measurements.numbers[torch.tensor([m for m, _ in groups])],
        }  # fmt: skip
        if truth is not None:
            arrays["truth"] = _last(truth)
        with replacing(directory / "posterior.npz") as part, open(part, "wb") as file:
            np.savez_compressed(file, **{name: values.numpy() for name, values in arrays.items()})

    def _trace(self, directory: Path) -> None:
        """Means over all chains of every sweep."""
        chains = self._all[1]["chains"].double().mean(0)
        fields = ("sweep", "level", "log_likelihood", "moved", "acceptance", "evaluations", "seconds")
        with replacing(directory / "trace.csv") as part, open(part, "w", newline="") as file:
            writer = csv.DictWriter(file, fields)
            writer.writeheader()
            for sweep, kept in zip(self._draw.spent, chains.tolist(), strict=True):
                row = sweep | {"log_likelihood": kept[0], "moved": kept[1], "acceptance": kept[2]}
                writer.writerow({name: row[name] for name in fields})

    def _mixing(self, groups: list[tuple[int, Tensor]]) -> dict[str, float]:
        """Of the second half of the sweeps."""
        chains = self._all[1]["chains"].double().numpy()
        late = chains[:, chains.shape[1] // 2 :]
        found: dict[str, float] = {}
        for name, number in (("log_likelihood", 0), ("total", 3)):
            parts = [late[rows.numpy(), :, number] for _, rows in groups]
            if (
                min(part.shape[0] for part in parts) < 2
                or late.shape[1] < 4
                or not np.isfinite(late[..., number]).all()
            ):
                continue
            found[f"r_hat_{name}"] = float(np.mean([diagnostics.r_hat(part) for part in parts]))
            found[f"ess_{name}"] = float(np.mean([diagnostics.effective_size(part) for part in parts]))
        return found

    def _spent(self) -> dict[str, float]:
        spent, rows = self._draw.spent, len(self._all[0])
        return {
            "network_calls": float(sum(sweep["evaluations"] for sweep in spent)),
            "likelihood_calls": float(sum(sweep["calls"] for sweep in spent)),
            "seconds": sum(sweep["seconds"] for sweep in spent),
            "repaired_share": self._draw.repaired / max(1, self._all[1]["samples"].numel()),
            "samples": float(rows),
        }

    def _fit(self, of: Tensor) -> dict[str, float]:
        """How well samples explain their measurements."""
        x = self._all[1]["samples"]
        problem = self._draw.measurements.problem(self._seed).select(of, tuple(x.shape[1:]))
        m, y = problem.operator(x.double()), problem.y(tuple(x.shape[1:]))
        seen = problem.operator.seen(tuple(x.shape[1:]))
        kept = torch.ones(m.shape[1:], dtype=torch.bool) if seen is None else seen
        error, variance = (problem.noise.mean(m) - y)[:, kept], problem.noise.variance(m)[:, kept]
        found = {"log_likelihood": float(self._all[1]["log_likelihood"].mean())}
        if isinstance(problem.noise, Tilt):
            found["reward"] = float(m.flatten(1).sum(1).mean())
        if isinstance(problem.noise, Exact):
            found["violations"] = float((error != 0).double().sum(1).mean())
        elif bool((variance > 0).any()):
            ratio = torch.where(variance > 0, error**2 / variance.clamp(min=1e-12), (error != 0).double())
            found["residual_chi_square"] = float(ratio.mean())
        return found

    def _errors(self, of: Tensor, chosen: Tensor, truth: Tensor, mean: Tensor) -> dict[str, float]:
        x, largest = self._all[1]["samples"], self._draw.model.process.max_count
        place = torch.searchsorted(chosen, of)
        problem = self._draw.measurements.problem(self._seed).select(chosen, tuple(x.shape[1:]))
        found = self._fit(of) | {
            "psnr": float(diagnostics.psnr(x, truth[place], largest).mean()),
            "psnr_of_mean": float(diagnostics.psnr(mean, truth, largest).mean()),
            "std": float((x.double() - mean[place]).pow(2).mean().sqrt()),
            "log_likelihood_of_truth": float(problem.log_likelihood(truth.double()).mean()),
        }
        labels = self._labels()
        if labels is not None:
            train, names = labels
            of_truth = diagnostics.nearest_labels(truth, train, names)
            agree = diagnostics.nearest_labels(x, train, names) == of_truth[place]
            found["label_agreement"] = float(agree.double().mean())
        return found

    def _labels(self) -> tuple[Tensor, Tensor] | None:
        """Training samples and labels, if the data have any and are at hand."""
        if not self._draw.measurements.source.startswith(("test", "train")):
            return None
        source = self._draw.model.require_source()
        batch = source.batch("train", torch.arange(min(_REFERENCE, source.size("train"))))
        return (batch["x0"].cpu(), batch["label"]) if "label" in batch else None

    def _calibration(self, groups: list[tuple[int, Tensor]], truth: Tensor) -> dict[str, Any]:
        """Positions of truths among their samples: of statistics, and of every element."""
        _, drawn = self._all
        problem = self._draw.measurements.problem(self._seed)
        shape = tuple(truth.shape[1:])
        likelihood = problem.select(torch.tensor([m for m, _ in groups]), shape).log_likelihood(truth.double())
        seen = problem.operator.seen(shape)
        hidden = None if seen is None or problem.operator.measured(shape) != shape else ~seen.flatten().numpy()
        rng = np.random.default_rng(self._seed)
        ranks: dict[str, list[float]] = {}
        elements = []
        for (_, rows), one, log_l in zip(groups, truth, likelihood, strict=True):
            x = drawn["samples"][rows].double().flatten(1).numpy()
            of_samples = diagnostics.statistics(x, drawn["log_likelihood"][rows].numpy(), hidden)
            of_truth = diagnostics.statistics(one.double().flatten().numpy(), log_l.numpy(), hidden)
            for name, values in of_samples.items():
                at = diagnostics.positions(values, np.asarray(of_truth[name]), rng)
                ranks.setdefault(name, []).append(float(at))
            elements.append(diagnostics.positions(x, one.double().flatten().numpy(), rng))
        at, all_ranks = np.stack(elements), {name: np.array(values) for name, values in ranks.items()}
        at = at if hidden is None else at[:, hidden]
        found = {
            "coverage_50": diagnostics.coverage(at, 0.5), "coverage_90": diagnostics.coverage(at, 0.9),
            "rank_p_value": diagnostics.rank_p_value(all_ranks), "measurements": len(groups),
            "truths": self._draw.measurements.source.split(":")[0],
        }  # fmt: skip
        return {"calibration": found, "ranks": all_ranks, "elements": at}


def _last(values: Tensor) -> Tensor:
    """Images channels last."""
    return values.permute(0, 2, 3, 1).contiguous() if values.ndim == 4 else values

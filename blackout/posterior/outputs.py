"""What a posterior draw leaves besides its samples: estimates, their errors, pictures and diagnostics."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from blackout.diffusion.plots import grid
from blackout.files import replacing, save_arrays, save_picture
from blackout.posterior import diagnostics
from blackout.posterior.diagnostics import FIELDS, SHARES
from blackout.posterior.noise import Exact
from blackout.posterior.operators import Judged
from blackout.posterior.problem import Measured
from blackout.posterior.rewards import Tilt
from blackout.posterior.unknown_number import Blind
from blackout.protocols import Samples
from blackout.random import SampleStreams, fold_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN, _SAMPLES_SHOWN = 8, 6
_LARGEST_R_HAT, _LEAST_P, _MOST_PASTED = 1.05, 1e-3, 0.05
"""Beyond which the samples of a measurement are warned of."""
_REPLICATED, _UNCONDITIONAL, _AGAIN, _BAND = 13, 14, 15, (0.005, 0.995)
STEPS, _OWN, _SHARE = 8, 64, 0.15
"""Of draws of the model alone, their number at most, and evaluations they may take, as a share of all others."""
_GUESSES, _TURNS = 64, 2
"""Of what else could have been measured, at each of so many noised states of a sample."""
_CURVES = ("total", "hidden total", "log_likelihood", "projection 0")
_COMPARED = [0, 3, *range(len(FIELDS), len(FIELDS) + diagnostics.projections(1).shape[1])]
"""Of what is kept of chains: log-likelihood, total, projections."""
SPENT = ("sweep", "level", "evaluations", "calls", "seconds")
"""What is told of every sweep of a sample; its seconds are a share of its batch's."""


class PosteriorOutputs:
    """Takes all samples, then writes posterior.npz and .nc, reconstruction.png and, with truths, calibration.png.

    Args:
        draw: a `PosteriorDraw`, where they come from.
        seed: of the samples.
    """

    def __init__(self, draw: Any, seed: int) -> None:
        self._draw, self._seed = draw, seed
        self._parts: list[tuple[Tensor, Samples]] = []

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Take a batch with these numbers, int64 [b], which an earlier call of the same command may have drawn.

        Its seconds, the last column of `_spent` [b, sweeps, 5], are summed over samples.
        """
        self._parts.append((indices, dict(samples)))
        spent = samples["_spent"]
        if not self._draw.spent:
            self._draw.spent += [{**dict(zip(SPENT, row, strict=True)), "seconds": 0.0} for row in spent[0].tolist()]
        for sweep, seconds in zip(self._draw.spent, spent[..., -1].sum(0).tolist(), strict=True):
            sweep["seconds"] += seconds

    def write(self, directory: Path) -> dict[str, Any]:
        """Write the files; returns `values` and settings for metrics.json."""
        self._gather()
        self._diagnose()
        self._save(directory / "posterior.npz")
        if find_spec("h5py") is not None:
            self._inference_data(directory / "posterior.nc")
        save_picture(self._reconstruction(), directory / "reconstruction.png")
        values = self._mixing() | self._spent() | self._fit() | self._evidence()
        if self.truth is not None:
            values |= self._errors(self.truth)
        judged = self._judged(directory)
        values |= judged.pop("values", {})
        rivals = {} if self.truth is None else {"references": self._rivals(self.truth)}
        scores: dict[str, Any] = {}
        if self.truth is not None and min(map(len, self.rows)) > 1:
            ranks, elements = self._positions(self.truth)
            if len(self.rows) > 1:
                save_picture(calibration_picture(ranks, elements), directory / "calibration.png")
            scores = {f"coverage_{share}": diagnostics.coverage(elements, share / 100) for share in (50, 90)}
            if not math.isnan(rank_p := diagnostics.rank_p_value(ranks)):
                scores["rank_p_value"] = rank_p
            about = {"measurements": len(self.rows), "truths": self._draw.measurements.source.split(":")[0]}
            judged["calibration"] = scores | about
        warnings = self._warnings(scores.get("rank_p_value", math.nan))
        for line in warnings:
            print(f"warning: {line}")
        return {**judged, **rivals, "warnings": warnings, "values": values | scores}

    def _gather(self) -> None:
        """All samples [n, *shape], and what is known of their measurements: means, deviations, `quantiles`."""
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
        self.quantiles = torch.stack([diagnostics.quantiles(one) for one in groups])

    def _save(self, path: Path) -> None:
        arrays = {
            "measurement": _last(self.y[self.chosen]), "mean": _last(self.mean), "std": _last(self.std),
            "log_likelihood": self.log_likelihood, "shares": torch.tensor(SHARES),
            "quantiles": _last(self.quantiles.flatten(0, 1)).unflatten(0, (-1, len(SHARES))),
            "best": torch.stack([rows[self.log_likelihood[rows].argmax()] for rows in self.rows]),
            "number": self._draw.measurements.numbers[self.chosen], **self.checks,
            "spent": torch.tensor([[sweep[name] for name in SPENT] for sweep in self._draw.spent]),
        }  # fmt: skip
        if self.truth is not None:
            arrays["truth"] = _last(self.truth)
        save_arrays(path, **{name: values.numpy() for name, values in arrays.items()})

    def _inference_data(self, path: Path) -> None:
        """What ArviZ reads, `arviz.from_netcdf`: netCDF-4 by way of HDF5's dimension scales. Samples are draws of one
        chain; of methods with chains `sample_stats` has what R-hat is computed from.
        """
        import h5py  # type: ignore[import-not-found,unused-ignore]

        def of_each(values: Tensor) -> np.ndarray:
            return torch.stack([values[rows[:least]] for rows in self.rows], 1).double().numpy()

        least, kept = min(map(len, self.rows)), self.drawn["chains"][..., _COMPARED]
        late = of_each(kept[:, kept.shape[1] // 2 :]).swapaxes(1, 2)  # [chain, draw, measurement, what is compared]
        of_chains = {"lp": late[..., 0], "total": late[..., 1], "projection": late[..., 2:]}
        groups = {
            "posterior": {"x": of_each(_last(self.x))[None]},
            "sample_stats": of_chains if self._draw.method.mixes else {},
            "observed_data": {"y": _last(self.y[self.chosen]).numpy()},
        }
        if isinstance(self.problem, Blind):
            groups["posterior"][self.problem.unknown.name] = of_each(self.drawn[self.problem.unknown.name])[None]
        with replacing(path) as part, h5py.File(part, "w") as file:
            for name, variables in groups.items():
                for of, values in variables.items():
                    axes = ("measurement",) if name == "observed_data" else ("chain", "draw", "measurement")
                    data = file.require_group(name).create_dataset(of, data=values)
                    for axis in range(values.ndim):
                        dim = axes[axis] if axis < len(axes) else f"{of}_dim_{axis - len(axes)}"
                        if dim not in file[name]:
                            file[name][dim] = np.arange(values.shape[axis])
                            file[name][dim].make_scale(dim)
                        data.dims[axis].attach_scale(file[name][dim])

    def _reconstruction(self) -> Figure | None:
        """A row for every measurement: truth and data it suggests, where they are known, mean, standard deviation, and
        samples, black where there are fewer; None for points. White are the largest count of a sample and the largest
        deviation.
        """
        if math.prod(self.shape) < 3:
            return None
        from matplotlib.figure import Figure

        white, top = max(int(self.x.max()), 1), max(float(self.std[:_SHOWN].max()), 1e-12)
        near = self.problem.estimate(len(self.y), self.shape)
        columns = {} if self.truth is None else {"truth": self.truth}
        columns |= {} if near is None else {"suggested by y": near[self.chosen]}
        columns |= {"mean": self.mean, f"deviation, to {top:.3g}": self.std * (white / top)}
        for k in range(min(_SAMPLES_SHOWN, max(map(len, self.rows)))):
            there = (self.x[rows[k]] if k < len(rows) else torch.zeros_like(self.x[0]) for rows in self.rows[:_SHOWN])
            columns[f"sample {k}"] = torch.stack([*there])
        number = min(_SHOWN, len(self.rows))
        figure = Figure(figsize=(1.1 * len(columns) + 0.3, 1.1 * number + 0.3), layout="constrained")
        for axis, (title, values) in zip(figure.subplots(1, len(columns)), columns.items(), strict=True):
            strip = np.asarray(grid(values[:number].double().clamp(0, white), white, 1))
            axis.imshow(strip, aspect="auto", interpolation="nearest")
            axis.set_title(title, fontsize=7)
            axis.set(xticks=[], yticks=[])
        axis = figure.axes[0]
        numbers = self._draw.measurements.numbers[self.chosen[:number]].tolist()
        axis.set_yticks((np.arange(number) + 0.5) * len(strip) / number, [f"{m}" for m in numbers], fontsize=7)
        axis.set_ylabel("measurement", fontsize=7)
        return figure

    def _diagnose(self) -> None:
        """`checks`: what is said of every measurement by itself, float64 [M] each.

        By functions of `blackout.posterior.diagnostics`, which say where they are from; `chi_square` is the mean square
        of `residuals`.
        """
        names = ("r_hat", "ess_bulk", "ess_tail", "chi_square", "predictive_p", "prior_p")
        self.checks = {name: torch.full((len(self.rows),), math.nan, dtype=torch.float64) for name in names}
        chains = self.drawn["chains"].double().numpy()[..., _COMPARED]
        late, mixes = chains[:, chains.shape[1] // 2 :], self._draw.method.mixes
        seen, own = self.problem.operator.seen(self.shape), self._own()
        for m, rows in enumerate(self.rows):
            if mixes:
                parts = [late[rows.numpy(), :, number] for number in range(late.shape[2])]
                self.checks["r_hat"][m] = max(map(diagnostics.r_hat, parts))
                self.checks["ess_bulk"][m] = min(map(diagnostics.effective_size, parts))
                self.checks["ess_tail"][m] = min(map(diagnostics.tail_size, parts))
            x, one = self.x[rows].double(), self.problem.select(self.chosen[m : m + 1], self.shape)
            noise, noiseless = one.noise, one.operator(x)
            if isinstance(one, Blind):
                numbers = self.drawn[one.unknown.name][rows]
                noise, noiseless = one.with_numbers(x, numbers)
                one = one.at(float(numbers.median()))
            y = one.y(self.shape)
            number = int(self._draw.measurements.numbers[self.chosen[m]])
            if len(own):
                if m == 0 or isinstance(self.problem, Blind):
                    again = SampleStreams(fold_seed(self._seed, _AGAIN), torch.arange(len(own))).fold_in(number)
                    of_own = self._surprises(one, own, one.noise.draw(one.operator(own.double()), again.step(0)))
                of_y = self._surprises(one, self.x[rows[:_OWN]], y.expand(min(len(rows), _OWN), *y.shape[1:])).mean(0)
                self.checks["prior_p"][m] = diagnostics.prior_p_value(of_y, of_own, one.terms(x).shape[1])
            if not isinstance(noise, Exact) and bool((noise.variance(noiseless) > 0).any()):
                kept = noiseless[0].numel() if seen is None else int(seen.sum())
                chi_square = (diagnostics.residuals(noise, y, noiseless, seen) ** 2).sum(1) / kept
                self.checks["chi_square"][m] = chi_square.mean()
                seed = fold_seed(fold_seed(self._seed, _REPLICATED), number)
                self.checks["predictive_p"][m] = diagnostics.predictive_p_value(noise, y, noiseless, seen, seed)
        if "log_evidence" in self.drawn:
            found = [diagnostics.log_mean(self.drawn["log_evidence"][rows].numpy()) for rows in self.rows]
            both = torch.tensor(found, dtype=torch.float64).T
            self.checks |= dict(zip(("log_evidence", "log_evidence_error"), both, strict=True))
        if isinstance(self.problem, Blind):
            drawn = self.drawn[name := self.problem.unknown.name]
            self.checks[name] = torch.stack([diagnostics.quantiles(drawn[rows]) for rows in self.rows])
        pasted = torch.stack([self.drawn["pasted"][rows].double().mean() for rows in self.rows])
        self.checks["pasted_share"] = pasted / (math.prod(self.shape) if seen is None else int(seen.sum()))

    def _own(self) -> Tensor:
        """Draws of the model alone, counts [n, *shape], for a small share of the run's evaluations; none where nothing
        was measured, or where too few could be had.
        """
        number = min(_OWN, int(_SHARE * self._draw.nfe * len(self.x) / (2 * STEPS)))
        if number < diagnostics.FEWEST or isinstance(self.problem.noise, Tilt):
            return torch.empty(0)
        return torch.as_tensor(self._draw.unconditional(number, fold_seed(self._seed, _UNCONDITIONAL)))

    def _surprises(self, one: Measured, x: Tensor, y: Tensor) -> Tensor:
        """What is surprising of measurements y [n, *measured] where the data x [n, *shape] behind them are known but
        for what the model must guess: [n, 3], averaged over several guesses. By `diagnostics.surprises`.
        """
        seen, found = one.operator.seen(self.shape), []
        for turn in range(_TURNS):
            seed = fold_seed(fold_seed(self._seed, _AGAIN), turn)
            for row, guesses in enumerate(self._draw.restored(x, _GUESSES, seed)):
                source = SampleStreams(seed, torch.arange(_GUESSES)).fold_in(row).step(0)
                both = torch.cat([y[row : row + 1], one.noise.draw(one.operator(guesses.double()), source)])
                both = both.flatten(1) if seen is None else both[:, seen]
                found.append(diagnostics.surprises(both[:1], both[1:, None]))
        return torch.cat(found).view(_TURNS, len(x), -1).mean(0)

    def _mixing(self) -> dict[str, float]:
        """Of the worst measurement, over the second half of the sweeps."""
        worst = {"r_hat": np.fmax} | dict.fromkeys(("ess_bulk", "ess_tail", "predictive_p", "prior_p"), np.fmin)
        found = {name: float(of.reduce(self.checks[name].numpy())) for name, of in worst.items()}
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def _warnings(self, rank_p: float) -> list[str]:
        """A line for everything that says the samples are not to be trusted."""
        impossible = [bool(torch.isneginf(self.log_likelihood[rows]).any()) for rows in self.rows]
        checks, said = self.checks, []
        for bad, what in (
            (torch.tensor(impossible), "samples that y excludes (log-likelihood -inf): none that agree were found"),
            (checks["r_hat"] > _LARGEST_R_HAT, f"R-hat up to {_most(checks['r_hat']):.2f} (agreement: below "
             f"{_LARGEST_R_HAT}), effective samples down to {-_most(-checks['ess_bulk']):.0f}: the chains disagree"),
            (checks["predictive_p"] < _LEAST_P, f"predictive p below {_LEAST_P}, chi-square up to "
             f"{_most(checks['chi_square']):.3g} per element: many samples do not explain y as noise and operator say"),
            (checks["prior_p"] < _LEAST_P, f"prior p below {_LEAST_P}: y is unlike what draws of the model would give; "
             "look for another operator, other units, or data that the model does not know"),
            (checks["pasted_share"] > _MOST_PASTED, f"up to {_most(checks['pasted_share']):.0%} of the known elements "
             "contradicted y at the end and were put in their place: the others were drawn beside wrong ones"),
        ):  # fmt: skip
            if bool(bad.any()):
                said.append(f"{int(bad.sum())} of {len(bad)} measurements: {what}")
        if rank_p < _LEAST_P:
            said.append(f"rank_p_value {rank_p:.1g}: the truths do not lie among the samples as among equals")
        return said

    def _spent(self) -> dict[str, float]:
        spent = self._draw.spent
        return {
            "network_calls": float(self._draw.nfe),
            "likelihood_calls": float(sum(sweep["calls"] for sweep in spent)),
            "seconds": sum(sweep["seconds"] for sweep in spent),
            "pasted_share": float(self.checks["pasted_share"].mean()),
            "samples": float(len(self.x)),
        }

    def _evidence(self) -> dict[str, float]:
        """log p of all measurements together, and its standard error, numbers; of one, the intervals of what was
        unknown.

        Sums of independent estimates, see `diagnostics.log_mean`.
        """
        within = {}
        if isinstance(self.problem, Blind) and len(self.rows) == 1:
            found = self.checks[name := self.problem.unknown.name][0].tolist()
            within = {f"{name}_{100 * share:.0f}": value for share, value in zip(SHARES, found, strict=True)}
        if "log_evidence" not in self.checks:
            return within
        error = float((self.checks["log_evidence_error"] ** 2).sum().sqrt())
        known = {} if math.isnan(error) else {"log_evidence_error": error}
        return {"log_evidence": float(self.checks["log_evidence"].sum()), **known, **within}

    def _fit(self) -> dict[str, float]:
        """How well samples explain their measurements: numbers, by `diagnostics.residuals`."""
        problem = self.problem.select(self.of, self.shape)
        noise, m, y = problem.noise, problem.operator(self.x.double()), problem.y(self.shape)
        seen = problem.operator.seen(self.shape)
        fit = {"log_likelihood": float(self.log_likelihood.mean())}
        if isinstance(noise, Tilt):
            fit["reward"] = float(m.flatten(1).sum(1).mean())
        if isinstance(noise, Exact):
            fit["violations"] = float((diagnostics.residuals(noise, y, m, seen) != 0).double().sum(1).mean())
        elif not bool(self.checks["chi_square"].isnan().any()):
            fit["residual_chi_square"] = float(self.checks["chi_square"].mean())
        return fit

    def _errors(self, truth: Tensor) -> dict[str, float]:
        """Errors against truths [M, *shape], numbers: `diagnostics.psnr`, and the samples' standard deviation."""
        largest, problem = self._draw.model.process.max_count, self.problem.select(self.chosen, self.shape)
        return {
            "psnr": float(diagnostics.psnr(self.x, truth[self.place], largest).mean()),
            "psnr_of_mean": float(diagnostics.psnr(self.mean, truth, largest).mean()),
            "std": float((self.x.double() - self.mean[self.place]).pow(2).mean().sqrt()),
            "log_likelihood_of_truth": float(problem.log_likelihood(truth.double()).mean()),
        }

    def _rivals(self, truth: Tensor) -> dict[str, dict[str, float]]:
        """What stands beside the errors: those of the mean of all training data, which looks at no measurement, and of
        samples beside others of their measurement, among which the truth would be one like any: `diagnostics.psnr`,
        numbers.
        """
        model, mean = self._draw.model, self._draw.model.mean.double().cpu().expand(truth.shape)
        blind = {"training_mean": float(diagnostics.psnr(mean, truth, model.process.max_count).mean())}
        if min(map(len, self.rows)) < 2:
            return {"psnr": blind, "psnr_of_mean": blind}
        one, other = torch.cat(self.rows), torch.cat([rows.roll(1) for rows in self.rows])
        of_other = float(diagnostics.psnr(self.x[one], self.x[other], model.process.max_count).mean())
        return {"psnr": {"of_other_samples": of_other, **blind}, "psnr_of_mean": blind}

    def _judged(self, directory: Path) -> dict[str, Any]:
        """What an exact law and an operator say about the samples."""
        model, operator = self._draw.model, self._draw.measurements.operator
        judged = Judged(self.x, self.of, self.problem, self.truths, self._seed)
        law = model.judge(judged, directory) if hasattr(model, "judge") else {}
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


def _most(values: Tensor) -> float:
    """The largest of those that are known, NaN where none is."""
    return float(np.fmax.reduce(values.numpy()))


def calibration_picture(ranks: dict[str, np.ndarray], elements: np.ndarray) -> Figure:
    """Histograms of the positions of truths among samples, with the band that holds 99 % of the bars of right samplers,
    and how often intervals cover.

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
        axis.axhspan(*stats.binom.ppf(_BAND, len(ranks[name]), 1 / bins), color="black", alpha=0.15)
        axis.set_title(f"rank of the true {name.replace('_', ' ')}", fontsize=8)
    share = np.linspace(0.02, 0.98, 49)
    axes[-1].plot(share, [diagnostics.coverage(elements, one) for one in share])
    axes[-1].plot((0, 1), (0, 1), color="black", linewidth=1)
    axes[-1].set_title("coverage of intervals by their share", fontsize=8)
    return figure


def _last(values: Tensor) -> Tensor:
    """Images channels last."""
    return values.permute(0, 2, 3, 1).contiguous() if values.ndim == 4 else values

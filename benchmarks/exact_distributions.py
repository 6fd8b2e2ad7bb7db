"""Distributions that are known exactly, in place of a trained model: `prior=` of `sample.py`.

For Markov chains of names, reverse runs, posteriors of single elements and tilts of pairs are sums
over messages. Three of them need no network, and each has scores that compare samples with the
exact result. `Dna` and `Melody` stand for the data of sections 4.3 and 4.5 of the paper and are
this project's own.

References: Rabiner 1989, section III; `Synthetic`: Chu et al. 2025, section 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from blackout.config.instantiate import instantiate
from blackout.counts import Shape
from blackout.diffusion.kernels import LevelBridge
from blackout.diffusion.predictions import CategoricalPrediction
from blackout.diffusion.processes import Process, Uniform
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.time_grids import logit_times
from blackout.errors import UserError
from blackout.pictures import save_picture
from blackout.posterior.operators import SampleSet, Separable
from blackout.posterior.prior import Prior, Streams
from blackout.posterior.rewards import Reward, TiltOperator
from blackout.protocols import Draw, Drawn, refuse_unknown
from blackout.random import RandomSource, SampleStreams, cumulative_probabilities, uniform
from blackout.training.model import Model

_REST = 128
_FLOOR = 21
_PRIOR = 22
# Keys of the draws that samples are compared with.
_EXACT = 23


@dataclass(frozen=True)
class Motif(TiltOperator):
    """p(x) exp(scale r(x)), where r counts the occurrences of a word in a sequence [D].

    Args:
        word: names, in order.
        scale: beta; a list gives a posterior for each.

    Raises:
        ValueError: if there are no names.
    """

    word: Sequence[int]
    scale: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        if not self.word:
            raise UserError("word must have at least one name")

    def __call__(self, x: Tensor) -> Tensor:
        """1 at every place where the word begins, float64 [n, D - length + 1]."""
        places = x.shape[1] - len(self.word) + 1
        letters = [x[:, k : k + places] == name for k, name in enumerate(self.word)]
        return torch.stack(letters).all(0).double()

    def measurement_shape(self, shape: Shape) -> Shape:
        """[places]."""
        if len(shape) != 1 or shape[0] < len(self.word):
            raise UserError(f"word={list(self.word)} cannot stand in data of shape {shape}")
        return (shape[0] - len(self.word) + 1,)

    def incidence(self, shape: Shape) -> Tensor | None:
        """Every place on the elements its word covers."""
        place = torch.arange(self.measurement_shape(shape)[0])
        return torch.cat([torch.stack([place, place + k]) for k in range(len(self.word))], 1)


@dataclass(frozen=True)
class Chain:
    """Names x_1..x_D in 0..N - 1 with weight first(x_1) prod_i weight(x_i, x_{i + 1}).

    Args:
        first: non-negative, float64 [N].
        weight: non-negative, float64 [N, N]; rows need not sum to 1, so that a tilted chain is one
            as well.
        length: D.

    Raises:
        UserError: a length below 2.
    """

    first: Tensor
    weight: Tensor
    length: int

    def __post_init__(self) -> None:
        if self.length < 2:
            raise UserError(f"prior.elements must be at least 2, not {self.length}")

    def tilted(self, pair: Tensor, scale: float) -> Chain:
        """Return this distribution times exp(scale sum_i pair(x_i, x_{i + 1})), pair [N, N]."""
        return replace(self, weight=self.weight * torch.exp(scale * pair))

    def draw(self, node: Tensor, source: RandomSource = None) -> Tensor:
        """Draw x from the chain times prod_i node[i, x_i], by backward messages and forward draws.

        Args:
            node: float64 [n, D, N].
            source: one uniform is taken for every element.

        Returns:
            int64 [n, D].
        """
        weight = self.weight.to(node.device)
        node = node * self._messages(node)
        u = uniform((len(node), self.length), source, node.device).unsqueeze(-1)
        x = torch.empty(node.shape[:2], dtype=torch.int64, device=node.device)
        forward = self.first.to(node.device).expand(len(node), -1)
        for i in range(self.length):
            rows = cumulative_probabilities(forward * node[:, i])
            x[:, i] = torch.searchsorted(rows, u[:, i].contiguous(), right=True)[:, 0].clamp_(
                max=len(weight) - 1
            )
            forward = weight[x[:, i]]
        return x

    def marginals(self, node: Tensor) -> Tensor:
        """Return P(x_i = v) under the same distribution, float64 [n, D, N]."""
        weight = self.weight.to(node.device)
        backward = self._messages(node)
        marginals = torch.empty_like(backward)
        forward = self.first.to(node.device).expand(len(node), -1)
        for i in range(self.length):
            joint = forward * node[:, i] * backward[:, i]
            marginals[:, i] = joint / joint.sum(1, keepdim=True)
            forward = (forward * node[:, i]) @ weight
            forward = forward / forward.sum(1, keepdim=True)
        return marginals

    def expected(self, pair: Tensor) -> float:
        """Return E sum_i pair(x_i, x_{i + 1}), pair float64 [N, N]."""
        backward = self._messages(torch.ones(1, self.length, len(self.first), dtype=torch.float64))[
            0
        ]
        forward = self.first
        total = 0.0
        for i in range(self.length - 1):
            joint = forward[:, None] * self.weight * backward[i + 1]
            total += float((joint * pair).sum() / joint.sum())
            forward = forward @ self.weight
            forward = forward / forward.sum()
        return total

    def _messages(self, node: Tensor) -> Tensor:
        """Return the weight of everything after element i given x_i, up to factors, float64 [n, D,
        N]."""
        weight = self.weight.to(node.device)
        messages = torch.ones_like(node)
        for i in range(self.length - 2, -1, -1):
            message = (node[:, i + 1] * messages[:, i + 1]) @ weight.T
            messages[:, i] = message / message.amax(1, keepdim=True)
        return messages


@dataclass(frozen=True)
class ChainPrior(Prior):
    """A prior whose reverse runs are samples from p(x_0 | X_t = z).

    Each counts as one network evaluation.

    Args:
        chain: p(x), normalised.
    """

    chain: Chain = field(kw_only=True)

    @property
    def final_time(self) -> float:
        """The largest level of the paper's tables, from which a draw is as exact as from any."""
        return 20.0

    def reverse(
        self, z: Tensor, t: float, source: Streams = None, steps: int | None = None
    ) -> Tensor:
        """X_0 given X_t = z, exactly, whatever `steps` is."""
        self.denoiser.evaluations += 1  # type: ignore[attr-defined]
        return self._draw_states(
            noise_of(self.process, z, torch.tensor(t, dtype=torch.float64)), source
        )

    def draw(self, number: int, source: Streams = None) -> Tensor:
        """Unconditional samples, counts [number, D]."""
        return self._draw_states(
            torch.ones(number, *self.shape, len(self.chain.first), dtype=torch.float64), source
        )

    def _draw_states(self, node: Tensor, source: Streams) -> Tensor:
        # a torch generator simply goes on
        numbers = source.step(0) if isinstance(source, SampleStreams) else source
        return self.chain.draw(node.to(self.device), numbers).to(torch.uint8)


def noise_of(process: Process, z: Tensor, t: Tensor) -> Tensor:
    """Return P(X_t = z_i | x_i = v) for states z [n, D], float64 [n, D, N]."""
    levels = torch.arange(process.max_count + 1, device=z.device)
    return process.pmf(levels, t.to(z.device)).T.contiguous()[z.long()]


@dataclass(frozen=True)
class ChainDenoiser:
    """The exact P(x_i = v | X_t = z) of every element, as a perfect network would predict it.

    Args:
        chain: p(x), normalised.
        process: the forward process.
    """

    chain: Chain
    process: Process

    def __call__(self, xt: Tensor, t: Tensor) -> CategoricalPrediction:
        """Log-probabilities [n, N, D]."""
        probabilities = self.chain.marginals(noise_of(self.process, xt, t))
        return CategoricalPrediction(probabilities.clamp(min=1e-300).log().transpose(1, 2))


class ExactFamily:
    """The interface of exact distributions to `sample.py`: posterior samples only."""

    def draw(self, model: Any, request: Mapping[str, Any]) -> Draw:
        """Samples of posteriors.

        Raises:
            UserError: no posterior is asked for, or options of a trained model.
        """
        refuse_unknown(request, "posterior", "operator", "noise", "measurement", "calibrate")
        if not request.get("posterior"):
            raise UserError("an exact prior is for posterior samples: add posterior=sgdd")
        draw: Draw = instantiate(request["posterior"], "posterior").make_draw(
            model, model.sampler, request
        )
        return draw


class ExactModel(Model):
    """A Markov chain of names under the uniform process: its network is Bayes' rule.

    Reverse runs from a state are exact; methods that walk a grid of times, step by step, are given
    exact marginals.

    Args:
        name: for the folder of the results.
        chain: p(x), normalised.
        num_steps: of those walks.
        batch_size: chains at once.
    """

    data_mean: Tensor
    family: Any = ExactFamily()

    def __init__(self, name: str, chain: Chain, num_steps: int = 25, batch_size: int = 256) -> None:
        super().__init__(nn.Identity())
        self.name = name
        self.chain = chain
        self.shape = (chain.length,)
        self.process = Uniform(len(chain.first) - 1)
        self.sampler = Sampler(LevelBridge(), num_steps, poisson_start=False, batch_size=batch_size)
        self.register_buffer("data_mean", torch.zeros(self.shape))
        self.config = {"prior": name, "elements": chain.length, "names": len(chain.first)}

    @property
    def device(self) -> torch.device:
        """Where states are."""
        return self.data_mean.device

    def prior(self) -> ChainPrior:
        """With exact reverse runs."""
        denoiser = ChainDenoiser(self.chain, self.process)
        times = logit_times(self.sampler.num_steps, 6.0, -6.0)
        return ChainPrior(
            denoiser, self.process, self.shape, times=times, device=self.device, chain=self.chain
        )

    def batches(
        self,
        indices: Tensor,
        seed: int = 0,
        batch_size: int | None = None,
        sampler: Sampler | None = None,
    ) -> Drawn:
        """Yield (indices [b], `samples` [b, D]); sample k is a function of (seed, k)."""
        for part in indices.split(batch_size or self.sampler.batch_size):
            yield (
                part,
                {
                    "samples": self.prior().draw(
                        len(part), SampleStreams(seed, part.to(self.device))
                    )
                },
            )

    def score(self, samples: SampleSet, directory: Path) -> dict[str, Any]:
        """What is known exactly of what was drawn: `values` and more, for metrics.json; may write
        pictures."""
        return {}

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """Refused."""
        raise UserError("an exact prior is not trained")

    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """Refused."""
        raise UserError("an exact prior is not trained")

    def example_inputs(self) -> tuple[Tensor, Tensor]:
        """One state and a time."""
        return torch.zeros((1, *self.shape), dtype=torch.uint8), torch.ones(1, dtype=torch.float64)


def _streams(seed: int, key: int, number: int) -> SampleStreams:
    return SampleStreams(seed, torch.arange(number)).fold_in(key)


def hellinger(p: np.ndarray, q: np.ndarray) -> float:
    """Return the Hellinger distance sqrt(1 - sum sqrt(p q)) of two distributions.

    References: Chu et al. 2025, section 4.2.
    """
    return math.sqrt(max(0.0, 1 - float(np.sqrt(p * q).sum())))


@dataclass(frozen=True)
class Ring:
    """-mean_i (|x_i - centre| - radius)^2 / 9: four modes of two elements (the reward of the code
    of [Chu 2025]).

    Args:
        radius, centre: in units of levels.
    """

    radius: float = 8.5
    centre: float = 24.5

    def __call__(self, x: Tensor) -> Tensor:
        """[n] of x [n, D]."""
        return self.of_element(x.double()).mean(1)

    def of_element(self, x: Tensor) -> Tensor:
        """Before the mean is taken."""
        return -(((x - self.centre).abs() - self.radius) ** 2) / 9


class Synthetic(ExactModel):
    """Independent elements: a normal distribution of standard deviation 2 on 50 points from -5 to
    5.

    Args:
        elements: D.
    """

    def __init__(self, elements: int = 2, num_steps: int = 25, batch_size: int = 10_000) -> None:
        weight = torch.exp(-(torch.linspace(-5, 5, 50, dtype=torch.float64) ** 2) / 8)
        self.p = weight / weight.sum()
        chain = Chain(self.p, self.p.expand(50, 50).contiguous(), elements)
        super().__init__(f"synthetic_{elements}", chain, num_steps, batch_size)

    def exact(self, reward: Ring, scale: float) -> Tensor:
        """The posterior of one element, float64 [50]: elements stay independent."""
        level = torch.arange(50, dtype=torch.float64)
        weight = self.p * torch.exp(scale * reward.of_element(level) / self.shape[0])
        return weight / weight.sum()

    def score(self, samples: SampleSet, directory: Path) -> dict[str, Any]:
        """Return distances of the first two elements to the posterior, at the first scale.

        Those of as many exact draws (the floor) and of the prior are next to them. Writes
        `heat_maps.png`.
        """
        operator = samples.problem.operator
        if not isinstance(operator, Reward) or not isinstance(operator.reward, Ring):
            return {}
        x = samples.x[samples.measurement_index == samples.measurement_index[0]]
        one = self.exact(
            operator.reward,
            float(samples.problem.measurement[int(samples.measurement_index[0]), 0]),
        )
        exact_pair = torch.outer(one, one).numpy()
        alike = torch.ones(len(x), 2, 50, dtype=torch.float64)
        perfect = Chain(one, one.expand(50, 50), 2).draw(
            alike, _streams(samples.seed, _FLOOR, len(x)).step(0)
        )
        prior = self.prior().draw(len(x), _streams(samples.seed, _PRIOR, len(x)))
        sample_sets = {"samples": x, "perfect": perfect, "prior": prior}
        distributions = {"posterior": exact_pair}
        values = {}
        for (name, draws), prefix in zip(
            sample_sets.items(), ("", "floor_", "prior_"), strict=True
        ):
            pair = (draws[:, 0].long() * 50 + draws[:, 1]).numpy()
            distribution = np.bincount(pair, minlength=2500).reshape(50, 50) / len(x)
            distributions[name], values[f"{prefix}hellinger"] = (
                distribution,
                hellinger(distribution, exact_pair),
            )
            values[f"{prefix}total_variation"] = float(np.abs(distribution - exact_pair).sum() / 2)
        save_picture(heat_maps(distributions), directory / "heat_maps.png")
        return {"values": values}


# Next letter of A, C, G, T: made by hand so that CG is rare, as in genomes.
_LETTERS = [
    [0.32, 0.18, 0.26, 0.24],
    [0.36, 0.26, 0.03, 0.35],
    [0.28, 0.22, 0.26, 0.24],
    [0.22, 0.22, 0.26, 0.30],
]


class Dna(ExactModel):
    """Sequences of A, C, G, T (0..3) in which CG is rare.

    Args:
        elements: D.
    """

    def __init__(self, elements: int = 40, num_steps: int = 25, batch_size: int = 1000) -> None:
        weight = torch.tensor(_LETTERS, dtype=torch.float64)
        first = torch.linalg.matrix_power(weight, 1000)[0]
        super().__init__("dna_toy", Chain(first, weight, elements), num_steps, batch_size)

    def score(self, samples: SampleSet, directory: Path) -> dict[str, Any]:
        """Mean number of words and mean log p(x) at every scale, sampled and exact (by transfer
        matrices), for words of two letters; `tilt.png`.
        """
        operator = samples.problem.operator
        if not isinstance(operator, Motif) or len(operator.word) != 2:
            return {}
        log_first = self.chain.first.log()
        log_weight = self.chain.weight.log()
        pair = torch.zeros(4, 4, dtype=torch.float64)
        rows = []
        pair[operator.word[0], operator.word[1]] = 1.0
        for number in samples.measurement_index.unique().tolist():
            x = samples.x[samples.measurement_index == number].long()
            scale = float(samples.problem.measurement[number, 0])
            tilted = self.chain.tilted(pair, scale)
            words = operator(x).sum(1)
            start = tilted.marginals(torch.ones(1, self.shape[0], 4, dtype=torch.float64))[0, 0]
            rows.append(
                {
                    "scale": scale,
                    "reward": float(words.mean()),
                    "median_reward": float(words.double().median()),
                    "exact_reward": tilted.expected(pair),
                    "standard_error": float(words.std() / math.sqrt(len(x)))
                    if len(x) > 1
                    else math.nan,
                    "log_prior": float(
                        (log_first[x[:, 0]] + log_weight[x[:, :-1], x[:, 1:]].sum(1)).mean()
                    ),
                    "exact_log_prior": tilted.expected(log_weight) + float(start @ log_first),
                }
            )
        save_picture(tilt_curve(rows), directory / "tilt.png")
        errors = [abs(row["reward"] - row["exact_reward"]) for row in rows]
        relative_errors = [
            error / max(row["standard_error"], 1e-9)
            for error, row in zip(errors, rows, strict=True)
        ]
        values = {
            "largest_error_of_reward": max(errors),
            "largest_error_in_standard_errors": max(relative_errors),
        }
        return {"values": values, "tilt": rows}


class Melody(ExactModel):
    """Melodies of 128 pitches and a rest (128), mostly in C major.

    Notes are held, repeated or followed by a nearby one.

    Args:
        elements: D, time steps.
    """

    def __init__(self, elements: int = 256, num_steps: int = 25, batch_size: int = 256) -> None:
        super().__init__("music_toy", melody(elements), num_steps, batch_size)

    def score(self, samples: SampleSet, directory: Path) -> dict[str, Any]:
        """Hellinger distance of the histograms of names, outliers (notes whose pitch the truth does
        not have) and right names where nothing was seen: of samples, of as many exact draws of the
        posterior, and of the prior; `piano_rolls.png`.
        """
        operator = samples.problem.operator
        truths = samples.truths
        observed = operator.observed_mask(self.shape)
        if truths is None or not isinstance(operator, Separable) or observed is None:
            return {}
        x = samples.x
        truth = truths[samples.measurement_index]
        number = len(samples.x)
        exact = self._exact(samples, observed)
        prior = self.prior().draw(number, _streams(samples.seed, _PRIOR, number))
        values = {}
        for prefix, draws in (("", x), ("exact_", exact), ("prior_", prior)):
            values[f"{prefix}hellinger"] = float(
                np.mean([name_distance(a, b) for a, b in zip(draws, truth, strict=True)])
            )
            values[f"{prefix}outliers"] = float(
                np.mean([_outliers(a, b) for a, b in zip(draws, truth, strict=True)])
            )
            values[f"{prefix}right_where_hidden"] = float(
                (draws == truth)[:, ~observed].double().mean()
            )
        first = int(samples.measurement_index[0])
        shown = truths[first].long().where(observed, torch.tensor(-1))
        rolls = {"truth": truths[first], "seen": shown, "sample": x[0], "exact": exact[0]}
        save_picture(piano_rolls(rolls), directory / "piano_rolls.png")
        return {"values": values}

    def _exact(self, samples: SampleSet, observed: Tensor) -> Tensor:
        """Draws of every sample's posterior, by backward messages: elements are seen one by one."""
        problem = samples.problem
        levels = torch.arange(129, dtype=torch.float64)
        y = problem.measurements(self.shape)[samples.measurement_index]
        log_l = problem.noise.log_prob(y[..., None], levels.view(1, 1, -1).expand(*y.shape, -1))
        node = torch.where(observed[:, None], log_l, 0.0).exp()
        return self.chain.draw(node, _streams(samples.seed, _EXACT, len(y)).step(0))


def melody(length: int) -> Chain:
    """Return a walk on pitches 36..96 that holds notes half of the time, with occasional rests.

    All names are possible.
    """
    pitch = torch.arange(128, dtype=torch.float64)
    scale = torch.tensor([12, 1, 10, 1, 10, 8, 1, 12, 1, 10, 1, 6], dtype=torch.float64)[
        torch.arange(128) % 12
    ]
    scale = scale * torch.sigmoid(pitch - 48) * torch.sigmoid(84 - pitch) + 1e-6
    near = torch.exp(-(pitch[:, None] - pitch).abs() / 3) * scale
    near.fill_diagonal_(0.0)
    weight = torch.full((129, 129), 1e-7, dtype=torch.float64)
    weight[:128, :128] += 0.45 * near / near.sum(1, keepdim=True) + 0.5 * torch.eye(
        128, dtype=torch.float64
    )
    weight[:128, 128] += 0.05
    weight[128, :128] += 0.4 * scale / scale.sum()
    weight[128, 128] += 0.6
    weight = weight / weight.sum(1, keepdim=True)
    return Chain(weight[128], weight, length)


def name_distance(x: Tensor, truth: Tensor) -> float:
    p, q = (
        np.bincount(states.long().numpy(), minlength=129) / len(states) for states in (x, truth)
    )
    return hellinger(p, q)


def _outliers(x: Tensor, truth: Tensor) -> float:
    """Return the fraction of notes, without rests, whose pitch does not occur in the truth."""
    notes = x.long()[x != 128]
    return 0.0 if not len(notes) else float((~torch.isin(notes, truth.long())).double().mean())


def heat_maps(distributions: Mapping[str, np.ndarray]) -> Figure:
    """Plot probabilities of two elements side by side, on one scale."""
    figure = Figure(figsize=(3 * len(distributions), 3.2), layout="constrained")
    largest = float(next(iter(distributions.values())).max()) * 1.5
    for axis, (name, distribution) in zip(
        np.atleast_1d(figure.subplots(1, len(distributions))), distributions.items(), strict=True
    ):
        axis.imshow(distribution, vmin=0, vmax=largest, cmap="magma", origin="lower")
        axis.set_title(name)
        axis.set_axis_off()
    return figure


def tilt_curve(rows: Sequence[Mapping[str, float]]) -> Figure:
    """Plot the reward and log p(x) against the scale: sampled points and exact lines."""
    rows = sorted(rows, key=lambda row: row["scale"])
    scale = [row["scale"] for row in rows]
    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(scale, [row["exact_reward"] for row in rows], color="black", label="exact")
    errors = [2 * row["standard_error"] for row in rows]
    left.errorbar(
        scale, [row["reward"] for row in rows], errors, fmt="o", label="samples, 2 standard errors"
    )
    left.set(xlabel="scale", ylabel="mean reward")
    left.legend()
    right.plot(
        [row["exact_reward"] for row in rows],
        [row["exact_log_prior"] for row in rows],
        color="black",
    )
    right.plot([row["reward"] for row in rows], [row["log_prior"] for row in rows], "o")
    right.set(xlabel="mean reward", ylabel="mean log p(x)")
    return figure


def piano_rolls(melodies: Mapping[str, Tensor]) -> Figure:
    """Plot melodies, pitch over time, without rests and unobserved elements (-1)."""
    figure = Figure(figsize=(9, 1.5 * len(melodies)), layout="constrained")
    axes = np.atleast_1d(figure.subplots(len(melodies), 1, sharex=True, sharey=True))
    for axis, (name, x) in zip(axes, melodies.items(), strict=True):
        at = np.flatnonzero((x.numpy() >= 0) & (x.numpy() != _REST))
        axis.plot(at, x.numpy()[at], "s", markersize=2, color="black")
        axis.set_ylabel(name)
    return figure

"""The family of diffusion models on counts: from settings and a dataset to a model, and back from its description."""

from __future__ import annotations

import inspect
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from blackout.comparisons import Baseline, SampleValues
from blackout.component import Plain, component, leaves
from blackout.config.instantiate import find, make, resolve
from blackout.data import CountData
from blackout.data.count_data import divided_counts
from blackout.data.count_statistics import loaded, narrow, sums
from blackout.diffusion.checks import check_guidance, check_training_times, try_sampler
from blackout.diffusion.conditions import all_labels
from blackout.diffusion.data_stats import (
    checked_facts,
    class_means,
    elements_of,
    mean_image,
    shifts,
    shrunk_means,
    with_none,
)
from blackout.diffusion.draw import CountDraw, requested
from blackout.diffusion.heads import Head
from blackout.diffusion.likelihood import (
    LARGEST_TABLE,
    Estimate,
    adds_ends,
    continuous_nats,
    end_bits,
    finite_time_bits,
    strict_bits,
    weighted_path_bits,
)
from blackout.diffusion.model import BlackoutDiffusion
from blackout.diffusion.predictions import misfit
from blackout.diffusion.processes import FiniteProcess, Process, PureDeath
from blackout.diffusion.processes.generator import without_files
from blackout.diffusion.restarts import restart, restoration_panels, time_at
from blackout.diffusion.schedules import with_ends
from blackout.distributed import rank
from blackout.errors import UserError, error_context, refuse
from blackout.networks.elements import Elements, estimate_concentration
from blackout.networks.inputs import CountInputs, set_elements
from blackout.protocols import Draw, Split, Watch
from blackout.random import low_discrepancy
from blackout.training.family import ComponentFamily, make_dataset
from blackout.training.model import evaluating

if TYPE_CHECKING:
    from blackout.diffusion.compression import Codec

_OF_CLASSES = ("num_classes", "class_names", "class_values", "covariates", "covariate_levels", "label_counts")
"""Facts for conditional models alone."""
_LARGEST_HISTOGRAM = 255
"""Largest count of which histograms are a baseline: above it most cells were never seen."""
_COMPARED = 10_000  # held-out samples of which baselines have bits, where the model has none of single samples
_LARGEST_MEANS = 1 << 24
"""Elements of the means of all classes, beyond which samples of all classes start from one mean."""
_PERCEPTRON_STEPS, _STEPS, _PASSES, _FEWEST_STEPS = 2500, 1000, 100, 200
"""Of a perceptron, which costs a quarter of the others and needs more, and of the others; passes over the data beyond
which a perceptron learns few samples by heart, and steps that it takes at least."""
_BYTES, _ARRAYS = 8, 3
"""Of a number, and how many arrays [B, *shape, S] any training step holds at once: logits, probabilities, gradients.
Losses of rates hold about four times as many; what might fit is not refused."""


@component("family")
@dataclass(frozen=True)
class CountDiffusion(ComponentFamily):
    """Blackout Diffusion and its relatives: any Markov process on counts, reversed by a network.

    Args:
        monitor: the validation metric by which the best checkpoint is chosen.
    """

    monitor: str = "val/bits_per_dim"
    parts = ("network", "head", "process", "schedule", "loss", "sampler")
    title = "A diffusion model"
    made: ClassVar[type[BlackoutDiffusion]] = BlackoutDiffusion
    """What is put together."""
    usage = "counts = model.sample(16, seed=0)  # integers [16, *shape]"
    closing = """
## Citation

Santos, Fox, Lubbers and Lin, [Blackout Diffusion: Generative Diffusion Models in Discrete-State
Spaces](https://proceedings.mlr.press/v202/santos23a.html), ICML 2023.
"""

    def source(self, settings: Plain, description: Plain | None = None, trusted: tuple[str, ...] = ()) -> CountData:
        """The dataset chosen in the settings, else the one in a model's description, which it must fit.

        Raises:
            UserError: there is none, it cannot be read, or it does not fit the model.
        """
        data = make_dataset(settings, description, trusted)
        refuse(not isinstance(data, CountData), f"dataset: counts are needed, CountData, not {type(data).__name__}")
        if description is not None:
            facts = description["data"]
            theirs = f"counts of shape {tuple(facts['shape'])} up to {facts['max_count']}"
            mine = f"counts of shape {tuple(data.shape)} up to {data.max_count}"
            refuse(mine != theirs, f"the model makes {theirs}, but {data.name} has {mine}")
        with error_context("dataset"):
            return replace(data, flip=bool(settings.get("flip", False)))

    def source_of(self, data: Any) -> CountData:
        """`CountData`, or what `CountData.from_array` takes."""
        return data if isinstance(data, CountData) else CountData.from_array(data)

    def divide(self, data: Any, validation: float) -> CountData:
        """See `divided_counts`."""
        return divided_counts(data, validation)

    def data_of(self, settings: Plain, source: CountData) -> dict[str, Any]:
        """The facts of the data that components come from; of classes only for a conditional model.

        Raises:
            UserError: a model with classes (`conditional`) of data without labels.
        """
        conditional = settings.get("conditional", False)
        refuse(conditional and source.num_classes is None, f"conditional=true: {source.name} has no labels")
        facts = {name: fact for name, fact in source.facts.items() if conditional or name not in _OF_CLASSES}
        return {"data": {"name": source.name, **facts}}

    def described_parts(self, settings: Plain, source: CountData) -> dict[str, Any]:
        """Every component with all its arguments: process and head first, which decide the network's outputs.

        Raises:
            UserError: a component that does not exist, or does not go with the data.
        """
        facts = self.data_of(settings, source)["data"]
        stats = _stats(settings, source, {name: fact for name, fact in facts.items() if name != "name"})
        refuse("process" not in settings, "process=... must be one of the choices that --help lists")
        parts = {"process": resolve(without_files(settings["process"]), stats, "process")}
        parts["head"] = resolve(settings["head"], stats, "head")
        check_memory(parts["process"], source.shape, source.max_count, settings.get("batch_size", 1))
        process = make(parts["process"], "process")
        if source.train_seen is not None and not isinstance(process, PureDeath):
            raise UserError(f"missing entries need process=pure_death, not {type(process).__name__}")
        stats["outputs"] = make_head(parts["head"], process).outputs
        return {name: parts[name] if name in parts else resolve(settings[name], stats, name) for name in self.parts}

    def length(self, settings: Plain, source: CountData) -> int:
        """Optimiser steps that suit network and data, an integer, where `trainer.max_steps` is null.

        Ours (tests/cli/test_configs.py).
        """
        network = resolve(settings["network"], _stats(settings, source, source.facts), "network")
        body = network.get("body")
        perceptron = isinstance(body, Mapping) and str(body.get("_target_")).endswith("MLP")
        most = max(_FEWEST_STEPS, _PASSES * source.size("train") // settings["batch_size"])
        return min(_PERCEPTRON_STEPS, most) if perceptron else _STEPS

    def tensors(self, source: CountData) -> dict[str, Tensor]:
        """`mean` and `concentration` per element, float32, of the data's shape, and `gain`; with labels `class_mean`.

        `mean` is E[X_0], `class_mean` E[X_0 | class], [num_classes, *shape]. Of vectors these are drawn together
        (`shrunk_means`, by the variance within classes, [D]), and `plain_mean` are those of the training samples,
        beside which a network learns them.
        """
        known_sums = source.sums or sums(source.train)
        mean, labels, number = mean_image(source.train, known_sums), source.train_labels, source.num_classes
        measured = elements_of(source.train, mean, known_sums)
        known = {"mean": mean, "concentration": measured.concentration, "gain": measured.gain}
        if labels is None or number is None or number * mean.numel() > _LARGEST_MEANS:
            return known
        plain = class_means(source.train, labels, number, mean, [*source.covariates.values()])
        if mean.ndim > 1 or source.covariates:
            return known | {"class_mean": plain}
        sizes = labels.bincount(minlength=number)
        of_classes = (sizes[:, None] + 1) * plain.double() - mean  # sums, without the average sample beside them
        within = known_sums.square - (of_classes.square() / sizes.clamp(min=1)[:, None]).sum(0)
        r = estimate_concentration(mean.double(), within / (len(labels) - (sizes > 0).sum()).clamp(min=1))
        return known | {"class_mean": shrunk_means(plain, sizes, r), "plain_mean": plain}

    def training(self, settings: Plain) -> dict[str, Any]:
        """`label_dropout` and `validation_draws`; warns of scores of samples that are never learnt."""
        if settings.get("conditional") and settings["label_dropout"] == 0 and settings.get("metrics"):
            told = "scores while training are of samples without a class, which such a model never learns"
            warnings.warn(f"label_dropout=0: {told}: label_dropout=0.1, or metrics=none", stacklevel=2)
        return {name: settings[name] for name in ("label_dropout", "validation_draws")}

    def assemble(self, description: Plain, tensors: Mapping[str, Tensor], **training: Any) -> BlackoutDiffusion:
        """The model of a description, with what it keeps of its data."""
        shape, described = checked_facts(description)["shape"], description["model"]
        classes = "num_classes" in description["data"]
        parts = self.made_parts(description, "process", "schedule", "loss", "sampler")
        parts["network"] = make(described["network"], "network")
        known: dict[str, Any] = _kept(tensors, shape, _measures(parts["network"], described["head"]), classes)
        elements = Elements(known["mean"], known["concentration"], known["gain"]) if "gain" in known else None
        if elements is not None and isinstance(parts["network"], nn.Module):  # inputs that measure counts by them
            plain, of_class = tensors.get("plain_mean"), known.get("class_mean")
            learnt = None if plain is None or of_class is None else torch.log(with_none(plain / of_class))
            set_elements(parts["network"], elements, shifts(description["data"], known), learnt)
        parts["head"] = make_head(described["head"], parts["process"], elements)
        return self.made(**known, **parts, **training)

    def draw(self, model: BlackoutDiffusion, request: Plain) -> Draw:
        """Counts by the model's own sampler, or as `sampler`, `classes`, `inpaint` and `posterior` ask for."""
        draw: Any = requested(model, request)
        if draw.sampler is not model.sampler:
            try_sampler(model, draw.sampler)
        return draw

    def preview(self, model: BlackoutDiffusion, num_samples: int, num_steps: int | None = None) -> CountDraw:
        """Counts of all classes in turn, where there are classes."""
        sampler = model.sampler if num_steps is None else replace(model.sampler, num_steps=num_steps)
        return CountDraw(model, sampler, {}, all_labels(model))

    def check_sampler(self, model: BlackoutDiffusion, scored: bool) -> None:
        """Take steps of the sampler with predictions of nothing; refuse guidance of samples that have no class.

        Raises:
            UserError: process, times, kernel, grid or guidance do not fit, or scored samples would be guided.
        """
        check_training_times(model)
        try_sampler(model, model.sampler)
        check_guidance(model.sampler, with_classes=model.num_classes is not None)
        if scored and model.sampler.guidance.scale != 1:
            told = "samples that are scored in a run have no class to guide towards"
            raise UserError(f"sampler.guidance.scale: {told}: metrics=none, and give it to sample.py with classes=...")

    def dry_run(self, model: BlackoutDiffusion) -> None:
        """Observe, predict and score one empty sample, so that components that do not fit show now.

        Raises:
            UserError: which component refuses, and why; or what it returns has the wrong shape.
        """
        x0 = torch.zeros(1, *model.shape, dtype=torch.uint8)
        check_training_times(model)
        with error_context("schedule"):
            s, t = model.schedule.intervals(torch.full((1,), 0.5, dtype=torch.float64))
        with error_context("process"):
            xt, target = model.process.observe(x0, t, torch.Generator().manual_seed(0))
        with error_context("network"), torch.no_grad(), evaluating(model.network):
            raw = model.network(xt, t)
        if raw.shape != (expected := (1, model.head.outputs, *model.shape)):
            raise UserError(f"network: its output is {list(raw.shape)}, where the head reads {list(expected)}")
        with error_context("head"):
            prediction = model.head(raw, xt, t)
        with error_context("loss"):
            losses = model.loss(prediction, target, s, t)
            if not isinstance(losses, Tensor) or losses.shape != x0.shape:
                found = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
                raise misfit(model.loss, model.process, f"to return one value per element, not {found}")

    def check_report(self, model: BlackoutDiffusion, settings: Plain) -> None:
        """Refuse settings of the bits per dimension before samples are drawn.

        Raises:
            UserError: a number out of range, or the bound of a sampler that is not known for the process.
        """
        asked, process = settings["likelihood"], model.process
        for name, smallest in {"images": 0, "repeats": 1, "finite_steps": 1, "paths": 1}.items():
            value = asked[name]
            if value is not None and (type(value) is not int or value < smallest):
                raise UserError(f"likelihood.{name} must be a whole number of at least {smallest}, not {value!r}")
        if asked["paths"] and not asked["finite_steps"]:
            raise UserError("likelihood.paths needs likelihood.finite_steps: paths are of a sampler with so many steps")
        if asked["finite_steps"] and not isinstance(process, PureDeath):
            raise UserError("likelihood.finite_steps bounds the Poisson sampler of pure death: leave it out here")
        if asked["finite_steps"] and process.max_count > LARGEST_TABLE:
            told = f"likelihood.finite_steps needs max_count up to {LARGEST_TABLE}, not {process.max_count}"
            raise UserError(f"{told}: leave it out, and the bound in continuous time remains")

    def report(self, model: BlackoutDiffusion, source: CountData, settings: Plain) -> dict[str, Any]:
        """Bits per dimension on both splits, by the bounds asked for.

        Those of a model with classes are given the classes, as in validation, and its bounds on -log p(x), by the null
        class, are called unconditional.

        Args:
            model: in eval mode.
            source: whose first few samples of each split are bounded.
            settings: under `likelihood` images, repeats, finite_steps and paths of conf/sample.yaml.

        Returns:
            values: held-out and training bits per dimension by name; likelihood: how they were made. Both are of
            samples without missing entries, and empty where a split has none.
        """
        asked, data, values, likelihood = settings["likelihood"], source.complete, dict[str, float](), dict[str, Any]()
        n = asked["images"]
        if n and data is None and rank() == 0:
            print(f"left out: bits per dimension: every sample of a split of {source.name} has missing entries")
        if not n or data is None:
            return {"values": values, "likelihood": likelihood}
        given = {"": True, "_unconditional": False} if model.num_classes is not None else {"": False}
        splits = {"train": (data.train, data.train_labels), "test": (data.test, data.test_labels)}
        compared = dict[str, SampleValues]()
        for split, (counts, of_split) in splits.items():
            for suffix, conditional in given.items():
                labels = of_split[:n] if conditional and of_split is not None else None
                bounds, nats = _bounds(model, counts[:n], labels, asked)
                name = f"bits_per_dim_{split}{suffix}"
                likelihood[f"{split}{suffix}"] = bounds
                values[name] = bounds["continuous"]["value"]
                values[f"{name}_error"] = bounds["continuous"]["standard_error"]
                if split == "test" and not conditional:  # baselines are not given classes
                    bits = strict_bits(model, counts[:n], nats)
                    if bits is not None:
                        index = torch.arange(len(bits))
                        compared[name] = SampleValues(index, bits, "upper bound", place=low_discrepancy(index))
        if asked["finite_steps"] and rank() == 0:
            steps, cost = asked["finite_steps"], likelihood["test"]["finite_time"]["cost_of_steps"]
            print(f"{steps} Poisson steps cost {cost:.3f} bits per dimension more than infinitely many (held-out data)")
        return {"values": values, "likelihood": likelihood, "sample_values": compared}

    def sample_values(
        self, model: BlackoutDiffusion, source: CountData, name: str, index: Tensor, values: Tensor
    ) -> SampleValues | None:
        """Upper bounds on the bits per dimension of each test sample, of a model without classes.

        None where entries are missing or the bound of the process lacks a part, see `strict_bits`; and of a model that
        is given classes, which baselines are not.
        """
        conditional = model.num_classes is not None
        if name != "test/bits_per_dim" or conditional or source.complete is not source:
            return None
        counts = source.batch("test", index)["x0"]
        nats = values * math.prod(model.shape) * math.log(2)
        bits = strict_bits(model, counts.cpu(), nats)
        if bits is None:
            return None
        place = torch.frac(low_discrepancy(index) * model.validation_draws)
        return SampleValues(index, bits, "upper bound", place=place)

    def codec(self, model: BlackoutDiffusion) -> Codec:
        """Return the lossless codec of a model of pure death."""
        from blackout.diffusion.compression import Codec  # imports scipy

        return Codec(model)

    def supports_restarts(self, model: BlackoutDiffusion) -> bool:
        """Whether samples can start from noised data: with pure death."""
        return isinstance(model.process, PureDeath)

    def restart(
        self, draw: CountDraw, x0: Tensor, fraction: float, index: Tensor, seed: int, callback: Watch
    ) -> Tensor:
        """Return samples that start from noised data, see `ComponentFamily.restart`."""
        return restart(draw, x0, time_at(draw, fraction), index, seed, callback)

    def restoration_panels(
        self, draw: CountDraw, x0: Tensor, survival: float, index: Tensor, seed: int
    ) -> Tensor:
        """Return panels with data and restorations, see `blackout.diffusion.restarts`."""
        return restoration_panels(draw, x0, survival, index, seed)

    def baselines(
        self, source: CountData, size: int, settings: Plain
    ) -> dict[str, dict[str, Baseline]]:
        """Bits per dimension of models of independent counts; with `few`, of histograms of as many samples alone."""
        complete, few = source.complete, settings.get("few")
        number = size or few or settings.get("likelihood", {}).get("images", _COMPARED)
        if complete is None or number == 0:
            return {}
        validation = _first_counts(complete, "val", number)
        fitted = _fitted(complete, few, torch.cat([validation, _first_counts(complete, "test", number)]))
        test = {
            name: Baseline.of(bits, len(validation), whole) for name, (bits, whole) in fitted.items()
        }
        if "likelihood" not in settings:
            return {"test/bits_per_dim": test}
        of_train = _fitted(complete, few, _first_counts(complete, "train", number))
        train = {name: Baseline(bits, whole=whole) for name, (bits, whole) in of_train.items()}
        return {
            f"bits_per_dim_{split}{suffix}": bits
            for split, bits in (("train", train), ("test", test))
            for suffix in ("", "_unconditional")
        }


def _first_counts(source: CountData, split: Split, number: int) -> Tensor:
    """The first counts of a split, at most `number` of them, [n, *shape] on the CPU."""
    return source.batch(split, torch.arange(min(number, source.size(split))))["x0"].cpu()


def _fitted(source: CountData, few: int | None, counts: Tensor) -> dict[str, tuple[Tensor, bool]]:
    """Bits per dimension of each of counts [m, *shape] by models of the training counts: float64 [m] by name.

    Behind them whether they are of all elements. With `few`, histograms are of as many training samples, and the others
    are left out.
    """
    from blackout.evaluation.baselines import baseline_bits, fitted_elements, histogram_bits  # which only scores need

    train = loaded(source.train)[:few].cpu()
    uniform = torch.full((len(counts),), math.log2(source.max_count + 1), dtype=torch.float64)
    bits: dict[str, tuple[Tensor, bool]] = {"uniform": (uniform, True)}
    if few is None:
        elements = math.prod(source.shape)
        whole = len(fitted_elements(elements)) == elements
        bits |= {name: (values, whole) for name, values in baseline_bits(train, counts).items()}
    if source.max_count <= _LARGEST_HISTOGRAM:
        bits["histograms"] = histogram_bits(train, counts, source.max_count), True
    return bits


def _bounds(
    model: BlackoutDiffusion, counts: Tensor, labels: Tensor | None, settings: Plain
) -> tuple[dict[str, Any], Tensor]:
    """The bounds that are asked for, of counts [n, *shape] given their labels or not, by name, in bits: see
    `likelihood`.

    Those of the sampler with so many steps come with what these cost beside infinitely many. Behind them the nats of
    every sample by the continuous bound, float64 [n].
    """
    nats = continuous_nats(model, counts, settings["repeats"], labels=labels)
    continuous = Estimate.of(nats, counts.shape[1:], low_discrepancy(torch.arange(len(counts))))
    found: dict[str, Any] = {"continuous": asdict(continuous)}
    if ends := end_bits(model, counts, labels=labels):
        found["ends"] = asdict(ends)
    if not (steps := settings["finite_steps"]):
        return found, nats
    parts = {name: asdict(bound) for name, bound in finite_time_bits(model, counts, steps, labels=labels).items()}
    total = parts.pop("total")
    limit = found["continuous"]["value"]
    if isinstance(model.process, PureDeath) and not adds_ends(model.process):
        limit += found["ends"]["value"]
    found["finite_time"] = {"num_steps": steps, **total, "cost_of_steps": total["value"] - limit, "parts": parts}
    if paths := settings["paths"]:
        weighted = weighted_path_bits(model, counts, steps, paths, labels=labels)
        found["importance_weighted"] = {"num_steps": steps, "paths": paths, **asdict(weighted)}
    return found, nats


def _stats(settings: Plain, source: CountData, facts: Plain) -> dict[str, Any]:
    """What components are decided from; whether a vector is ordered, the settings of the network's body may say."""
    told = (settings["network"].get("body") or {}).get("ordered")
    ordered = source.ordered if told is None else told
    return {**with_ends(facts), "ordered": ordered, "narrow": narrow(source.train)}


def _kept(tensors: Mapping[str, Tensor], shape: list[int], measured: bool, with_classes: bool) -> dict[str, Tensor]:
    """What a model keeps of its data: `mean`, `concentration` and `gain` if they are used, `class_mean` if it is there.

    Raises:
        UserError: one is missing or of another shape.
    """
    shapes = {"mean": shape, **({"concentration": shape, "gain": []} if measured else {})}
    known = {name: tensors[name] for name, of in shapes.items() if name in tensors and list(tensors[name].shape) == of}
    # of models with classes alone, unless they are very many
    of_classes = tensors.get("class_mean") if with_classes else None
    if len(known) < len(shapes) or (of_classes is not None and list(of_classes.shape[1:]) != shape):
        raise UserError(f"the weights are not those of {shape}-shaped data")
    return known if of_classes is None else {**known, "class_mean": of_classes}


def _measures(network: object, head: Plain) -> bool:
    """Whether inputs of the network, or a head or one within it, know every element's mean and concentration."""
    kinds = [find({"_target_": kind}, "head") for name, kind in leaves(head) if name.endswith("_target_")]
    asked = any("elements" in inspect.signature(kind).parameters for kind in kinds)
    return asked or (isinstance(network, nn.Module) and any(isinstance(x, CountInputs) for x in network.modules()))


def make_head(config: Plain, process: Process, elements: Elements | None = None) -> Head:
    """The head, with the process and the elements where its signature, or that of a head within it, asks for them.

    Args:
        config: its description.
        process: the forward process.
        elements: of the data; None where no component asks for them, or only `outputs` is wanted.

    Raises:
        UserError: it cannot be made, or does not say how many outputs it reads.
    """
    wanted = inspect.signature(find(config, "head")).parameters
    known = {"process": process, "elements": elements or Elements(torch.ones(()), torch.ones(()), torch.ones(()))}
    given = {name: value for name, value in known.items() if name in wanted}
    if isinstance(base := config.get("base"), Mapping):
        given["base"] = make_head(base, process, elements)
        config = {name: value for name, value in config.items() if name != "base"}
    head: Head = make(config, "head", **given)
    if not isinstance(getattr(head, "outputs", None), int):
        raise UserError(f"head: {type(head).__name__} does not say how many `outputs` of the network it reads")
    return head


def check_memory(process: Plain, shape: Sequence[int], max_count: int, batch_size: int) -> None:
    """Refuse a process on finitely many states whose training step does not fit into this machine's memory.

    What it needs is counted in arrays [batch_size, *shape, S] and matrices [batch_size, S, S] of S = max_count + 2
    states. Ours (tests/cli/test_counts.py).

    Args:
        process: its description.
        shape: of the data.
        max_count: the largest count.
        batch_size: of a step.

    Raises:
        UserError: how much memory it would need.
    """
    kind = find(process, "process")
    if not (isinstance(kind, type) and issubclass(kind, FiniteProcess)):
        return
    states, elements = max_count + 2, math.prod(shape)
    numbers = _ARRAYS * batch_size * elements * states + (batch_size * states**2 if kind.tables else 0)
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if (need := _BYTES * numbers) > here:
        raise UserError(
            f"process: {kind.__name__} on {states:,} states of {elements:,} elements would need at least "
            f"{need / 1e9:,.0f} GB for batch_size={batch_size}, of {here / 1e9:,.0f} GB here; counts as large as "
            f"{max_count:,} are for process=blackout"
        )

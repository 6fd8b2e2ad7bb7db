"""The family of models of codes: from settings and permutations to a model, and back from its description."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import Tensor

from blackout.comparisons import Baseline, SampleValues
from blackout.component import Plain, component
from blackout.config.descriptions import complete_description
from blackout.config.instantiate import instantiate
from blackout.errors import UserError, error_context, refuse
from blackout.permutations.coded.data import PermutationData, from_puzzles
from blackout.permutations.coded.draw import requested
from blackout.permutations.coded.model import CODES, CodeModel, Objective, Order, Passes
from blackout.permutations.coded.report import likelihood_baselines, likelihood_report
from blackout.permutations.datasets import Puzzles
from blackout.protocols import Draw
from blackout.training.family import ComponentFamily, make_dataset

_OBJECTIVES = typing.get_args(Objective)


@component("family")
@dataclass(frozen=True)
class CodeFamily(ComponentFamily):
    """Distributions over permutations by factorised codes [Severo 2025].

    Args:
        monitor: the validation metric by which the best checkpoint is chosen.
    """

    monitor: str = "val/nll_bits"
    parts = ("network",)
    values: ClassVar[Plain] = {
        "data.num_items": int, "data.name": str, "data.kind": str | None, "data.labels": list[str] | None,
        "model.code": str, "model.objective": Objective, "model.order": Order, "model.passes": int,
        "model.greedy": bool,
    }  # fmt: skip
    title = "A distribution over permutations"
    usage = "permutations = model.sample(16, seed=0)  # int64 [16, n]; in fewer or more passes with passes=..."
    closing = "\nA model with a context needs it: `model.source`, or `python sample.py ckpt=... input=...`.\n"

    def source(
        self, settings: Plain, description: Plain | None = None, trusted: tuple[str, ...] = ()
    ) -> PermutationData:
        """The dataset chosen in the settings, else the one in a model's description, which it must fit.

        Raises:
            UserError: there is none, it cannot be read, or it does not fit the model.
        """
        data = self.to_source(make_dataset(settings, description, trusted))
        if not isinstance(data, PermutationData):
            raise UserError(f"dataset: permutations are needed, such as dataset=cycles, not {type(data).__name__}")
        if description is not None and _facts(data.facts) != _facts(description["data"]):
            theirs, mine = _facts(description["data"]), _facts(data.facts)
            raise UserError(f"dataset: {data.name} has {mine}, but the model is of {theirs}")
        return data

    def to_source(self, data: Any) -> PermutationData:
        """`PermutationData`, or `Puzzles` by their solutions."""
        return from_puzzles(data) if isinstance(data, Puzzles) else data

    def describe_parts(self, settings: Plain, source: PermutationData) -> dict[str, Any]:
        """The network with all its arguments, the code, the objective, and how samples are drawn.

        Raises:
            UserError: an unknown code, objective or order, or a number of passes outside 1..n.
        """
        code, objective = settings["code"] or source.code, settings["objective"]
        for name, value, allowed in (("code", code, tuple(CODES)), ("objective", objective, _OBJECTIVES)):
            refuse(value not in allowed, f"{name} must be one of {', '.join(allowed)}, not {value}")
        with error_context("sampler"):
            passes = Passes().replaced(settings).checked(source.length, objective)
        stats = {**source.facts, "causal": objective == "autoregressive"}
        if "encoder" in stats:
            stats["encoder"] = complete_description(stats["encoder"], source.facts, "network.encoder")
        network = complete_description(settings["network"], stats, "network")
        return {"network": network, "code": code, "objective": objective, **asdict(passes)}

    def describe_data(self, settings: Plain, source: PermutationData) -> dict[str, Any]:
        """Name and kind of the permutations, and what a model depends on."""
        labels = {"labels": list(source.labels)} if source.labels else {}
        return {"data": {"name": source.name, "kind": source.kind, **labels, **_facts(source.facts)}}

    def tensors(self, source: PermutationData) -> dict[str, Tensor]:
        """What the data are called by the user, such as numbers of items."""
        return dict(source.kept)

    def training(self, settings: Plain) -> dict[str, Any]:
        """`sharpness`."""
        return {"sharpness": settings.get("sharpness")}

    def assemble(self, description: Plain, tensors: Mapping[str, Tensor], **training: Any) -> CodeModel:
        """The network, with the code and how samples are drawn."""
        parts, n = description["model"], description["data"]["num_items"]
        refuse(parts["code"] not in CODES or not 2 <= n <= 4096, f"there is no code {parts['code']!r} of {n} items")
        network = instantiate(parts["network"], "network")
        refuse(getattr(network, "num_items", None) != n, f"network: it must be of {n} digits, as the data")
        passes = Passes(parts["passes"], parts["order"], parts["greedy"])
        return CodeModel(network, parts["code"], parts["objective"], passes, dict(tensors), **training)

    def draw(self, model: CodeModel, request: Plain) -> Draw:
        """The draw asked for by `passes`, `order`, `given`, `input` and `sampler.greedy`."""
        return requested(model, request)

    def report(self, model: CodeModel, source: PermutationData, settings: Plain) -> dict[str, Any]:
        """The likelihood of the model, its distance from a known law, and the baselines."""
        return likelihood_report(model, source, settings)

    def sample_values(
        self, model: CodeModel, source: PermutationData, name: str, index: Tensor, values: Tensor
    ) -> SampleValues | None:
        """Bits of each test permutation, exact or bounds as `CodeModel.likelihood` says."""
        return SampleValues(index, values, model.likelihood()) if name == "test/nll_bits" else None

    def baselines(
        self, source: PermutationData, size: int, settings: Plain
    ) -> dict[str, dict[str, Baseline]]:
        """Bits per test permutation of classical models, which see no context."""
        fitted = likelihood_baselines(source, size) if size else {}
        return dict.fromkeys(("test/nll_bits", "nll_bits_test"), fitted)


def _facts(data: Plain) -> dict[str, Any]:
    """What a model depends on; the encoder is described with its network."""
    return {name: value for name, value in data.items() if name not in ("name", "kind", "labels", "encoder")}

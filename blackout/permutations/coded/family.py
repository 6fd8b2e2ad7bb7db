"""The family of coded models: from settings and data to a model, and back from its description.

References: Severo et al. 2025.
"""

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
from blackout.permutations.coded.baselines import likelihood_baselines
from blackout.permutations.coded.data import PermutationData, data_from_puzzles
from blackout.permutations.coded.decoding import Order, Passes
from blackout.permutations.coded.draw import build_draw
from blackout.permutations.coded.model import CodeModel, Objective
from blackout.permutations.coded.report import likelihood_report
from blackout.permutations.codes import CODES
from blackout.permutations.datasets import Puzzles
from blackout.protocols import Draw
from blackout.training.family import ComponentFamily, make_dataset

MAX_ITEMS = 4096  # of a code in a model file

# facts of the data that do not decide whether data fit a model
DESCRIPTIVE_FACTS = ("name", "kind", "labels", "encoder")


@component("family")
@dataclass(frozen=True)
class CodeFamily(ComponentFamily):
    """Distributions on permutations by factorised codes.

    Args:
        monitor: validation metric that chooses the best checkpoint.

    References: Severo et al. 2025.
    """

    monitor: str = "val/nll_bits"
    parts = ("network",)
    values: ClassVar[Plain] = {
        "data.num_items": int,
        "data.name": str,
        "data.kind": str | None,
        "data.labels": list[str] | None,
        "model.code": str,
        "model.objective": Objective,
        "model.order": Order,
        "model.passes": int,
        "model.greedy": bool,
    }
    title = "A distribution over permutations"
    usage = (
        "permutations = model.sample(16, seed=0)  # int64 [16, n]; "
        "in fewer or more passes with passes=..."
    )
    closing = (
        "\nA model with a context needs it: `model.source`, or "
        "`python sample.py ckpt=... input=...`.\n"
    )

    def source(
        self, settings: Plain, description: Plain | None = None, trusted: tuple[str, ...] = ()
    ) -> PermutationData:
        """Return the permutations of the settings, or of a model's description.

        Args:
            settings: of the run.
            description: of a model that the data must fit; None for a new model.
            trusted: see `make_dataset`.

        Raises:
            UserError: no permutations, a file that cannot be read, or data that do not fit the
                model.
        """
        data = self.to_source(make_dataset(settings, description, trusted))
        if not isinstance(data, PermutationData):
            raise UserError(
                "dataset: permutations are needed, such as dataset=cycles, "
                f"not {type(data).__name__}"
            )
        if description is not None:
            expected = _decisive_facts(description["data"])
            actual = _decisive_facts(data.facts)
            refuse(
                actual != expected,
                f"dataset: {data.name} has {actual}, but the model is of {expected}",
            )
        return data

    def to_source(self, data: Any) -> PermutationData:
        """Return puzzles as the permutations that solve them, other data unchanged."""
        return data_from_puzzles(data) if isinstance(data, Puzzles) else data

    def describe_parts(self, settings: Plain, source: PermutationData) -> dict[str, Any]:
        """Return descriptions of the network, the code, the objective, and how samples are drawn.

        The description of the network has all of its arguments.

        Raises:
            UserError: an unknown code, objective or order, or a number of passes outside 1..n.
        """
        code = settings["code"] or source.code
        objective = settings["objective"]
        choices = (
            ("code", code, tuple(CODES)),
            ("objective", objective, typing.get_args(Objective)),
        )
        for name, value, allowed in choices:
            refuse(value not in allowed, f"{name} must be one of {', '.join(allowed)}, not {value}")
        with error_context("sampler"):
            passes = Passes().with_settings(settings).resolve(source.length, objective)
        stats = {**source.facts, "causal": objective == "autoregressive"}
        if "encoder" in stats:
            encoder = complete_description(stats["encoder"], source.facts, "network.encoder")
            stats["encoder"] = encoder
        network = complete_description(settings["network"], stats, "network")
        return {"network": network, "code": code, "objective": objective, **asdict(passes)}

    def describe_data(self, settings: Plain, source: PermutationData) -> dict[str, Any]:
        """Return the description of the data: name, kind, labels and facts."""
        labels = {"labels": list(source.labels)} if source.labels else {}
        facts = _decisive_facts(source.facts)
        return {"data": {"name": source.name, "kind": source.kind, **labels, **facts}}

    def tensors(self, source: PermutationData) -> dict[str, Tensor]:
        """Return the tensors of the data that a model holds.

        An example is the numbers that the user's file has for the items.
        """
        return dict(source.buffers)

    def training_arguments(self, settings: Plain) -> dict[str, Any]:
        """Return the settings of training beyond the common ones: `sharpness`."""
        return {"sharpness": settings.get("sharpness")}

    def assemble(
        self, description: Plain, tensors: Mapping[str, Tensor], **training: Any
    ) -> CodeModel:
        """Return the model of a description."""
        parts = description["model"]
        n = description["data"]["num_items"]
        refuse(
            parts["code"] not in CODES or not 2 <= n <= MAX_ITEMS,
            f"code: {parts['code']!r} of {n} items is not supported; a code is one of "
            f"{', '.join(CODES)}, of 2 to {MAX_ITEMS:,} items",
        )
        network = instantiate(parts["network"], "network")
        refuse(
            getattr(network, "num_items", None) != n,
            f"network: num_items must be {n}, as of the data",
        )
        passes = Passes(parts["passes"], parts["order"], parts["greedy"])
        return CodeModel(
            network, parts["code"], parts["objective"], passes, dict(tensors), **training
        )

    def draw(self, model: CodeModel, request: Plain) -> Draw:
        """Return the samples that `sample.py` requests, see `build_draw`."""
        return build_draw(model, request)

    def report(self, model: CodeModel, source: PermutationData, settings: Plain) -> dict[str, Any]:
        """Return the likelihood of the model, see `likelihood_report`."""
        return likelihood_report(model, source, settings)

    def sample_values(
        self,
        model: CodeModel,
        source: PermutationData,
        name: str,
        index: Tensor,
        values: Tensor,
    ) -> SampleValues | None:
        """Return the bits of each test permutation, for `test/nll_bits`."""
        if name != "test/nll_bits":
            return None
        return SampleValues(index, values, model.likelihood_kind())

    def baselines(
        self, source: PermutationData, size: int, settings: Plain
    ) -> dict[str, dict[str, Baseline]]:
        """Return the bits per test permutation of classical models, which use no context."""
        baselines = likelihood_baselines(source, size) if size else {}
        return dict.fromkeys(("test/nll_bits", "nll_bits_test"), baselines)


def _decisive_facts(data: Plain) -> dict[str, Any]:
    """Return the facts that data and model must share; the network describes its encoder itself."""
    return {name: value for name, value in data.items() if name not in DESCRIPTIVE_FACTS}

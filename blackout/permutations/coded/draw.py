"""Samples of coded models as `sample.py` requests them.

A request may set passes, order, observed digits, conditions and contexts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from blackout.data.formats import load_array
from blackout.errors import UserError, error_context, refuse
from blackout.permutations.coded.data import PermutationData
from blackout.permutations.coded.decoding import Passes
from blackout.permutations.coded.model import BATCH, CodeModel
from blackout.permutations.coded.report import exact_distribution
from blackout.permutations.datasets import read_puzzles
from blackout.permutations.datasets.array_files import finite_numbers
from blackout.permutations.metrics import NDCG_CUTOFFS, NLL_METRICS
from blackout.permutations.queries import Condition, read_integer, summarise_orders
from blackout.protocols import Draw, Drawn, OutputNames, References, Samples, Watch, refuse_unknown
from blackout.random import SampleStreams, categorical, fold_seed
from blackout.representation import format_fields

if TYPE_CHECKING:
    from PIL import Image

MAX_ATTEMPTS = 2000  # draws of a sample until it fulfils a condition
SUMMARY_EVALUATIONS = 20_000  # network evaluations for the samples of a summary
MIN_SUMMARY_SAMPLES = 1000


@dataclass(frozen=True, eq=False)
class CodeDraw(Draw):
    """Samples of a coded model.

    Sample k has context k, modulo their number: the held-out ones, or those of a file.

    Args:
        model: trained.
        passes: how digits are drawn.
        num_observed: number of leading digits that are those of the held-out sample.
        contexts: arrays [m, ...]; None for those of the held-out samples.
        top: number of most probable orders. Above 1, `top`, `top_log_prob`, `places` and `pairs` of
            `blackout.permutations.queries` are added.
        requirement: a condition that samples must fulfil. Up to 7 items without contexts they are
            drawn from the exact conditional distribution, otherwise by rejection. Summaries are
            conditional too, and `condition_log_prob` is added.
    """

    model: CodeModel
    passes: Passes
    num_observed: int = 0
    contexts: Mapping[str, Tensor] | None = None
    top: int = 1
    requirement: Condition | None = None
    names = OutputNames("samples", "permutations", "permutation", "permutations")
    references = References(
        ideal=dict.fromkeys((f"ndcg_at_{k}" for k in NDCG_CUTOFFS), 1.0), metrics=NLL_METRICS
    )
    batch_size = BATCH

    __repr__ = format_fields

    @property
    def steps(self) -> int:
        """Passes of a batch: at most the number of digits to draw."""
        return self.model.num_passes(self.passes, self.num_observed)

    nfe = steps  # network evaluations per sample

    @property
    def resumable(self) -> bool:  # type: ignore[override]
        """Whether samples depend on nothing but the model.

        Otherwise the data or files that they depend on may have changed between two runs.
        """
        return self.contexts is None and not self.model.conditional and not self.num_observed

    @property
    def description(self) -> Mapping[str, Any]:
        """How samples are drawn, for metrics.json: code, objective, passes and order.

        `nll_bits` says whether the bits of these samples are exact.
        """
        likelihood: str = self.model.likelihood_kind(self.passes)
        if self.passes.greedy:
            likelihood += " of draws without greedy"
        contexts: str | None = None
        if self.contexts is not None:
            contexts = "file"
        elif self.model.conditional:
            contexts = "held out"
        return {
            "code": self.model.code.__name__,
            "objective": self.model.objective,
            **asdict(self.passes),
            "nll_bits": likelihood,
            "num_observed": self.num_observed or None,
            "contexts": contexts,
        }

    @property
    def condition(self) -> Mapping[str, Any]:  # type: ignore[override]
        """The contexts and the condition that the user gave.

        Held-out contexts are not among them: samples are compared with data of these contexts.
        """
        condition: dict[str, Any] = {}
        if self.contexts is not None:
            condition["input"] = "file"
        if self.requirement is not None:
            condition["condition"] = self.requirement.text
        return condition

    def batches(
        self,
        indices: Tensor,
        seed: int,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> Drawn:
        """Draw samples, see `CodeModel.batches`, with a summary of each context."""
        queried = self.top > 1 or self.requirement is not None
        for part, samples in self._draw_unconditional(indices, seed, batch_size, watch):
            if self.requirement is not None:
                samples = self._apply_requirement(part, samples, seed)
            if queried and self.model.conditional:
                contexts = self.contexts
                if contexts is None:
                    contexts = self.model.contexts(self.num_observed)
                summaries = [
                    self._summarise(
                        seed, {name: v[k % len(v)][None] for name, v in contexts.items()}
                    )
                    for k in part.tolist()
                ]
                samples = dict(samples)
                for name in summaries[0]:
                    samples[name] = torch.cat([summary[name] for summary in summaries])
            yield part, samples

    def metadata(self, seed: int) -> Mapping[str, Any]:
        """Return the summary of a model without contexts, and print its most probable orders."""
        queried = self.top > 1 or self.requirement is not None
        if not queried or self.model.conditional:
            return {}
        summary = {name: values[0] for name, values in self._summarise(seed, {}).items()}
        labels = self.model.config.get("data", {}).get("labels")
        probabilities = summary["top_log_prob"].exp().tolist()
        for order, p in zip(summary["top"].tolist(), probabilities, strict=True):
            if -1 in order:
                continue  # there are fewer orders
            text = " > ".join(labels[i] for i in order) if labels else " ".join(map(str, order))
            print(f"order:   {text} (probability {p:.4f})")
        return summary

    def _draw_unconditional(
        self, indices: Tensor, seed: int, size: int | None = None, watch: Watch | None = None
    ) -> Drawn:
        """Draw samples without a requirement."""
        return self.model.batches(
            indices, seed, size, self.passes, self.num_observed, self.contexts, watch
        )

    def _apply_requirement(self, part: Tensor, samples: Samples, seed: int) -> dict[str, Tensor]:
        """Return samples [b] that fulfil the requirement.

        They are drawn from the exact conditional distribution if it is available. Otherwise those
        samples that do not fulfil it are drawn again until they do.

        Raises:
            UserError: fewer than 1 in 2,000 draws fulfil it.
        """
        assert self.requirement is not None
        distribution = None if self.model.conditional else self._exact_distribution({})
        if distribution is not None:
            orders, log_probs = distribution
            log_probs = log_probs.masked_fill(~self.requirement.is_fulfilled(orders), -torch.inf)
            weights = log_probs.exp().expand(len(part), -1)
            index = categorical(weights, SampleStreams(seed, part).step(0))
            return {
                "samples": orders[index],
                "code": self.model.encode(orders[index].to(self.model.device)),
                "log_prob": log_probs[index] - log_probs.logsumexp(0),
            }
        accepted = dict(samples)
        for attempt in range(1, MAX_ATTEMPTS):
            is_fulfilled = self.requirement.is_fulfilled(accepted["samples"])
            rejected = (~is_fulfilled).nonzero().squeeze(1)
            if not len(rejected):
                return accepted
            attempt_seed = fold_seed(seed, attempt)
            for _, redrawn in self._draw_unconditional(
                part[rejected.cpu()], attempt_seed, len(rejected)
            ):
                accepted = {
                    name: values.index_copy(0, rejected, redrawn[name])
                    for name, values in accepted.items()
                }
        raise UserError(
            f"condition: fewer than 1 in {MAX_ATTEMPTS:,} draws fulfil {self.requirement.text!r}; "
            "leave out a part of it"
        )

    def _exact_distribution(self, context: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
        """Return all permutations and their log-probabilities for a context [1, ...].

        The result is None if there are too many of them to enumerate.
        """
        if self.num_observed or self.passes.greedy:
            return None
        passes = self.passes.passes or 1
        return exact_distribution(self.model, context, passes, self.passes.order)

    def _summarise(self, seed: int, context: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the summary for a context [1, ...], by all permutations or by samples."""
        distribution = self._exact_distribution(context)
        if distribution is None:
            passes = self.passes.passes or 1
            num_samples = max(MIN_SUMMARY_SAMPLES, SUMMARY_EVALUATIONS // passes)
            batches = self.model.batches(
                torch.arange(num_samples), seed, None, self.passes, self.num_observed, context
            )
            orders = torch.cat([samples["samples"].cpu() for _, samples in batches])
            distribution = orders, torch.full((num_samples,), -math.log(num_samples))
        orders, log_weights = distribution
        return summarise_orders(
            orders.unsqueeze(0), log_weights.unsqueeze(0), self.top, self.requirement
        )

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """Return a picture of permutations and rankings as numbers, or of puzzles."""
        # imported here, because loading a model does not need Pillow
        from blackout.permutations.plots import plot_samples

        return plot_samples(samples, self.model.config.get("data", {}), columns)


def build_draw(model: CodeModel, request: Mapping[str, Any]) -> CodeDraw:
    """Return the draw that the settings of `sample.py` request.

    Args:
        model: trained.
        request: `passes`, `order`, `condition` (a number of digits, or words), `input`, `sampler`,
            `top`.

    Raises:
        UserError: another option, or one that the model does not allow.
    """
    refuse_unknown(request, "passes", "order", "condition", "input", "sampler", "top")
    with error_context("sampler"):
        passes = model.passes.with_settings(request).resolve(model.length, model.objective)
    data = model.config.get("data", {})
    contexts = read_contexts(request["input"], data, model) if "input" in request else None
    num_observed = request.get("condition", 0)
    requirement: Condition | None = None
    if isinstance(num_observed, str):
        labels = () if model.conditional else data.get("labels", ())
        requirement = Condition.read(num_observed, model.length, labels)
        num_observed = 0
    if type(num_observed) is not int or not 0 <= num_observed <= model.length:
        raise UserError(
            f"condition must be 0..{model.length} digits of held-out samples, "
            f"or words, not {num_observed!r}"
        )
    top = read_integer(request, "top")
    return CodeDraw(model, passes, num_observed, contexts, top, requirement)


def read_contexts(path: Any, data: Mapping[str, Any], model: CodeModel) -> dict[str, Tensor]:
    """Read contexts from a file.

    Puzzles are read by `blackout.permutations.datasets.read_puzzles`. Other contexts are a single
    array in an `.npy` file, or `items` or `condition` in an `.npz`; tokens are the numbers of the
    user's training file.

    Args:
        path: the setting `input`.
        data: facts of the model.
        model: may hold the user's numbers of tokens, `item_names`, and knows its source.

    Returns:
        Arrays [m, ...] by name.

    Raises:
        UserError: a model without contexts, a file that cannot be read, or arrays of another shape.
    """
    has_context = any(name in data for name in ("item_shape", "num_conditions"))
    refuse(not has_context, "input: this model has no context; leave it out")
    file = Path(str(path)).expanduser()
    if data.get("kind") not in (None, "rankings"):
        source = cast(PermutationData, model.require_source())
        assert source.puzzles is not None
        puzzles = read_puzzles(file, source.puzzles)
        return {"x" if name == "truth" else name: values for name, values in puzzles.items()}
    if "num_conditions" in data:
        name = "condition"
        width = data["num_conditions"]
    else:
        name = "items"
        width = data["num_items"]
    values = finite_numbers(load_array(file, name), file)
    if values.ndim == 1:
        values = values[:, None] if width == 1 else values[None]
    if values.shape[1:] != (width,) or not len(values):
        raise UserError(f"{file}: an array [m, {width}] is needed, not {list(values.shape)}")
    if name == "condition":
        return {name: values.float()}
    # translate the user's numbers of items to those of the model
    tokens = values.long()
    item_names = model.tensors().get("item_names", torch.arange(data["num_tokens"]))
    index = torch.searchsorted(item_names, tokens).clamp(max=len(item_names) - 1)
    is_known = item_names[index] == tokens
    if not bool(is_known.all()):
        raise UserError(
            f"{file}: the model knows no item {int(tokens[~is_known][0])}; use those of its data"
        )
    return {name: index}

"""How samples are drawn from a model of codes: passes, order, observed digits, contexts, and files of the last two."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from blackout.data.formats import load_array
from blackout.errors import UserError, error_context, refuse
from blackout.permutations.coded.model import BATCH, CodeModel, Passes
from blackout.permutations.coded.report import exact_distribution
from blackout.permutations.datasets import finite_numbers, read_puzzles
from blackout.permutations.metrics import CUTOFFS
from blackout.permutations.queries import Condition, read_integer, summarise_orders
from blackout.protocols import Draw, Drawn, OutputNames, References, Samples, Watch, refuse_unknown
from blackout.random import SampleStreams, categorical, fold_seed

if TYPE_CHECKING:
    from PIL import Image

_ATTEMPTS, _DRAWS, _LEAST_DRAWS = 2000, 20_000, 1000
"""Draws of a sample that has to fulfil a condition; passes of all draws of an answer, and draws at least."""


@dataclass(frozen=True, eq=False)
class CodeDraw(Draw):
    """Samples of a model, in some number of passes.

    Sample k has context k, modulo their number: the held-out ones, or those of a file.

    Args:
        model: drawn from.
        passes: how.
        given: so many first digits of the held-out sample are observed.
        contexts: arrays [m, ...] in place of the held-out samples'; None for those.
        top: above 1 also so many of the likeliest orders, and how likely items are at places and before others:
            `top`, `top_log_prob`, `places`, `pairs` of `blackout.permutations.queries`.
        under: what samples have to fulfil: they are drawn from the law under it to 7 items without contexts, else again
            and again until they do; answers are under it, too, and `given_log_prob` is its own.
    """

    model: CodeModel
    passes: Passes
    given: int = 0
    contexts: Mapping[str, Tensor] | None = None
    top: int = 1
    under: Condition | None = None
    names = OutputNames("samples", "permutations", "permutation", "permutations")
    references = References(ideal=dict.fromkeys((f"ndcg_at_{k}" for k in CUTOFFS), 1.0))
    batch_size = BATCH

    @property
    def steps(self) -> int:
        """Passes a batch takes: no more than there are digits to draw."""
        return self.model.steps(self.passes, self.given)

    nfe = steps
    """Network evaluations per sample."""

    @property
    def resumable(self) -> bool:  # type: ignore[override]
        """Only where nothing but the model decides samples: data and files may have changed since."""
        return self.contexts is None and not self.model.conditional and not self.given

    @property
    def description(self) -> Mapping[str, Any]:
        """Code, objective, passes and order, for metrics.json, and what `nll_bits` of these draws is."""
        described = {"code": self.model.code.__name__, "objective": self.model.objective, **asdict(self.passes)}
        described["nll_bits"] = self.model.likelihood(self.passes)
        if self.passes.greedy:
            described["nll_bits"] += " of draws without greedy"
        contexts = "file" if self.contexts is not None else "held out" if self.model.conditional else None
        return {**described, "given": self.given or None, "contexts": contexts}

    @property
    def condition(self) -> Mapping[str, Any]:  # type: ignore[override]
        """The user's own contexts and words; held-out ones are those of what samples are compared with."""
        own = {} if self.contexts is None else {"input": "file"}
        return own | ({"given": self.under.text} if self.under else {})

    def batches(self, indices: Tensor, seed: int, batch_size: int | None = None, watch: Watch | None = None) -> Drawn:
        """See `CodeModel.batches`."""
        more = (self.top > 1 or self.under is not None) and self.model.conditional
        for part, drawn in self._drawn(indices, seed, batch_size, watch):
            samples = drawn if self.under is None else self._accepted(part, drawn, seed)
            if more:
                known = self.model.contexts(self.given) if self.contexts is None else self.contexts
                own = [{name: values[k % len(values)][None] for name, values in known.items()} for k in part.tolist()]
                told = [self._answers(seed, context) for context in own]
                samples = {**samples, **{name: torch.cat([one[name] for one in told]) for name in told[0]}}
            yield part, samples

    def about(self, seed: int) -> Mapping[str, Any]:
        """The answers, of a model without contexts."""
        if (self.top == 1 and self.under is None) or self.model.conditional:
            return {}
        told = {name: values[0] for name, values in self._answers(seed, {}).items()}
        names = self.model.config.get("data", {}).get("labels")
        for order, p in zip(told["top"].tolist(), told["top_log_prob"].exp().tolist(), strict=True):
            if -1 not in order:  # there are fewer
                called = " > ".join(names[i] for i in order) if names else " ".join(map(str, order))
                print(f"order:   {called} (probability {p:.4f})")
        return told

    def _drawn(self, indices: Tensor, seed: int, size: int | None = None, watch: Watch | None = None) -> Drawn:
        return self.model.batches(indices, seed, size, self.passes, self.given, self.contexts, watch)

    def _accepted(self, part: Tensor, drawn: Samples, seed: int) -> dict[str, Tensor]:
        """Samples that fulfil the condition: of the law under it where that is known, else drawn until they do."""
        assert self.under is not None
        if not self.model.conditional and (law := self._law({})) is not None:
            log_p = law[1].masked_fill(~self.under.is_fulfilled(law[0]), -torch.inf)
            which = categorical(log_p.exp().expand(len(part), -1), SampleStreams(seed, part).step(0))
            return {"samples": law[0][which], "code": self.model.encode(law[0][which].to(self.model.device)),
                    "log_prob": log_p[which] - log_p.logsumexp(0)}  # fmt: skip
        samples = dict(drawn)
        for attempt in range(1, _ATTEMPTS):
            wrong = (~self.under.is_fulfilled(samples["samples"])).nonzero().squeeze(1)
            if not len(wrong):
                return samples
            for _, again in self._drawn(part[wrong.cpu()], fold_seed(seed, attempt), len(wrong)):
                samples = {name: values.index_copy(0, wrong, again[name]) for name, values in samples.items()}
        raise UserError(f"given: fewer than 1 in {_ATTEMPTS:,} draws fulfil {self.under.text!r}")

    def _law(self, context: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
        """All permutations and their log-probabilities for one context [1, ...], where these can be gone through."""
        if self.given or self.passes.greedy:
            return None
        return exact_distribution(self.model, context, self.passes.passes or 1, self.passes.order)

    def _answers(self, seed: int, context: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of one context [1, ...]: by all permutations, where these can be gone through, else by draws."""
        if (law := self._law(context)) is None:
            number = max(_LEAST_DRAWS, _DRAWS // (self.passes.passes or 1))
            drawn = self.model.batches(torch.arange(number), seed, None, self.passes, self.given, context)
            orders = torch.cat([samples["samples"].cpu() for _, samples in drawn])
            law = orders, torch.full((number,), -math.log(number))
        return summarise_orders(law[0].unsqueeze(0), law[1].unsqueeze(0), self.top, self.under)

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """Permutations and rankings as numbers, puzzles as what they are of."""
        from blackout.permutations.plots import picture  # here: a model that is loaded needs no Pillow

        return picture(samples, self.model.config.get("data", {}), columns)


def requested(model: CodeModel, request: Mapping[str, Any]) -> CodeDraw:
    """The draw that the settings of `sample.py` ask for.

    Raises:
        UserError: something that the model cannot do, or another option.
    """
    refuse_unknown(request, "passes", "order", "given", "input", "sampler", "top")
    with error_context("sampler"):
        passes = model.passes.replaced(request).checked(model.length, model.objective)
    given, under, data = request.get("given", 0), None, model.config.get("data", {})
    contexts = read_contexts(request["input"], data, model) if "input" in request else None
    if isinstance(given, str):
        under, given = Condition.read(given, model.length, () if model.conditional else data.get("labels", ())), 0
    if type(given) is not int or not 0 <= given <= model.length:
        raise UserError(f"given must be 0..{model.length} digits of held-out samples, or words, not {given!r}")
    return CodeDraw(model, passes, given, contexts, read_integer(request, "top"), under)


def read_contexts(path: Any, data: Mapping[str, Any], model: CodeModel) -> dict[str, Tensor]:
    """The contexts in a file, by the facts of the model's data.

    Puzzles as `blackout.permutations.datasets.read_puzzles` reads them. Otherwise an `.npy` file of one array, or an
    `.npz` with `items` or `condition`: tokens are the numbers that the user's own file gave them.

    Args:
        path: the setting `input`.
        data: facts of the model.
        model: which may keep the user's numbers of tokens, `item_names`, and knows its source.

    Raises:
        UserError: a model without contexts, a file that cannot be read, or arrays of another shape.
    """
    refuse(not any(name in data for name in ("item_shape", "num_conditions")), "input: this model has no context")
    file = Path(str(path)).expanduser()
    if data.get("kind") not in (None, "rankings"):
        found = read_puzzles(file, model.require_source().puzzles)  # type: ignore[attr-defined]
        return {"x" if name == "truth" else name: values for name, values in found.items()}
    name, width = ("condition", data["num_conditions"]) if "num_conditions" in data else ("items", data["num_items"])
    values = finite_numbers(load_array(file, name), file)
    if values.ndim == 1:
        values = values[:, None] if width == 1 else values[None]
    if values.shape[1:] != (width,) or not len(values):
        raise UserError(f"{file}: an array [m, {width}] is needed, not {list(values.shape)}")
    if name == "condition":
        return {name: values.float()}
    # the model's numbers of items from the user's
    tokens, names = values.long(), model.tensors().get("item_names", torch.arange(data["num_tokens"]))
    own = torch.searchsorted(names, tokens).clamp(max=len(names) - 1)
    if not bool((known := names[own] == tokens).all()):
        raise UserError(f"{file}: the model knows no item {int(tokens[~known][0])}")
    return {name: own}

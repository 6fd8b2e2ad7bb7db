"""The model: codes of permutations, a network that says each digit's law given others, any number of passes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from blackout.errors import UserError
from blackout.permutations.coded.draw import CodeDraw, requested
from blackout.permutations.coded.interface import Passes
from blackout.permutations.coded.report import MOST_ITEMS, held_out_nll, likelihood_report
from blackout.permutations.codes import Code, FisherYates, Inline, Insertion, LeftLehmer, Lehmer
from blackout.permutations.datasets.base import reading
from blackout.permutations.factorized import Denoiser, any_order_loss, autoregressive_loss
from blackout.permutations.group import inverse, is_permutation
from blackout.random import SampleStreams, fold_seed
from blackout.training.model import Model

CodeName = Literal["lehmer", "left_lehmer", "fisher_yates", "insertion", "inline"]
Objective = Literal["masked", "autoregressive"]
CODES: dict[str, type[Code]] = {
    "lehmer": Lehmer,
    "left_lehmer": LeftLehmer,
    "fisher_yates": FisherYates,
    "insertion": Insertion,
    "inline": Inline,
}
_NOISE, _VALIDATION = 1, 3
"""Keys that keep the uses of one seed apart; 2 is dropout's."""


class CodeModel(Model):
    """A distribution over permutations of n items by the digits of a code.

    Args:
        network: (codes [B, n], context or None) -> logits [B, n, n]; `num_items` and `fused` are read from it.
        code: what the digits are.
        objective: "masked" (any order, any number of passes) or "autoregressive" (left to right, n passes).
        passes: how samples are drawn by default.
        kept: named tensors of the source that are exported with the model.
        training: ema_decay and seed of a model in training.

    Raises:
        ValueError: a number of passes or an order that the objective does not allow.
    """

    means = ("val/nll_bits",)

    def __init__(
        self,
        network: nn.Module,
        code: CodeName,
        objective: Objective,
        passes: Passes,
        kept: Mapping[str, Tensor] | None = None,
        **training: Any,
    ) -> None:
        super().__init__(network, **training)
        self.code, self.objective = CODES[code], str(objective)
        self.support: Tensor
        self.length = int(network.num_items)  # type: ignore[arg-type]
        self.register_buffer("support", self.code.support(self.length), persistent=False)
        self.kept = tuple(kept or ())
        for name, values in (kept or {}).items():
            self.register_buffer(name, values)
        self.passes = passes.checked(self.length, objective, self.code is Inline)

    @property
    def aligned(self) -> bool:
        """Whether digit i is about given item i: the network sees that item in digit i's row.

        Insertion digits of x are, by theorem 4.3; for the others the places of the given items, x^-1, are coded.
        """
        return bool(getattr(self.network, "fused", False))

    def encode(self, x: Tensor) -> Tensor:
        """The digits that stand for permutations x [..., n]."""
        return self.code.encode(inverse(x) if self.aligned and self.code is not Insertion else x)

    def decode(self, codes: Tensor) -> Tensor:
        """The permutations of digits [..., n].

        Inline digits may be none: they are then given as they are, or, where they are the places of items, made one by
        sorting the items by place.
        """
        x = self.code.decode(codes)
        if not self.aligned or self.code is Insertion:
            return x
        return x.argsort(dim=-1, stable=True) if self.code is Inline else inverse(x)

    def denoiser(self, context: Mapping[str, Tensor], network: nn.Module | None = None) -> Denoiser:
        """Codes -> logits, given one context or one per code; by default with the averaged weights."""
        net = self.averaged if network is None else network
        shown = {name: context[name] for name in ("items", "condition") if name in context}

        def logits(codes: Tensor) -> Tensor:
            here = {name: values.expand(len(codes), *values.shape[1:]) for name, values in shown.items()}
            found: Tensor = net(codes, here)
            return found

        return logits

    # --- training

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """Mean -log p of the batch in nats: a bound averaged over orders (masked), or exact (autoregressive)."""
        codes = self.encode(batch["x"])
        denoiser = self.denoiser(batch, self.network)
        if self.objective == "autoregressive":
            loss = autoregressive_loss(denoiser, codes, self.support).mean()
        else:
            streams = SampleStreams(fold_seed(self.seed, _NOISE), batch["position"].to(codes.device)).at(batch["batch"])
            loss = any_order_loss(denoiser, codes, self.support, streams).mean()
        self.log("train/nll_bits", loss.detach() / math.log(2))
        return loss

    @torch.no_grad()
    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """Bits per permutation, see `held_out_nll`."""
        streams = SampleStreams(fold_seed(self.seed, _VALIDATION), batch["index"].to(self.device)).at(0)
        nll = held_out_nll(self, self.denoiser(batch), self.encode(batch["x"]), streams)
        self.record("val/nll_bits", nll / math.log(2))

    @property
    def validation_cost(self) -> int:
        """Network evaluations that validation takes per sample."""
        if self.objective == "autoregressive":
            return 1
        return 2**self.length - 1 if self.length <= MOST_ITEMS else self.length

    # --- use

    def draw(self, request: Mapping[str, Any]) -> CodeDraw:
        """The draw asked for by `passes`, `order`, `given`, `input`, `distinct`, `curve` and `sampler.greedy`."""
        return requested(self, request)

    def sample(self, num_samples: int, seed: int = 0, **request: Any) -> Tensor:
        """Permutations int64 [num_samples, n]; sample k is a function of (seed, k).

        Args:
            num_samples: how many.
            seed: any integer.
            request: the settings of `draw`.
        """
        draw = self.draw({**request, "num_samples": num_samples})
        return torch.cat([part["samples"].cpu() for _, part in draw.batches(torch.arange(num_samples), seed)])

    def valid(self, codes: Tensor) -> Tensor:
        """Which digits [B, n] are a permutation's: all, but with the inline code."""
        return is_permutation(codes) if self.code is Inline else self.code.valid(codes)

    def example(self) -> tuple[Any, ...]:
        """Arguments of one network evaluation of one sample."""
        codes = torch.full((1, self.length), self.length, dtype=torch.int64, device=self.device)
        facts, context = self.config["data"], {}
        if "item_shape" in facts:
            dtype = torch.int64 if "num_tokens" in facts else torch.float32
            context["items"] = torch.zeros(1, self.length, *facts["item_shape"], dtype=dtype, device=self.device)
        if "num_conditions" in facts:
            context["condition"] = torch.zeros(1, facts["num_conditions"], device=self.device)
        return codes, context

    def rehearse(self) -> None:
        """One evaluation of the network, whose logits must fit.

        Raises:
            UserError: they do not, or the network cannot read the items.
        """
        codes, context = self.example()
        with reading(self.config["data"].get("kind") or "items", context.get("items", codes)[0, 0]):
            logits = self.averaged(codes, context)
        if logits.shape != (1, self.length, self.length):
            raise UserError(f"network: logits [1, {self.length}, {self.length}] are needed, not {list(logits.shape)}")

    def report(self, source: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The likelihood of the model, its distance from a known law, and the baselines."""
        return likelihood_report(self, source, settings)

    def tensors(self) -> dict[str, Tensor]:
        """What is exported besides the weights."""
        return {name: getattr(self, name) for name in self.kept}

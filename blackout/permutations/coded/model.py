"""Models of permutations by the digits of a factorised code.

References: Severo et al. 2025, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from blackout.errors import UserError, error_context, refuse
from blackout.permutations.coded.decoding import (
    BlockRule,
    Passes,
    balanced_blocks,
    fill_codes,
    most_certain_digits,
)
from blackout.permutations.coded.denoiser import Denoiser
from blackout.permutations.coded.likelihood import (
    MAX_EXACT_ITEMS,
    LikelihoodKind,
    code_log_prob,
    mixture_nll,
)
from blackout.permutations.coded.losses import any_order_loss, autoregressive_loss
from blackout.permutations.codes import CODES, Inline, Insertion
from blackout.permutations.group import inverse, is_permutation
from blackout.permutations.metrics import (
    SHARPNESS_CHOICES,
    read_sharpness,
    rearrange,
    validate_sharpness,
)
from blackout.protocols import Drawn, Split, Watch
from blackout.random import RandomSource, SampleStreams, fold_seed, uniform
from blackout.training.model import FIXED_STEPS, Model, check_finite_output

Objective = Literal["masked", "autoregressive"]

BATCH = 1000  # samples drawn together unless the caller says otherwise
# keys that separate the uses of one seed; 2 is the key of dropout
MASK_KEY = 1
VALIDATION_KEY = 3
# validation permutations by which sharpness is chosen
MIN_SHARPNESS_SAMPLES = 20
MAX_SHARPNESS_SAMPLES = 512


class CodeModel(Model):
    """A distribution on permutations of n items by the digits of a code.

    Args:
        network: (codes [B, n], context) -> logits [B, n, n], with attributes `num_items` and
            `fused`.
        code: name of the code, see `CODES`.
        objective: "masked" (any order, any number of passes) or "autoregressive" (left to right, n
            passes).
        passes: how samples are drawn by default.
        buffers: named tensors of the data set that are exported with the model, and its sharpness.
        sharpness: factor of the logits after training; None chooses it on validation data.
        training: `ema_decay` and `seed` of `Model`.

    Raises:
        ValueError: a number of passes or an order that the objective does not allow.

    References: Severo et al. 2025, section 4.
    """

    validation_metrics = ("val/nll_bits",)

    def __init__(
        self,
        network: nn.Module,
        code: str,
        objective: Objective,
        passes: Passes,
        buffers: Mapping[str, Tensor] | None = None,
        sharpness: float | None = None,
        **training: Any,
    ) -> None:
        super().__init__(network, **training)
        buffers = buffers or {}
        self.sharpness_setting = validate_sharpness(sharpness)
        self.sharpness: Tensor
        self.code = CODES[code]
        self.objective = str(objective)
        self.length = int(network.num_items)  # type: ignore[arg-type]
        for name, values in buffers.items():
            self.register_buffer(name, values)
        self.register_buffer("sharpness", read_sharpness(buffers))
        self.passes = passes.resolve(self.length, objective)

    @property
    def support(self) -> Tensor:
        """The values that each digit may have, bool [n, n]."""
        return self.code.support(self.length, self.device)

    @property
    def aligned(self) -> bool:
        """Whether digit i is about item i of the context, which then shares its row in the network.

        Insertion digits of x are of this kind (Severo et al. 2025, theorem 4.3). For other codes
        the positions of the items, the inverse of x, are encoded.
        """
        return bool(getattr(self.network, "fused", False))

    def encode(self, x: Tensor) -> Tensor:
        """Return the digits of permutations x, int64 [..., n], see `aligned` and `Code.encode`."""
        return self.code.encode(inverse(x) if self.aligned and self.code is not Insertion else x)

    def decode(self, codes: Tensor) -> Tensor:
        """Return the permutations of digits, int64 [..., n], see `aligned` and `Code.decode`.

        Inline digits may be no permutation. They are returned as they are; if they are positions of
        items, the items are sorted by them, which always gives a permutation.
        """
        x = self.code.decode(codes)
        if not self.aligned or self.code is Insertion:
            return x
        return x.argsort(dim=-1, stable=True) if self.code is Inline else inverse(x)

    def denoiser(self, context: Mapping[str, Tensor], network: nn.Module | None = None) -> Denoiser:
        """Return the denoiser, codes [B, n] -> logits [B, n, n], for one context or one per code.

        Args:
            context: may hold more than `items` and `condition`, which is ignored.
            network: None for the one with averaged weights, whose logits are multiplied by the
                sharpness.
        """
        sharpness = float(self.sharpness) if network is None else 1.0
        network = self.averaged if network is None else network
        inputs = {name: context[name] for name in ("items", "condition") if name in context}

        def logits(codes: Tensor) -> Tensor:
            """Return logits [B, n, n] of codes [B, n]."""
            if len(codes) > 1 and not inputs and bool((codes == codes[:1]).all()):
                return logits(codes[:1]).expand(
                    len(codes), -1, -1
                )  # one evaluation for equal codes
            batch = {
                name: values.expand(len(codes), *values.shape[1:])
                for name, values in inputs.items()
            }
            return check_finite_output(network(codes, batch)) * sharpness

        return logits

    # --- training

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the mean -log p of the batch in nats, a scalar.

        It is an average over orders for a masked model, see `any_order_loss`, and exact for an
        autoregressive one.
        """
        codes = self.encode(batch["x"])
        denoiser = self.denoiser(batch, self.network)
        if self.objective == "autoregressive":
            loss = autoregressive_loss(denoiser, codes, self.support).mean()
        else:
            keys = SampleStreams(fold_seed(self.seed, MASK_KEY), batch["position"].to(codes.device))
            streams = keys.step(batch["batch_number"])
            loss = any_order_loss(denoiser, codes, self.support, streams).mean()
        self.log("train/nll_bits", loss.detach() / math.log(2))
        return loss

    @torch.no_grad()
    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """Record the bits of permutations x [b, n], see `nll`."""
        keys = SampleStreams(fold_seed(self.seed, VALIDATION_KEY), batch["index"].to(self.device))
        nll = self.nll(self.denoiser(batch), self.encode(batch["x"]), keys.step(0))
        self.record("val/nll_bits", nll / math.log(2))

    @torch.no_grad()
    def calibrate(self, evaluations: int) -> None:
        """Choose the sharpness with the smallest `nll` of validation permutations.

        A model of few training permutations is overconfident. With a sharpness of 0 a free code is
        uniform, so that no model is worse than uniform on validation permutations.

        Args:
            evaluations: of the network in training, which limit the number of permutations.

        References: this project; checked in tests/permutations/coded/test_model.py.
        """
        if self.sharpness_setting is not None:
            self.sharpness.fill_(self.sharpness_setting)
            return
        source = self.require_source()
        available = min(MAX_SHARPNESS_SAMPLES, source.size("val") or 0)
        affordable = evaluations // (len(SHARPNESS_CHOICES) * self.validation_cost)
        size = min(available, affordable)
        if size < max(1, min(MIN_SHARPNESS_SAMPLES, available)):
            return
        index = torch.arange(size)
        batch = {
            name: values.to(self.device) for name, values in source.batch("val", index).items()
        }
        self.averaged.eval()

        def mean_nll(sharpness: float) -> float:
            """Return the mean of `nll` at a sharpness."""
            self.sharpness.fill_(sharpness)
            keys = SampleStreams(fold_seed(self.seed, VALIDATION_KEY), index.to(self.device))
            nll = self.nll(self.denoiser(batch), self.encode(batch["x"]), keys.step(0))
            return float(nll.mean())

        self.sharpness.fill_(min(SHARPNESS_CHOICES, key=mean_nll))

    @property
    def validation_cost(self) -> int:
        """Network evaluations of a validation permutation."""
        if self.objective == "autoregressive":
            return 1
        if self._sums_over_orders(self.passes):
            return 2**self.length - 1
        return self.passes.passes or self.length

    def nll(
        self, denoiser: Denoiser, codes: Tensor, streams: RandomSource, passes: Passes | None = None
    ) -> Tensor:
        """Return -log p in nats, float64 [B], of the distribution of samples without `greedy`.

        If every sample has a random order, p is a mixture over orders. Up to 7 items it is summed.
        Above that the value is -log p given one random order per sample, whose mean is an upper
        bound by Jensen's inequality, see `likelihood_kind`.

        Args:
            denoiser: of the contexts of the codes.
            codes: int64 [B, n].
            streams: source of random orders.
            passes: how digits are drawn; None for the model's default.

        References: Severo et al. 2025, eq. 2; Uria et al. 2014.
        """
        passes = self.passes if passes is None else passes
        n = codes.shape[1]
        num_passes = passes.passes or n
        if self.objective == "autoregressive":
            return autoregressive_loss(denoiser, codes, self.support).double()
        if passes.order == "confidence":
            log_prob = code_log_prob(denoiser, codes, most_certain_digits, self.support, num_passes)
            return -log_prob.double()
        if self._sums_over_orders(passes):
            return mixture_nll(denoiser, codes, self.support, num_passes)
        order: Tensor | None = None
        if passes.order == "random":
            order = uniform(tuple(codes.shape), streams, codes.device).argsort(dim=1)
        blocks = balanced_blocks(n, num_passes, order)
        return -code_log_prob(denoiser, codes, blocks, self.support).double()

    def likelihood_kind(self, passes: Passes | None = None) -> LikelihoodKind:
        """Return whether `nll` is the exact -log p of samples, or an upper bound.

        It is a bound if one order stands for all orders. It is also a bound if inline digits that
        are no permutation are repaired, as several codes then give the same permutation.
        """
        passes = self.passes if passes is None else passes
        one_pass = passes.passes == 1
        random_order = self.objective == "masked" and passes.order == "random" and not one_pass
        repaired = self.code is Inline and self.aligned
        if repaired or (random_order and not self._sums_over_orders(passes)):
            return "upper bound"
        return "exact"

    def _sums_over_orders(self, passes: Passes) -> bool:
        """Return whether `nll` sums over the orders of digits."""
        several = self.objective == "masked" and passes.order == "random" and passes.passes != 1
        return several and self.length <= MAX_EXACT_ITEMS

    # --- sampling

    def batches(
        self,
        indices: Tensor,
        seed: int = 0,
        batch_size: int | None = None,
        passes: Passes | None = None,
        num_observed: int = 0,
        contexts: Mapping[str, Tensor] | None = None,
        watch: Watch | None = None,
    ) -> Drawn:
        """Draw samples, a batch at a time; sample k has context k, modulo their number.

        Args:
            indices: of the samples, int64 [N].
            seed: as for `Model.batches`.
            batch_size: as for `Model.batches`.
            passes: how digits are drawn; None for the model's default.
            num_observed: number of leading digits that are those of the held-out sample.
            contexts: arrays [m, ...]; None for those of the test samples.
            watch: see `blackout.protocols.Watch`.

        Yields:
            Indices [b], and tensors by name: `samples` [b, n], `code`, `log_prob` [b] and contexts.
            `log_prob`, in nats, is conditional on the observed digits and on the order in which the
            digits were drawn.
        """
        passes = self.passes if passes is None else passes
        contexts = self.contexts(num_observed) if contexts is None else contexts
        device = self.device
        num_steps = self.num_passes(passes, num_observed)
        for part in indices.split(batch_size or BATCH) if len(indices) else ():
            # 1. contexts and observed digits
            context = {
                name: values[part % len(values)].to(device) for name, values in contexts.items()
            }
            streams = SampleStreams(seed, part.to(device)).step(0)
            codes = torch.full(
                (len(part), self.length), self.length, dtype=torch.int64, device=device
            )
            if num_observed:
                codes[:, :num_observed] = self.encode(context["x"])[:, :num_observed]
            # 2. draw the others
            u = streams.next_draw().uniform(tuple(codes.shape))
            blocks = self._blocks(codes, u, passes, num_observed)
            log_prob = torch.zeros(len(codes), device=device)
            denoiser = self.denoiser(context)
            states = fill_codes(
                denoiser, codes, blocks, num_steps, self.support, streams, greedy=passes.greedy
            )
            for step, state in enumerate(chain([(codes, log_prob)], states)):
                codes, log_prob = state
                if watch is not None:
                    watch(step, num_steps, self._preview(codes, context))
            # 3. collect
            samples = {"samples": self.decode(codes), "code": codes, "log_prob": log_prob}
            if self.code is Inline:
                samples["valid"] = is_permutation(codes)
            tensors = self.tensors()
            if "item_names" in tensors:
                # the names of the items in the user's file
                samples["item_names"] = tensors["item_names"].to(device)[context["items"]]
            for name, values in context.items():
                samples["target" if name == "x" else name] = values
            yield part, samples

    @property
    def conditional(self) -> bool:
        """Whether samples have contexts."""
        data = self.config.get("data", {})
        return any(name in data for name in ("item_shape", "num_conditions"))

    def contexts(self, num_observed: int = 0, split: Split = "test") -> Mapping[str, Tensor]:
        """Return contexts [m, ...] of a split with the true `x`.

        The result is empty if sampling needs neither.
        """
        if not self.conditional and not num_observed:
            return {}
        source = self.require_source()
        return source.batch(split, torch.arange(source.size(split) or 0))

    def validation_batches(
        self, indices: Tensor, seed: int = 0, num_steps: int | None = None
    ) -> Drawn:
        """Draw samples with the contexts of validation samples, see `batches`."""
        refuse(num_steps is not None, FIXED_STEPS)
        return self.batches(indices, seed, contexts=self.contexts(split="val"))

    def num_passes(self, passes: Passes, num_observed: int) -> int:
        """Return the network evaluations of a batch: at most the number of digits to draw."""
        return max(1, min(passes.passes or 1, self.length - num_observed))

    def _blocks(
        self, codes: Tensor, u: Tensor, passes: Passes, num_observed: int
    ) -> list[Tensor] | BlockRule:
        """Return the balanced blocks of the digits to draw, int64 [B, s] each, or their rule.

        Args:
            codes: int64 [B, n], n where a digit is to be drawn.
            u: uniforms [B, n] that decide a random order.
            passes: how digits are drawn.
            num_observed: number of digits that are known.
        """
        if passes.order == "confidence":
            return most_certain_digits
        n = self.length
        left_to_right = torch.arange(n, device=codes.device).expand_as(codes) / n
        rank = u if passes.order == "random" else left_to_right
        # observed digits come first, and are left out
        is_observed = (codes != n).long()
        positions = (rank - is_observed).argsort(dim=1, stable=True)
        num_steps = self.num_passes(passes, num_observed)
        return list(positions[:, num_observed:].tensor_split(num_steps, dim=1))

    def _preview(self, codes: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Return partly masked codes [B, n] as permutations, or as items, for pictures.

        Masked digits are those of the identity.
        """
        identity = self.encode(torch.arange(self.length, device=codes.device)).expand_as(codes)
        x = self.decode(torch.where(codes == self.length, identity, codes))
        return rearrange(context["items"], x) if "items" in context else x

    def sample(self, num_samples: int, seed: int = 0, **options: Any) -> Tensor:
        """Draw permutations, int64 [num_samples, n].

        The random numbers of sample k depend on (seed, k) alone.

        Args:
            num_samples: how many.
            seed: any integer.
            options: `passes`, `order` and `greedy` of `Passes` in place of the model's own.

        Raises:
            ValueError: see `Passes.resolve`.
        """
        passes = replace(self.passes, **options).resolve(self.length, self.objective)
        batches = self.batches(torch.arange(num_samples), seed, passes=passes)
        return torch.cat([samples["samples"].cpu() for _, samples in batches])

    def example_inputs(self) -> tuple[Any, ...]:
        """Return arguments of one network evaluation: codes [1, n] and context."""
        n = self.length
        codes = torch.full((1, n), n, dtype=torch.int64, device=self.device)
        data = self.config["data"]
        context: dict[str, Tensor] = {}
        if "item_shape" in data:
            dtype = torch.int64 if "num_tokens" in data else torch.float32
            shape = (1, n, *data["item_shape"])
            context["items"] = torch.zeros(shape, dtype=dtype, device=self.device)
        if "num_conditions" in data:
            context["condition"] = torch.zeros(1, data["num_conditions"], device=self.device)
        return codes, context

    def try_once(self) -> None:
        """Evaluate the network once, and check its logits.

        Raises:
            UserError: the network cannot read the items, or its logits have another shape.
        """
        codes, context = self.example_inputs()
        shape = list(context.get("items", codes).shape[2:])
        kind = self.config["data"].get("kind") or "items"
        with error_context(f"network: it cannot read {kind} of shape {shape}"):
            logits = self.averaged(codes, context)
        expected = [1, self.length, self.length]
        if list(logits.shape) != expected:
            raise UserError(f"network: logits must be {expected}, not {list(logits.shape)}")

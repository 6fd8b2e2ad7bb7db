"""The model: a transformer on codes says each digit's law given others, in any number of passes.

[Severo 2025, section 4]. A denoiser is any function of codes int64 [B, n], with n where a digit is masked, to logits
[B, n, n] of every digit's values. A partition of the digits into ordered blocks makes it a distribution: block after
block, the digits of a block are drawn independently given all before, one pass of the network each. Logits outside the
support are never used, so that with a free code (`blackout.permutations.codes`) every draw is a permutation and
probabilities sum to 1, whatever the network says. First these laws; then the network, and the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import UserError, ensure, error_context
from blackout.networks.layers import LayerNorm
from blackout.networks.set_transformer import TransformerLayer
from blackout.permutations.codes import Code, FisherYates, Inline, Insertion, Lehmer
from blackout.permutations.group import inverse, is_permutation
from blackout.permutations.metrics import SHARPNESS, arranged, checked_sharpness, read_sharpness
from blackout.protocols import Drawn, Split, Watch
from blackout.random import RandomSource, SampleStreams, categorical, fold_seed, uniform
from blackout.training.model import Model, check_finite_output

MOST_ITEMS = 7
"""Most items for which all partly masked codes are looked at."""
_TABLE_AT_ONCE = 4096

Denoiser: TypeAlias = Callable[[Tensor], Tensor]
Blocks: TypeAlias = Sequence[Tensor]
"""Places int64 [s], or [B, s] where every sample has its own, of one pass after another."""
Choice: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]
"""(log-probabilities [B, n, n], codes [B, n], passes left) -> the places [B, s] of the next pass."""


def partition(n: int, passes: int, order: Tensor | None = None) -> list[Tensor]:
    """Balanced blocks: sizes differ by at most 1, the larger first. Ours (tests/permutations/test_factorized.py).

    Args:
        order: of the digits, int64 [n] or [B, n]; None is from left to right.

    Returns:
        `passes` tensors int64 [s] or [B, s].

    Raises:
        ValueError: passes outside 1..n, or an order of another length.
    """
    ensure(1 <= passes <= n, f"the number of passes must be 1..{n}, not {passes}")
    order = torch.arange(n) if order is None else order
    ensure(order.shape[-1] == n, f"an order of {n} digits is needed, not of {order.shape[-1]}")
    return list(order.tensor_split(passes, dim=-1))


def code_log_prob(
    denoiser: Denoiser, codes: Tensor, blocks: Blocks | Choice, support: Tensor, passes: int | None = None
) -> Tensor:
    """Return the exact log-probability of codes drawn block after block, one pass each, [B].

    Args:
        denoiser: see the head of this file.
        codes: int64 [B, n].
        blocks: one a pass (`partition`), or the choice of the next one (`most_certain`), which the
            digits so far decide.
        support: bool [n, n].
        passes: how many; needed with a choice of blocks alone.

    References: Severo et al. 2025, eq. 2.
    """
    shown = torch.full_like(codes, codes.shape[-1])
    total = torch.zeros(len(codes), device=codes.device)
    number_of_passes = passes if callable(blocks) else len(blocks)
    assert number_of_passes is not None
    for number in range(number_of_passes):
        log_probs = normalised(denoiser(shown), support)
        block = blocks(log_probs, shown, number_of_passes - number) if callable(blocks) else blocks[number]
        places = block.to(codes.device).expand(len(codes), -1)
        digits = codes.gather(1, places)
        rows = log_probs.expand(len(codes), -1, -1).take_along_dim(places.unsqueeze(-1), 1)
        total = total + rows.gather(2, digits.unsqueeze(-1)).squeeze(-1).sum(1)
        shown = shown.scatter(1, places, digits)
    return total


@torch.no_grad()
def fill_codes(
    denoiser: Denoiser,
    codes: Tensor,
    blocks: Blocks | Choice,
    passes: int,
    support: Tensor,
    generator: RandomSource = None,
    *,
    greedy: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Fill the masked digits of codes, a block a pass [Severo 2025, section 4]; after each the codes, and log p so far.

    Args:
        codes: int64 [size, n], n where a digit is to be drawn.
        blocks: one a pass (`partition`), or a choice of the next one (`most_certain`).
        passes: how many; the last one leaves no digit masked if the blocks cover them.
        support: bool [n, n].
        greedy: take the most probable value instead of drawing.

    Yields:
        (codes, log-probability [size] of all digits drawn so far, in nats).
    """
    n, total = codes.shape[1], torch.zeros(len(codes), device=codes.device)
    for number in range(passes):
        log_probs = normalised(denoiser(codes), support)
        block = blocks(log_probs, codes, passes - number) if callable(blocks) else blocks[number].to(codes.device)
        places = block.expand(len(codes), -1)
        rows, known = log_probs.take_along_dim(places.unsqueeze(-1), 1), codes.gather(1, places)
        drawn = rows.argmax(-1) if greedy else categorical(rows.exp(), generator)
        own = rows.gather(2, drawn.unsqueeze(-1)).squeeze(-1)
        total = total + own.masked_fill(known != n, 0.0).sum(1)
        codes = codes.scatter(1, places, torch.where(known == n, drawn, known))
        yield codes, total


def most_certain(log_probs: Tensor, codes: Tensor, passes_left: int) -> Tensor:
    """The masked digits whose most probable value is most probable: a balanced share of those left, [B, s].

    [Chang 2022, section 3.2], without its noise.

    Args:
        log_probs: of every digit's values, [B, n, n].
        codes: int64 [B, n], n where masked.
        passes_left: this one included.
    """
    masked = codes == codes.shape[1]
    certainty = log_probs.amax(-1).masked_fill(~masked, -torch.inf)
    size = -(-int(masked.sum(1).max()) // passes_left)
    return certainty.argsort(dim=1, descending=True, stable=True)[:, :size]


def any_order_loss(denoiser: Denoiser, codes: Tensor, support: Tensor, generator: RandomSource = None) -> Tensor:
    """An unbiased estimate of -log p in nats averaged over all orders of digits, [B].

    m uniform on 1..n, m digits chosen uniformly are masked: (n / m) times the sum of their cross-entropies
    [Uria 2014]; it is the bound of masked diffusion with a linear schedule. At least the entropy of the data.

    Args:
        codes: int64 [B, n].
        support: bool [n, n].
    """
    size, n = codes.shape
    u = uniform((size, n + 1), generator, codes.device)
    masked_number = 1 + (u[:, :1] * n).long()
    hidden = u[:, 1:].argsort(dim=1).argsort(dim=1) < masked_number
    found = -digit_log_probs(denoiser, codes.masked_fill(hidden, n), codes, support)
    return (found.masked_fill(~hidden, 0.0).sum(1) * n) / masked_number.squeeze(1)


def autoregressive_loss(denoiser: Denoiser, codes: Tensor, support: Tensor) -> Tensor:
    """-log p in nats, digit by digit from the left, in one pass, [B] [Severo 2025, eq. 2 with blocks of one digit].

    The denoiser must be causal: its logits of digit i may depend on digits before i only. Then this is what n passes of
    `code_log_prob` from left to right give.
    """
    return -digit_log_probs(denoiser, codes, codes, support).sum(1)


def digit_log_probs(denoiser: Denoiser, shown: Tensor, codes: Tensor, support: Tensor) -> Tensor:
    """log p of every digit of codes int64 [B, n] by what a denoiser says of those shown, [B, n].

    The factors of [Severo 2025, eq. 2].
    """
    return normalised(denoiser(shown), support).gather(2, codes.unsqueeze(-1)).squeeze(-1)


def normalised(logits: Tensor, support: Tensor) -> Tensor:
    """Log-softmax over the support, bool [n, n], of logits [B, n, n], of the same shape; float32 at least.

    Every digit of a code has a support of its own [Severo 2025, section 4.2].
    """
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return precise.masked_fill(~support.to(logits.device), -torch.inf).log_softmax(-1)


def all_masks(n: int) -> Tensor:
    """Every set of n digits, bool [2^n, n]; row r holds the bits of r.

    Ours (tests/permutations/coded/test_model.py), by `mixture_nll`.
    """
    return (torch.arange(2**n).unsqueeze(-1) >> torch.arange(n)) % 2 == 1


def exact_mixture(denoiser: Denoiser, codes: Tensor, support: Tensor, passes: int, random: bool = True) -> Tensor:
    """p of every code where each sample has a random order of its own, float64 [M]; or for that from left to right.

    [Severo 2025, eq. 2], averaged over ordered partitions into balanced blocks. Every partly masked code is looked at
    once, at most 40,320 for 7 items, 130,922 of inline codes; then see `log_mixture`.

    Args:
        denoiser: see the head of this file; of one context, or of none.
        codes: those of interest, int64 [M, n]; all of a free code make a law whose sum is 1.
        support: bool [n, n].
        passes: 1..n.
        random: whether orders are.

    Raises:
        ValueError: more than 7 items.
    """
    n = codes.shape[1]
    ensure(n <= MOST_ITEMS, f"laws are exact to {MOST_ITEMS} items, not for {n}")
    partly = codes.unsqueeze(1).masked_fill(all_masks(n).to(codes.device), n)  # [M, 2^n, n]
    weights = (n + 1) ** torch.arange(n, device=codes.device)
    keys, which = (partly * weights).sum(-1).unique(return_inverse=True)
    states = (keys.unsqueeze(-1) // weights) % (n + 1)
    table = torch.cat([normalised(denoiser(part), support).double() for part in states.split(_TABLE_AT_ONCE)])
    terms = table[which.unsqueeze(-1), torch.arange(n, device=codes.device), codes.unsqueeze(1)].cpu()  # [M, 2^n, n]
    return log_mixture(terms, passes, random).exp()


def mixture_nll(denoiser: Denoiser, codes: Tensor, support: Tensor, passes: int) -> Tensor:
    """Return -log p in nats of codes drawn in a random order of each sample's own, float64 [B].

    Exact, with 2^n - 1 network evaluations per code, each with the context of its own.

    Args:
        denoiser: see the head of this file.
        codes: int64 [B, n].
        support: bool [n, n].
        passes: 1..n.

    Raises:
        ValueError: more than 7 items.

    References: Severo et al. 2025, eq. 2, summed; checked in tests/permutations/coded/test_model.py.
    """
    n = codes.shape[1]
    ensure(n <= MOST_ITEMS, f"laws are exact to {MOST_ITEMS} items, not for {n}")
    terms = torch.zeros(len(codes), 2**n, n, dtype=torch.float64)
    for row, hidden in enumerate(all_masks(n).to(codes.device)):
        if row > 0:  # no digit is masked in row 0
            shown = codes.masked_fill(hidden, n)
            terms[:, row] = digit_log_probs(denoiser, shown, codes, support).double().cpu()
    return -log_mixture(terms, passes, random=True).to(codes.device)


def log_mixture(terms: Tensor, passes: int, random: bool) -> Tensor:
    """Return the log-probability of codes, averaged over ordered partitions into balanced blocks.

    Block after block is added to all sets of masked digits, from that of all digits to the empty one.

    Args:
        terms: log-probability of every digit where the digits in the bits of row r are masked,
            float64 [M, 2^n, n].
        passes: blocks.
        random: whether all orders count alike; else the one from left to right.

    Returns:
        float64 [M].

    References: Severo et al. 2025, eq. 2; checked in tests/permutations/coded/test_model.py.
    """
    n = terms.shape[-1]
    masked: dict[tuple[int, ...], Tensor] = {tuple(range(n)): terms.new_zeros(len(terms))}
    for block in partition(n, passes):
        before = masked
        masked = {}
        for digits, log_mass in before.items():
            blocks = list(combinations(digits, len(block))) if random else [digits[: len(block)]]
            of_digits = terms[:, sum(1 << i for i in digits)]
            for shown in blocks:
                rest = tuple(sorted({*digits} - {*shown}))
                added = log_mass + of_digits[:, list(shown)].sum(1) - math.log(len(blocks))
                masked[rest] = torch.logaddexp(masked[rest], added) if rest in masked else added
    return masked[()]


Context = Mapping[str, Tensor]
"""`items` [B, n] or [B, n, ...], `condition` [B, d], by name, where the model has them."""


@component("network")
class CodeTransformer(nn.Module):
    """(codes int64 [B, n], n where masked; context) -> logits [B, n, n]. Pre-norm, after [Severo 2025,
    appendix E].

    Items, where there are any, come in one of two ways. "prefix", the paper's: n rows of items before the n of digits.
    "fused": each digit's row also holds its item, which says something where digit i is about item i
    (`CodeModel.aligned`). A masked model then has n rows only; a causal one has the item rows before them in any case,
    since a digit may look at every item but at no later digit.

    Args:
        num_items: n.
        num_conditions: numbers that the whole permutation depends on; None where there are none.
        encoder: of items [B, n, ...] -> [B, n, encoder.features]; None where there are none.
        causal: logits of digit i depend on digits before i only, for an autoregressive model.
        context: how items come in.
        width: of the rows, a multiple of `heads`.
        depth: layers.
        heads: of attention.
        dropout: on what each layer adds.

    Raises:
        ValueError: sizes below 1, or a width that is no multiple of `heads`.
    """

    def __init__(
        self, num_items: int, num_conditions: int | None = None, encoder: nn.Module | None = None, causal: bool = False,
        context: Literal["fused", "prefix"] = "fused", width: int = 64, depth: int = 2, heads: int = 4,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        """Embeddings of digits [n (n + 1), width] and places [n, width], and who may attend to whom, bool
        [rows, rows]: see the class.
        """
        super().__init__()
        if min(num_items, width, depth, heads) < 1 or width % heads:
            raise ValueError(f"width {width} must be a positive multiple of heads {heads}, and depth {depth} positive")
        self.num_items, self.causal = num_items, causal
        self.fused = encoder is not None and context == "fused"
        prefix = encoder is not None and (context == "prefix" or causal)
        # a value means another thing in every place, so each place has embeddings of its own
        self.digits = _embedding(num_items * (num_items + 1), width)
        self.places = _embedding(num_items, width)
        self.items: nn.Module | None = None
        if encoder is not None:
            if not isinstance(features := getattr(encoder, "features", None), int):
                raise ValueError(f"the encoder {type(encoder).__name__} does not say how many `features` it gives")
            self.items = nn.Sequential(encoder, nn.Linear(features, width))
        self.item_places = _embedding(num_items, width) if prefix else None
        self.condition: nn.Module | None = None
        if num_conditions is not None:
            self.condition = nn.Sequential(nn.Linear(num_conditions, width), nn.GELU(), nn.Linear(width, width))
        self.layers = nn.ModuleList([_Layer(width, heads, 4, dropout, norm_first=True) for _ in range(depth)])
        self.norm, self.head = LayerNorm(width), nn.Linear(width, num_items)
        nn.init.zeros_(self.head.bias)
        nn.init.normal_(self.head.weight, std=0.02)
        # which row may attend to which; digits never inform items
        attends = torch.ones(num_items, num_items, dtype=torch.bool).tril(0 if causal else num_items)
        if prefix:
            items = torch.ones(2 * num_items, num_items, dtype=torch.bool)
            attends = torch.cat([items, torch.cat([torch.zeros_like(attends), attends])], 1)
        self.register_buffer("_attends", attends if causal or prefix else None, persistent=False)

    def forward(self, codes: Tensor, context: Context) -> Tensor:
        """Codes int64 [B, n], with their context -> logits [B, n, n]: see the class."""
        n = self.num_items
        if self.causal:  # row i holds digit i - 1; the first a mask
            codes = torch.cat([torch.full_like(codes[:, :1], n), codes[:, :-1]], 1)
        place = torch.arange(n, device=codes.device)
        rows = self.digits(codes + place * (n + 1)) + self.places(place)
        if self.items is not None:
            items = self.items(context["items"])
            rows = rows + items if self.fused else rows
            if self.item_places is not None:
                rows = torch.cat([items + self.item_places(place), rows], 1)
        if self.condition is not None:
            rows = rows + self.condition(context["condition"]).unsqueeze(1)
        for layer in self.layers:
            rows = layer(rows, self._attends)
        return self.head(self.norm(rows[:, -n:]))


class _Layer(TransformerLayer):
    """Pre-norm, with PyTorch's first weights."""

    linear = nn.Linear
    activation = nn.GELU


def _embedding(number: int, width: int) -> nn.Embedding:
    """Normal numbers of deviation 1/2, [number, width]."""
    table = nn.Embedding(number, width)
    nn.init.normal_(table.weight, std=0.5)
    return table


Objective = Literal["masked", "autoregressive"]
CODES: dict[str, type[Code]] = {"lehmer": Lehmer, "fisher_yates": FisherYates, "insertion": Insertion, "inline": Inline}
Likelihood = Literal["exact", "upper bound"]
_NOISE, _VALIDATION = 1, 3
"""Keys that keep the uses of one seed apart; 2 is dropout's."""


_JUDGED = 20, 512
"""Validation permutations by which sharpness is chosen, at least and at most."""


BATCH = 1000
"""Samples drawn together unless the caller says otherwise."""


Order = Literal["random", "left_to_right", "confidence"]
_ORDERS = ("random", "left_to_right", "confidence")


@dataclass(frozen=True)
class Passes:
    """How digits are filled in.

    Args:
        passes: of the network, 1..n; None for n, as the objective is learned.
        order: of the digits: random (a fresh one per sample), left to right, or the most certain next. None for
            random, or left to right of an autoregressive model.
        greedy: take the most probable value of every digit instead of drawing.
    """

    passes: int | None = None
    order: Order | None = None
    greedy: bool = False

    def replaced(self, settings: Mapping[str, Any]) -> Passes:
        """The same with what the settings `passes`, `order` and `sampler` say, where they are not null.

        Raises:
            UserError: another option of `sampler`.
        """
        options = {name: value for name, value in (settings.get("sampler") or {}).items() if value is not None}
        if wrong := sorted(options.keys() - {"greedy"}):
            raise UserError(f"sampler.{wrong[0]}: no such option")
        own = {name: settings[name] for name in ("passes", "order") if settings.get(name) is not None}
        return replace(self, **options, **own)

    def checked(self, n: int, objective: str) -> Passes:
        """The same without nulls.

        Args:
            n: digits.
            objective: of the model.

        Raises:
            ValueError: not 1..n passes, another order, greedy neither true nor false, or what an autoregressive model
                cannot do.
        """
        causal = objective == "autoregressive"
        usual: Order = "left_to_right" if causal else "random"
        passes = n if self.passes is None else self.passes
        order = usual if self.order is None else self.order
        ensure(type(passes) is int and 1 <= passes <= n, f"passes must be 1..{n}, not {passes!r}")
        ensure(order in _ORDERS, f"order must be one of {', '.join(_ORDERS)}, not {order}")
        ensure(type(self.greedy) is bool, f"greedy must be true or false, not {self.greedy!r}")
        if causal and (passes, order) != (n, usual):
            raise ValueError(f"an autoregressive model draws from left to right: passes={n} order=left_to_right")
        return replace(self, passes=passes, order=order)


class CodeModel(Model):
    """A distribution over permutations of n items by the digits of a code.

    Args:
        network: (codes [B, n], context or None) -> logits [B, n, n]; `num_items` and `fused` are read from it.
        code: what the digits are.
        objective: "masked" (any order, any number of passes) or "autoregressive" (left to right, n passes).
        passes: how samples are drawn by default.
        kept: named tensors of the source that are exported with the model.
        sharpness: what logits are multiplied by after training; None chooses it on validation data.
        training: ema_decay and seed of a model in training.

    Raises:
        ValueError: a number of passes or an order that the objective does not allow.
    """

    means = ("val/nll_bits",)

    def __init__(
        self, network: nn.Module, code: str, objective: Objective, passes: Passes,
        kept: Mapping[str, Tensor] | None = None, sharpness: float | None = None, **training: Any,
    ) -> None:  # fmt: skip
        super().__init__(network, **training)
        self.sharpness_setting = checked_sharpness(sharpness)
        self.sharpness: Tensor
        self.code, self.objective = CODES[code], str(objective)
        self.length = int(network.num_items)  # type: ignore[arg-type]
        for name, values in (kept or {}).items():
            self.register_buffer(name, values)
        self.register_buffer("sharpness", read_sharpness(kept or {}))
        self.passes = passes.checked(self.length, objective)

    @property
    def support(self) -> Tensor:
        """Which digits may have which values, bool [n, n]."""
        return self.code.support(self.length, self.device)

    @property
    def aligned(self) -> bool:
        """Whether digit i is about given item i: the network sees that item in digit i's row.

        Insertion digits of x are, by theorem 4.3; for the others the places of the given items, x^-1, are coded.
        """
        return bool(getattr(self.network, "fused", False))

    def encode(self, x: Tensor) -> Tensor:
        """The digits that stand for permutations x [..., n], of that shape: see `aligned` and `Code.encode`."""
        return self.code.encode(inverse(x) if self.aligned and self.code is not Insertion else x)

    def decode(self, codes: Tensor) -> Tensor:
        """The permutations of digits [..., n], of that shape: see `aligned` and `Code.decode`.

        Inline digits may be none: they are then given as they are, or, where they are the places of items, made one by
        sorting the items by place.
        """
        x = self.code.decode(codes)
        if not self.aligned or self.code is Insertion:
            return x
        return x.argsort(dim=-1, stable=True) if self.code is Inline else inverse(x)

    def denoiser(self, context: Mapping[str, Tensor], network: nn.Module | None = None) -> Denoiser:
        """Codes [B, n] -> logits [B, n, n], given one context or one per code; by default with the averaged weights.

        Logits of averaged weights are multiplied by the sharpness of `calibrate`.
        """
        net, sharpness = (self.averaged, float(self.sharpness)) if network is None else (network, 1.0)
        shown = {name: context[name] for name in ("items", "condition") if name in context}

        def logits(codes: Tensor) -> Tensor:
            """Codes [B, n] -> logits [B, n, n]."""
            if len(codes) > 1 and not shown and bool((codes == codes[:1]).all()):
                return logits(codes[:1]).expand(len(codes), -1, -1)  # nothing is known yet: one evaluation says it
            here = {name: values.expand(len(codes), *values.shape[1:]) for name, values in shown.items()}
            return check_finite_output(net(codes, here)) * sharpness

        return logits

    # --- training

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """Mean -log p of the batch in nats, a scalar: a bound averaged over orders (masked), or exact (autoregressive).

        `any_order_loss` [Uria 2014] or `autoregressive_loss` [Severo 2025, eq. 2].
        """
        codes = self.encode(batch["x"])
        denoiser = self.denoiser(batch, self.network)
        if self.objective == "autoregressive":
            loss = autoregressive_loss(denoiser, codes, self.support).mean()
        else:
            position = batch["position"].to(codes.device)
            streams = SampleStreams(fold_seed(self.seed, _NOISE), position).step(batch["batch"])
            loss = any_order_loss(denoiser, codes, self.support, streams).mean()
        self.log("train/nll_bits", loss.detach() / math.log(2))
        return loss

    @torch.no_grad()
    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """Bits per permutation of x [b, n], [b], see `nll`."""
        streams = SampleStreams(fold_seed(self.seed, _VALIDATION), batch["index"].to(self.device)).step(0)
        nll = self.nll(self.denoiser(batch), self.encode(batch["x"]), streams)
        self.record("val/nll_bits", nll / math.log(2))

    @torch.no_grad()
    def calibrate(self, evaluations: int) -> None:
        """Find what logits are multiplied by so that validation permutations are likeliest: few to train on make a
        model too sure.

        By 0 a free code's law is uniform, so that no model ends worse than that on validation permutations.

        A number in `SHARPNESS`, by `nll` [b]. Ours (tests/permutations/coded/test_model.py).
        """
        if self.sharpness_setting is not None:
            self.sharpness.fill_(self.sharpness_setting)
            return
        source = self.require_source()
        available = min(_JUDGED[1], source.size("val") or 0)
        size = min(available, evaluations // (len(SHARPNESS) * self.validation_cost))
        if size < max(1, min(_JUDGED[0], available)):
            return
        index = torch.arange(size)
        batch = {name: values.to(self.device) for name, values in source.batch("val", index).items()}
        self.averaged.eval()

        def nats(sharpness: float) -> float:
            """The mean of `nll` at a sharpness: a float of a float."""
            self.sharpness.fill_(sharpness)
            streams = SampleStreams(fold_seed(self.seed, _VALIDATION), index.to(self.device)).step(0)
            return float(self.nll(self.denoiser(batch), self.encode(batch["x"]), streams).mean())

        self.sharpness.fill_(min(SHARPNESS, key=nats))

    @property
    def validation_cost(self) -> int:
        """Network evaluations that validation takes per sample, an integer."""
        if self.objective == "autoregressive":
            return 1
        return 2**self.length - 1 if self._sums_orders(self.passes) else self.passes.passes or self.length

    def nll(
        self, denoiser: Denoiser, codes: Tensor, streams: RandomSource, passes: Passes | None = None
    ) -> Tensor:
        """Return -log p in nats, float64 [B], of the distribution that is drawn from, without `greedy`.

        Where every sample has a random order of its own, p is a mixture over orders. To 7 items it is
        summed. Above that the value is -log p given one random order per sample, whose mean is an
        upper bound, by Jensen's inequality: see `likelihood`.

        Args:
            denoiser: of the codes' contexts.
            codes: int64 [B, n].
            streams: of random orders.
            passes: how digits are filled in; None for the model's own way.

        References: Severo et al. 2025, eq. 2; Uria et al. 2014.
        """
        passes = self.passes if passes is None else passes
        n = codes.shape[1]
        number = passes.passes or n
        if self.objective == "autoregressive":
            return autoregressive_loss(denoiser, codes, self.support).double()
        if passes.order == "confidence":
            return -code_log_prob(denoiser, codes, most_certain, self.support, number).double()
        if self._sums_orders(passes):
            return mixture_nll(denoiser, codes, self.support, number)
        order: Tensor | None = None
        if passes.order == "random":
            order = uniform(tuple(codes.shape), streams, codes.device).argsort(dim=1)
        return -code_log_prob(denoiser, codes, partition(n, number, order), self.support).double()

    def likelihood(self, passes: Passes | None = None) -> Likelihood:
        """Return whether `nll` is -log p of what is drawn, or an upper bound on it.

        It is a bound where one order stands for all, and where inline digits that are no permutation
        are made one, so that several codes give the same permutation.
        """
        passes = self.passes if passes is None else passes
        one_pass = passes.passes == 1
        sampled = self.objective == "masked" and passes.order == "random" and not one_pass
        repaired = self.code is Inline and self.aligned
        return "upper bound" if repaired or (sampled and not self._sums_orders(passes)) else "exact"

    def _sums_orders(self, passes: Passes) -> bool:
        """Whether `nll` sums over the orders of digits."""
        several = self.objective == "masked" and passes.order == "random" and passes.passes != 1
        return several and self.length <= MOST_ITEMS

    # --- sampling

    def batches(
        self,
        indices: Tensor,
        seed: int = 0,
        batch_size: int | None = None,
        passes: Passes | None = None,
        given: int = 0,
        contexts: Mapping[str, Tensor] | None = None,
        watch: Watch | None = None,
    ) -> Drawn:
        """Draw the samples named by `indices`, int64 [n], a batch at a time; sample k has context k mod their number.

        Args:
            indices, seed, batch_size: as for `Model.batches`.
            passes: how digits are filled in; None for the model's own way.
            given: so many first digits of the held-out sample are observed.
            contexts: arrays [m, ...]; None for those of the test samples.
            watch: see `blackout.protocols.Watch`.

        Yields:
            (indices [b], `samples` [b, n], `code`, `log_prob` [b] and contexts). `log_prob`, in nats, is that of the
            order in which the sample's own digits were drawn, given what is observed.
        """
        how = self.passes if passes is None else passes
        known = self.contexts(given) if contexts is None else contexts
        device, steps = self.device, self.steps(how, given)
        for part in indices.split(batch_size or BATCH) if len(indices) else ():
            context = {name: values[part % len(values)].to(device) for name, values in known.items()}
            streams = SampleStreams(seed, part.to(device)).step(0)
            codes = torch.full((len(part), self.length), self.length, dtype=torch.int64, device=device)
            if given:
                codes[:, :given] = self.encode(context["x"])[:, :given]
            blocks = self._blocks(codes, streams.next_draw().uniform(tuple(codes.shape)), how, given)
            start, denoiser = (codes, torch.zeros(len(codes), device=device)), self.denoiser(context)
            filling = fill_codes(denoiser, codes, blocks, steps, self.support, streams, greedy=how.greedy)
            for step, state in enumerate(chain([start], filling)):
                if watch is not None:
                    watch(step, steps, self._look(state[0], context))
            codes, log_prob = state
            samples = {"samples": self.decode(codes), "code": codes, "log_prob": log_prob}
            if self.code is Inline:
                samples["valid"] = is_permutation(codes)
            if "item_names" in (kept := self.tensors()):  # what the user's file calls them
                samples["item_names"] = kept["item_names"].to(device)[context["items"]]
            yield part, samples | {("target" if name == "x" else name): values for name, values in context.items()}

    @property
    def conditional(self) -> bool:
        """Whether samples have contexts."""
        return any(name in self.config.get("data", {}) for name in ("item_shape", "num_conditions"))

    def contexts(self, given: int = 0, split: Split = "test") -> Mapping[str, Tensor]:
        """Contexts [m, ...] of the test or validation samples, with the true `x`, where drawing needs either."""
        if not self.conditional and not given:
            return {}
        source = self.require_source()
        return source.batch(split, torch.arange(source.size(split) or 0))

    def validation_batches(self, indices: Tensor, seed: int = 0) -> Drawn:
        """Draw as `batches`, with the contexts of validation samples."""
        return self.batches(indices, seed, contexts=self.contexts(split="val"))

    def steps(self, passes: Passes, given: int) -> int:
        """Passes a batch takes, an integer: no more than there are digits to draw."""
        return max(1, min(passes.passes or 1, self.length - given))

    def _blocks(self, codes: Tensor, order: Tensor, passes: Passes, given: int) -> list[Tensor] | Choice:
        """Places of each pass, int64 [B, s], by an order of uniforms [B, n]: what is observed comes first, and takes
        none.

        Balanced blocks as of `partition`.
        """
        if passes.order == "confidence":
            return most_certain
        n = self.length
        rank = order if passes.order == "random" else torch.arange(n, device=codes.device).expand_as(codes) / n
        places = (rank - (codes != n).long()).argsort(dim=1, stable=True)
        return list(places[:, given:].tensor_split(self.steps(passes, given), dim=1))

    def _look(self, codes: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """A state of drawing [B, n] as pictures take it: gaps filled with the identity's digits."""
        whole = self.encode(torch.arange(self.length, device=codes.device)).expand_as(codes)
        x = self.decode(torch.where(codes == self.length, whole, codes))
        return arranged(context["items"], x) if "items" in context else x

    def sample(self, num_samples: int, seed: int = 0, **how: Any) -> Tensor:
        """Permutations int64 [num_samples, n]; sample k's random numbers are a function of (seed, k).

        Args:
            num_samples: how many.
            seed: any integer.
            how: passes, order, greedy of `Passes`, in place of the model's own.

        Raises:
            ValueError: see `Passes.checked`.
        """
        passes = replace(self.passes, **how).checked(self.length, self.objective)
        drawn = self.batches(torch.arange(num_samples), seed, passes=passes)
        return torch.cat([samples["samples"].cpu() for _, samples in drawn])

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

    def try_once(self) -> None:
        """One evaluation of the network, whose logits must fit.

        Raises:
            UserError: they do not, or the network cannot read the items.
        """
        codes, context = self.example()
        shown = list(context.get("items", codes).shape[2:])
        with error_context(f"network: it cannot read {self.config['data'].get('kind') or 'items'} of shape {shown}"):
            logits = self.averaged(codes, context)
        if logits.shape != (1, self.length, self.length):
            raise UserError(f"network: logits [1, {self.length}, {self.length}] are needed, not {list(logits.shape)}")

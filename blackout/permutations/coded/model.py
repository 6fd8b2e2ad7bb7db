"""Models of permutations by the digits of a factorised code.

A denoiser is any function of codes int64 [B, n], with n where a digit is masked, to logits [B, n,
n] of the values of every digit. With a partition of the digits into ordered blocks it defines a
distribution: block after block, the digits of a block are drawn independently given all earlier
blocks, with one network evaluation (a pass) each. Logits outside the support of the code are never
used. So every draw of a free code (`blackout.permutations.codes`) is a permutation, and
probabilities sum to 1 for any network.

The file has the distributions, the network, and the model.

References: Severo et al. 2025, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import UserError, ensure, error_context, refuse
from blackout.networks.layers import LayerNorm
from blackout.networks.set_transformer import TransformerLayer
from blackout.permutations.codes import Code, FisherYates, Inline, Insertion, Lehmer
from blackout.permutations.group import inverse, is_permutation
from blackout.permutations.metrics import (
    SHARPNESS_CHOICES,
    read_sharpness,
    rearrange,
    validate_sharpness,
)
from blackout.protocols import Drawn, Split, Watch
from blackout.random import RandomSource, SampleStreams, categorical, fold_seed, uniform
from blackout.training.model import FIXED_STEPS, Model, check_finite_output

Denoiser: TypeAlias = Callable[[Tensor], Tensor]  # codes [B, n] -> logits [B, n, n]
# positions of the digits of each pass, int64 [s], or [B, s] if every sample has its own
Blocks: TypeAlias = Sequence[Tensor]
# (log-probabilities [B, n, n], codes [B, n], passes left) -> positions of the next pass [B, s]
BlockRule: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]
Context: TypeAlias = Mapping[str, Tensor]  # `items` [B, n] or [B, n, ...], `condition` [B, d]

Objective = Literal["masked", "autoregressive"]
Likelihood = Literal["exact", "upper bound"]
Order = Literal["random", "left_to_right", "confidence"]

CODES: dict[str, type[Code]] = {
    "lehmer": Lehmer,
    "fisher_yates": FisherYates,
    "insertion": Insertion,
    "inline": Inline,
}

MAX_EXACT_ITEMS = 7  # items up to which all 2^n sets of masked digits are enumerated
TABLE_BATCH = 4096  # partly masked codes in one network evaluation of `exact_mixture`
BATCH = 1000  # samples drawn together unless the caller says otherwise

# keys that separate the uses of one seed; 2 is the key of dropout
MASK_KEY = 1
VALIDATION_KEY = 3

# validation permutations by which sharpness is chosen
MIN_SHARPNESS_SAMPLES = 20
MAX_SHARPNESS_SAMPLES = 512


def balanced_blocks(n: int, passes: int, order: Tensor | None = None) -> list[Tensor]:
    """Split digits into blocks whose sizes differ by at most 1, the larger first.

    Args:
        n: digits.
        passes: number of blocks.
        order: of the digits, int64 [n] or [B, n]; None for left to right.

    Returns:
        `passes` tensors int64 [s] or [B, s].

    Raises:
        ValueError: passes outside 1..n, or an order of another length.

    References: this project; checked in tests/permutations/test_code_distributions.py.
    """
    ensure(1 <= passes <= n, f"the number of passes must be 1..{n}, not {passes}")
    order = torch.arange(n) if order is None else order
    ensure(order.shape[-1] == n, f"the order must have {n} digits, not {order.shape[-1]}")
    return list(order.tensor_split(passes, dim=-1))


def code_log_prob(
    denoiser: Denoiser,
    codes: Tensor,
    blocks: Blocks | BlockRule,
    support: Tensor,
    passes: int | None = None,
) -> Tensor:
    """Return the exact log-probability of codes that are drawn block by block, [B], in nats.

    Args:
        denoiser: see the module.
        codes: int64 [B, n].
        blocks: one per pass (`balanced_blocks`), or a rule for the next one
            (`most_certain_digits`), which depends on the earlier digits.
        support: bool [n, n].
        passes: number of passes; needed with a rule only.

    References: Severo et al. 2025, eq. 2.
    """
    partial = torch.full_like(codes, codes.shape[-1])
    total = torch.zeros(len(codes), device=codes.device)
    num_passes = passes if callable(blocks) else len(blocks)
    assert num_passes is not None
    for i in range(num_passes):
        log_probs = log_softmax_on_support(denoiser(partial), support)
        block = blocks(log_probs, partial, num_passes - i) if callable(blocks) else blocks[i]
        positions = block.to(codes.device).expand(len(codes), -1)
        digits = codes.gather(1, positions)
        rows = log_probs.expand(len(codes), -1, -1).take_along_dim(positions.unsqueeze(-1), 1)
        total = total + rows.gather(2, digits.unsqueeze(-1)).squeeze(-1).sum(1)
        partial = partial.scatter(1, positions, digits)
    return total


@torch.no_grad()
def fill_codes(
    denoiser: Denoiser,
    codes: Tensor,
    blocks: Blocks | BlockRule,
    passes: int,
    support: Tensor,
    generator: RandomSource = None,
    *,
    greedy: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw the masked digits of codes, one block per pass.

    Args:
        denoiser: see the module.
        codes: int64 [B, n], n where a digit is masked.
        blocks: one per pass (`balanced_blocks`), or a rule for the next one
            (`most_certain_digits`).
        passes: number of passes; no digit stays masked if the blocks cover all masked digits.
        support: bool [n, n].
        generator: source of random numbers.
        greedy: take the most probable value instead of drawing.

    Yields:
        After each pass the codes, and the log-probability [B] of all digits drawn so far, in nats.

    References: Severo et al. 2025, section 4.
    """
    n = codes.shape[1]
    total = torch.zeros(len(codes), device=codes.device)
    for i in range(passes):
        log_probs = log_softmax_on_support(denoiser(codes), support)
        block = blocks(log_probs, codes, passes - i) if callable(blocks) else blocks[i]
        positions = block.to(codes.device).expand(len(codes), -1)
        rows = log_probs.take_along_dim(positions.unsqueeze(-1), 1)
        digits = codes.gather(1, positions)
        new_digits = rows.argmax(-1) if greedy else categorical(rows.exp(), generator)
        new_log_probs = rows.gather(2, new_digits.unsqueeze(-1)).squeeze(-1)
        is_masked = digits == n
        total = total + new_log_probs.masked_fill(~is_masked, 0.0).sum(1)
        codes = codes.scatter(1, positions, torch.where(is_masked, new_digits, digits))
        yield codes, total


def most_certain_digits(log_probs: Tensor, codes: Tensor, passes_left: int) -> Tensor:
    """Return the masked digits whose most probable value has the highest probability, int64 [B, s].

    s is a balanced share of the masked digits.

    Args:
        log_probs: of the values of every digit, [B, n, n].
        codes: int64 [B, n], n where masked.
        passes_left: this one included.

    References: Chang et al. 2022, section 3.2, without its noise.
    """
    is_masked = codes == codes.shape[1]
    certainty = log_probs.amax(-1).masked_fill(~is_masked, -torch.inf)
    num_masked = int(is_masked.sum(1).max())
    size = -(-num_masked // passes_left)  # rounded up
    return certainty.argsort(dim=1, descending=True, stable=True)[:, :size]


def any_order_loss(
    denoiser: Denoiser, codes: Tensor, support: Tensor, generator: RandomSource = None
) -> Tensor:
    """Return an unbiased estimate of -log p in nats, averaged over all orders of digits, [B].

    m is uniform on 1..n, and m digits chosen uniformly are masked: the estimate is n / m times the
    sum of their cross-entropies. It is the bound of masked diffusion with a linear schedule, and at
    least the entropy of the data.

    Args:
        denoiser: see the module.
        codes: int64 [B, n].
        support: bool [n, n].
        generator: source of random numbers.

    References: Uria et al. 2014.
    """
    size, n = codes.shape
    u = uniform((size, n + 1), generator, codes.device)
    num_masked = 1 + (u[:, :1] * n).long()
    is_masked = u[:, 1:].argsort(dim=1).argsort(dim=1) < num_masked
    nll = -digit_log_probs(denoiser, codes.masked_fill(is_masked, n), codes, support)
    return (nll.masked_fill(~is_masked, 0.0).sum(1) * n) / num_masked.squeeze(1)


def autoregressive_loss(denoiser: Denoiser, codes: Tensor, support: Tensor) -> Tensor:
    """Return -log p in nats, digit by digit from the left, in one pass, [B].

    It equals -`code_log_prob` with n passes from left to right, if the denoiser is causal: its
    logits of digit i may depend on earlier digits only.

    Args:
        denoiser: causal, see the module.
        codes: int64 [B, n].
        support: bool [n, n].

    References: Severo et al. 2025, eq. 2 with blocks of one digit.
    """
    return -digit_log_probs(denoiser, codes, codes, support).sum(1)


def digit_log_probs(denoiser: Denoiser, partial: Tensor, codes: Tensor, support: Tensor) -> Tensor:
    """Return the log-probability of every digit given partly masked codes, [B, n].

    Args:
        denoiser: see the module.
        partial: codes that the denoiser sees, int64 [B, n], n where masked.
        codes: int64 [B, n].
        support: bool [n, n].

    References: Severo et al. 2025, the factors of eq. 2.
    """
    log_probs = log_softmax_on_support(denoiser(partial), support)
    return log_probs.gather(2, codes.unsqueeze(-1)).squeeze(-1)


def log_softmax_on_support(logits: Tensor, support: Tensor) -> Tensor:
    """Return the log-softmax over the support of each digit, [B, n, n], in float32 at least.

    Args:
        logits: [B, n, n].
        support: bool [n, n].

    References: Severo et al. 2025, section 4.2.
    """
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return precise.masked_fill(~support.to(logits.device), -torch.inf).log_softmax(-1)


def all_masks(n: int) -> Tensor:
    """Return all sets of masked digits, bool [2^n, n]; row r has the bits of r."""
    return (torch.arange(2**n).unsqueeze(-1) >> torch.arange(n)) % 2 == 1


def exact_mixture(
    denoiser: Denoiser, codes: Tensor, support: Tensor, passes: int, random: bool = True
) -> Tensor:
    """Return the probability of codes when every sample has a random order of digits, float64 [M].

    Every partly masked code is evaluated once, at most 40,320 for 7 items (130,922 of inline
    codes); then see `log_mixture`.

    Args:
        denoiser: see the module; with one context, or none.
        codes: int64 [M, n]; the probabilities of all codes of a free code sum to 1.
        support: bool [n, n].
        passes: 1..n.
        random: whether orders are random; else from left to right.

    Raises:
        ValueError: more than 7 items.

    References: Severo et al. 2025, eq. 2, averaged over ordered partitions into balanced blocks.
    """
    n = codes.shape[1]
    _check_enumerable(n)
    # 1. distinct partly masked codes, by a key to the base n + 1
    partial = codes.unsqueeze(1).masked_fill(all_masks(n).to(codes.device), n)  # [M, 2^n, n]
    weights = (n + 1) ** torch.arange(n, device=codes.device)
    keys, index = (partial * weights).sum(-1).unique(return_inverse=True)
    states = (keys.unsqueeze(-1) // weights) % (n + 1)
    # 2. log-probabilities of all their digits
    table = torch.cat(
        [
            log_softmax_on_support(denoiser(part), support).double()
            for part in states.split(TABLE_BATCH)
        ]
    )
    digits = torch.arange(n, device=codes.device)
    terms = table[index.unsqueeze(-1), digits, codes.unsqueeze(1)].cpu()  # [M, 2^n, n]
    # 3. average over orders
    return log_mixture(terms, passes, random).exp()


def mixture_nll(denoiser: Denoiser, codes: Tensor, support: Tensor, passes: int) -> Tensor:
    """Return -log p of codes whose digits are drawn in a random order, float64 [B], nats.

    Every code has its own random order, and perhaps its own context. The result is exact, with
    2^n - 1 network evaluations per code.

    Args:
        denoiser: see the module.
        codes: int64 [B, n].
        support: bool [n, n].
        passes: 1..n.

    Raises:
        ValueError: more than 7 items.

    References: Severo et al. 2025, eq. 2, summed; checked in
        tests/permutations/coded/test_model.py.
    """
    n = codes.shape[1]
    _check_enumerable(n)
    terms = torch.zeros(len(codes), 2**n, n, dtype=torch.float64)
    for row, is_masked in enumerate(all_masks(n).to(codes.device)):
        if row == 0:
            continue  # no digit is masked
        partial = codes.masked_fill(is_masked, n)
        terms[:, row] = digit_log_probs(denoiser, partial, codes, support).double().cpu()
    return -log_mixture(terms, passes, random=True).to(codes.device)


def _check_enumerable(n: int) -> None:
    """Refuse more items than all sets of masked digits are enumerated for."""
    ensure(
        n <= MAX_EXACT_ITEMS,
        f"exact probabilities are available for at most {MAX_EXACT_ITEMS} items, not {n}",
    )


def log_mixture(terms: Tensor, passes: int, random: bool) -> Tensor:
    """Return the log-probability of codes, averaged over ordered partitions into balanced blocks.

    Dynamic programming over sets of masked digits, from all digits to none.

    Args:
        terms: log-probability of every digit when the digits in the bits of row r are masked,
            float64 [M, 2^n, n].
        passes: number of blocks.
        random: whether all orders count equally; else the order is from left to right.

    Returns:
        float64 [M].

    References: Severo et al. 2025, eq. 2; checked in tests/permutations/coded/test_model.py.
    """
    n = terms.shape[-1]
    # {masked digits: log-probability of the digits drawn so far}
    log_masses: dict[tuple[int, ...], Tensor] = {tuple(range(n)): terms.new_zeros(len(terms))}
    for block in balanced_blocks(n, passes):
        previous = log_masses
        log_masses = {}
        for masked, log_mass in previous.items():
            size = len(block)
            subsets = list(combinations(masked, size)) if random else [masked[:size]]
            digit_terms = terms[:, sum(1 << i for i in masked)]
            for subset in subsets:
                rest = tuple(sorted({*masked} - {*subset}))
                new = log_mass + digit_terms[:, list(subset)].sum(1) - math.log(len(subsets))
                if rest in log_masses:
                    new = torch.logaddexp(log_masses[rest], new)
                log_masses[rest] = new
    return log_masses[()]


@component("network")
class CodeTransformer(nn.Module):
    """A pre-norm transformer that predicts the digits of codes from the digits that are known.

    It maps codes int64 [B, n], with n at masked digits, and their context to logits [B, n, n].

    Items enter in one of two ways. "prefix", as in the paper: n rows of items before the n rows of
    digits. "fused": the row of each digit also holds its item, which helps if digit i is about item
    i (`CodeModel.aligned`). A masked model then has n rows only. A causal one has the rows of items
    in any case, since a digit may attend to every item but to no later digit.

    Args:
        num_items: n.
        num_conditions: size of the condition of the whole permutation; None for none.
        encoder: of items, [B, n, ...] -> [B, n, encoder.features]; None for none.
        causal: whether logits of digit i depend on earlier digits only, for an autoregressive
            model.
        context: how items enter.
        width: of the rows, a multiple of `heads`.
        depth: number of layers.
        heads: attention heads.
        dropout: rate on the output of each layer's attention and feed-forward part.

    Raises:
        ValueError: sizes below 1, or a width that is no multiple of `heads`.

    References: Severo et al. 2025, appendix E.
    """

    def __init__(  # noqa: PLR0913 - built from YAML
        self,
        num_items: int,
        num_conditions: int | None = None,
        encoder: nn.Module | None = None,
        causal: bool = False,
        context: Literal["fused", "prefix"] = "fused",
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if min(num_items, width, depth, heads) < 1 or width % heads:
            raise ValueError(
                f"width {width} must be a positive multiple of heads {heads}, "
                f"and depth {depth} positive"
            )
        self.num_items = num_items
        self.causal = causal
        self.fused = encoder is not None and context == "fused"
        prefix = encoder is not None and (context == "prefix" or causal)
        # a value means something else at every position, so each position has its own embeddings
        self.digits = _embedding(num_items * (num_items + 1), width)
        self.places = _embedding(num_items, width)
        self.items: nn.Module | None = None
        if encoder is not None:
            features = getattr(encoder, "features", None)
            if not isinstance(features, int):
                raise ValueError(
                    f"the encoder {type(encoder).__name__} must have the attribute `features`, "
                    "the number of its outputs"
                )
            self.items = nn.Sequential(encoder, nn.Linear(features, width))
        self.item_places = _embedding(num_items, width) if prefix else None
        self.condition: nn.Module | None = None
        if num_conditions is not None:
            self.condition = nn.Sequential(
                nn.Linear(num_conditions, width), nn.GELU(), nn.Linear(width, width)
            )
        self.layers = nn.ModuleList(
            [_Layer(width, heads, 4, dropout, norm_first=True) for _ in range(depth)]
        )
        self.norm = LayerNorm(width)
        self.head = nn.Linear(width, num_items)
        nn.init.zeros_(self.head.bias)
        nn.init.normal_(self.head.weight, std=0.02)
        mask = _attention_mask(num_items, causal, prefix) if causal or prefix else None
        self.register_buffer("_attends", mask, persistent=False)

    def forward(self, codes: Tensor, context: Context) -> Tensor:
        """Return logits [B, n, n] of codes int64 [B, n] with their context."""
        n = self.num_items
        if self.causal:
            # row i holds digit i - 1, and the first row a mask
            codes = torch.cat([torch.full_like(codes[:, :1], n), codes[:, :-1]], 1)
        position = torch.arange(n, device=codes.device)
        rows = self.digits(codes + position * (n + 1)) + self.places(position)
        if self.items is not None:
            items = self.items(context["items"])
            rows = rows + items if self.fused else rows
            if self.item_places is not None:
                rows = torch.cat([items + self.item_places(position), rows], 1)
        if self.condition is not None:
            rows = rows + self.condition(context["condition"]).unsqueeze(1)
        for layer in self.layers:
            rows = layer(rows, self._attends)
        return self.head(self.norm(rows[:, -n:]))


def _attention_mask(n: int, causal: bool, prefix: bool) -> Tensor:
    """Return which row (first index) may attend to which, bool [rows, rows].

    With a prefix all rows attend to the n rows of items, which attend to no digit.
    """
    digits = torch.ones(n, n, dtype=torch.bool).tril(0 if causal else n)
    if not prefix:
        return digits
    items = torch.ones(2 * n, n, dtype=torch.bool)
    return torch.cat([items, torch.cat([torch.zeros_like(digits), digits])], 1)


class _Layer(TransformerLayer):
    """A pre-norm layer with GELU and PyTorch's default initialisation."""

    linear = nn.Linear
    activation = nn.GELU


def _embedding(num_embeddings: int, width: int) -> nn.Embedding:
    """Return an embedding [num_embeddings, width] with normal entries of standard deviation 1/2."""
    table = nn.Embedding(num_embeddings, width)
    nn.init.normal_(table.weight, std=0.5)
    return table


@dataclass(frozen=True)
class Passes:
    """How the digits of samples are drawn.

    Args:
        passes: network evaluations, 1..n; None for n, as in training.
        order: of the digits: random (a new order for each sample), from left to right, or by
            confidence (the most certain digits next). None for random; left to right for an
            autoregressive model.
        greedy: take the most probable value of every digit instead of drawing.
    """

    passes: int | None = None
    order: Order | None = None
    greedy: bool = False

    def with_settings(self, settings: Mapping[str, Any]) -> Passes:
        """Return a copy with the settings `passes`, `order` and `sampler` that are not null.

        Raises:
            UserError: an unknown option of `sampler`.
        """
        options = {
            name: value
            for name, value in (settings.get("sampler") or {}).items()
            if value is not None
        }
        unknown = sorted(options.keys() - {"greedy"})
        if unknown:
            raise UserError(f"sampler.{unknown[0]}: no such setting; only sampler.greedy is one")
        for name in ("passes", "order"):
            if settings.get(name) is not None:
                options[name] = settings[name]
        return replace(self, **options)

    def resolve(self, n: int, objective: str) -> Passes:
        """Return a copy with defaults in place of None.

        Args:
            n: digits.
            objective: of the model.

        Raises:
            ValueError: passes outside 1..n, an unknown order, greedy neither true nor false, or an
                order or number of passes that an autoregressive model does not allow.
        """
        causal = objective == "autoregressive"
        default_order: Order = "left_to_right" if causal else "random"
        passes = n if self.passes is None else self.passes
        order = default_order if self.order is None else self.order
        orders = get_args(Order)
        ensure(type(passes) is int and 1 <= passes <= n, f"passes must be 1..{n}, not {passes!r}")
        ensure(order in orders, f"order must be one of {', '.join(orders)}, not {order}")
        ensure(type(self.greedy) is bool, f"greedy must be true or false, not {self.greedy!r}")
        if causal and (passes, order) != (n, default_order):
            raise ValueError(
                f"an autoregressive model draws from left to right: passes={n} order=left_to_right"
            )
        return replace(self, passes=passes, order=order)


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
        if self._sums_orders(self.passes):
            return 2**self.length - 1
        return self.passes.passes or self.length

    def nll(
        self, denoiser: Denoiser, codes: Tensor, streams: RandomSource, passes: Passes | None = None
    ) -> Tensor:
        """Return -log p in nats, float64 [B], of the distribution of samples without `greedy`.

        If every sample has a random order, p is a mixture over orders. Up to 7 items it is summed.
        Above that the value is -log p given one random order per sample, whose mean is an upper
        bound by Jensen's inequality, see `likelihood`.

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
        if self._sums_orders(passes):
            return mixture_nll(denoiser, codes, self.support, num_passes)
        order: Tensor | None = None
        if passes.order == "random":
            order = uniform(tuple(codes.shape), streams, codes.device).argsort(dim=1)
        blocks = balanced_blocks(n, num_passes, order)
        return -code_log_prob(denoiser, codes, blocks, self.support).double()

    def likelihood(self, passes: Passes | None = None) -> Likelihood:
        """Return whether `nll` is the exact -log p of samples, or an upper bound.

        It is a bound if one order stands for all orders. It is also a bound if inline digits that
        are no permutation are repaired, as several codes then give the same permutation.
        """
        passes = self.passes if passes is None else passes
        one_pass = passes.passes == 1
        random_order = self.objective == "masked" and passes.order == "random" and not one_pass
        repaired = self.code is Inline and self.aligned
        if repaired or (random_order and not self._sums_orders(passes)):
            return "upper bound"
        return "exact"

    def _sums_orders(self, passes: Passes) -> bool:
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
        steps = self.steps(passes, num_observed)
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
                denoiser, codes, blocks, steps, self.support, streams, greedy=passes.greedy
            )
            for step, state in enumerate(chain([(codes, log_prob)], states)):
                codes, log_prob = state
                if watch is not None:
                    watch(step, steps, self._preview(codes, context))
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

    def steps(self, passes: Passes, num_observed: int) -> int:
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
        steps = self.steps(passes, num_observed)
        return list(positions[:, num_observed:].tensor_split(steps, dim=1))

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

    def example(self) -> tuple[Any, ...]:
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
        codes, context = self.example()
        shape = list(context.get("items", codes).shape[2:])
        kind = self.config["data"].get("kind") or "items"
        with error_context(f"network: it cannot read {kind} of shape {shape}"):
            logits = self.averaged(codes, context)
        expected = [1, self.length, self.length]
        if list(logits.shape) != expected:
            raise UserError(f"network: logits must be {expected}, not {list(logits.shape)}")

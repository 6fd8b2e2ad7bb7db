"""Drawing the digits of codes, block after block.

With a partition of the digits into ordered blocks a denoiser defines a distribution: the digits of
a block are drawn independently given all earlier blocks, with one network evaluation (a pass) each.
So every draw of a free code (`blackout.permutations.codes`) is a permutation, and probabilities sum
to 1 for any network.

References: Severo et al. 2025, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from blackout.errors import UserError, ensure
from blackout.permutations.coded.denoiser import Denoiser, log_softmax_on_support
from blackout.random import RandomSource, categorical

# positions of the digits of each pass, int64 [s], or [B, s] if every sample has its own
Blocks: TypeAlias = Sequence[Tensor]
# (log-probabilities [B, n, n], codes [B, n], passes left) -> positions of the next pass [B, s]
BlockRule: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]
Order = Literal["random", "left_to_right", "confidence"]


@dataclass(frozen=True)
class Passes:
    """Settings of sampling digits: number of passes, order, greedy or not.

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
            raise UserError(
                f"sampler.{unknown[0]}: no such setting; the only one is sampler.greedy"
            )
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
        denoiser: codes [B, n] -> logits [B, n, n], see `Denoiser`.
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

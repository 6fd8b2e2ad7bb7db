"""How digits are filled in, and what drawing and reports need of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from blackout.family import Source
from blackout.permutations.codes import Code
from blackout.permutations.factorized import Denoiser

Order = Literal["random", "left_to_right", "confidence"]
_ORDERS = ("random", "left_to_right", "confidence")


@dataclass(frozen=True)
class Passes:
    """How digits are filled in.

    Args:
        passes: of the network, 1..n; None for one, or n of an autoregressive model.
        order: of the digits: random (a fresh one per sample), left to right, or the most certain next. None for
            random, or left to right of an autoregressive model.
        greedy: take the most probable value of every digit instead of drawing.
        distinct: never a value of an earlier pass again, for the inline code.
    """

    passes: int | None = None
    order: Order | None = None
    greedy: bool = False
    distinct: bool = False

    def checked(self, n: int, objective: str, inline: bool) -> Passes:
        """The same without nulls.

        Args:
            n: digits.
            objective: of the model.
            inline: whether its code is.

        Raises:
            ValueError: not 1..n passes, another order, or what the code or an autoregressive model cannot do.
        """
        if self.distinct and not inline:
            raise ValueError("distinct is for code=inline: digits of the other codes may be equal")
        causal = objective == "autoregressive"
        usual: tuple[int, Order] = (n, "left_to_right") if causal else (1, "random")
        passes = usual[0] if self.passes is None else self.passes
        order = usual[1] if self.order is None else self.order
        if not 1 <= passes <= n:
            raise ValueError(f"passes must be 1..{n}, not {passes}")
        if order not in _ORDERS:
            raise ValueError(f"order must be one of {', '.join(_ORDERS)}, not {order}")
        if causal and (passes, order) != usual:
            raise ValueError(
                f"an autoregressive model draws digit by digit from left to right: passes={n} order=left_to_right"
            )
        return replace(self, passes=passes, order=order)


class CodedModel(Protocol):
    """What a draw needs of a model."""

    code: type[Code]
    objective: str
    length: int
    support: Tensor
    passes: Passes
    config: dict[str, Any]

    @property
    def aligned(self) -> bool: ...
    @property
    def device(self) -> torch.device: ...
    def encode(self, x: Tensor) -> Tensor: ...
    def decode(self, codes: Tensor) -> Tensor: ...
    def valid(self, codes: Tensor) -> Tensor: ...
    def denoiser(self, context: Mapping[str, Tensor]) -> Denoiser: ...
    def require_source(self) -> Source: ...
    def tensors(self) -> dict[str, Tensor]: ...

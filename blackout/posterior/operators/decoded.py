"""Operators on decoded data, for models that generate codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from blackout.counts import Shape
from blackout.diffusion.model import BlackoutDiffusion
from blackout.errors import ensure
from blackout.posterior.operators.base import Operator
from blackout.representation import format_fields


@dataclass(frozen=True)
class Decoded(Operator):
    """An operator on decoded data, G(decoder(x)): the diffusion model generates codes x.

    Args:
        decoder: codes x [n, *shape], float64 -> data [n, *decoded_shape].
        decoded_shape: shape of what the decoder returns.
        operator: G, of the decoded data.
        encoder: data [n, *decoded_shape] -> codes [n, *shape], near integers. With an encoder,
            chains start at the measurement; None starts them at samples of the prior.

    References: Chu et al. 2025, appendix D.1.

    Example:
        >>> import torch
        >>> from blackout.posterior import Identity
        >>> operator = Decoded(lambda x: 2 * x, (3,), Identity())
        >>> operator(torch.tensor([[3, 0, 1]])).tolist()
        [[6.0, 0.0, 2.0]]
    """

    decoder: Callable[[Tensor], Tensor]
    decoded_shape: tuple[int, ...] | list[int]
    operator: Operator
    encoder: Callable[[Tensor], Tensor] | None = None

    __repr__ = format_fields

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", self.operator.noise)

    def __call__(self, x: Tensor) -> Tensor:
        """Return G(decoder(x)), float64 [n, *measurement].

        Raises:
            ValueError: the decoder returns another shape, or no tensor.
        """
        data = self.decoder(x)
        if not isinstance(data, Tensor) or tuple(data.shape[1:]) != tuple(self.decoded_shape):
            result = tuple(data.shape[1:]) if isinstance(data, Tensor) else type(data).__name__
            raise ValueError(
                f"decoded_shape={list(self.decoded_shape)}, but the decoder returns {result}"
            )
        return self.operator(data.detach())

    def measurement_shape(self, shape: Shape) -> Shape:
        """Return the measurement shape of G."""
        return self.operator.measurement_shape(tuple(self.decoded_shape))

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """Return the codes of G's back-projection, [n, *shape]; None without an encoder."""
        data = self.operator.back_project(m, tuple(self.decoded_shape))
        if data is None or self.encoder is None:
            return None
        codes = self.encoder(data).detach().double()
        code_shape = tuple(codes.shape[1:])
        ensure(
            code_shape == shape, f"the encoder must return codes of shape {shape}, not {code_shape}"
        )
        return codes

    def prepare(self, model: BlackoutDiffusion) -> None:
        """Prepare G."""
        self.operator.prepare(model)

    def observed_mask(self, shape: Shape) -> Tensor | None:
        """Return the observed elements of G's measurement."""
        return self.operator.observed_mask(tuple(self.decoded_shape))

"""A black box as an operator: any function on tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blackout.counts import Shape
from blackout.posterior.noise import Gaussian
from blackout.posterior.operators.base import Operator
from blackout.representation import format_fields


@dataclass(frozen=True)
class Function(Operator):
    """A black box: a function on tensors, a torch module, or a physics object of deepinv (its `A`).

    Args:
        function: x [n, *shape] -> m [n, *measurement]. x is float64, or of the dtype of a module's
            weights.

    References: definition of the class; checked in tests/posterior/test_operators.py.

    Example:
        >>> Function(lambda x: x.cumsum(1))(torch.tensor([[1, 2, 3]])).tolist()
        [[1.0, 3.0, 6.0]]
    """

    function: Callable[[Tensor], Tensor]
    noise = Gaussian()

    __repr__ = format_fields

    def __call__(self, x: Tensor) -> Tensor:
        """Return G(x), float64 [n, *measurement].

        Raises:
            ValueError: the function does not return one tensor with a row for every x.
        """
        dtype = x.dtype
        if isinstance(self.function, nn.Module):
            dtype = next(self.function.parameters(), x).dtype
        m = getattr(self.function, "A", self.function)(x.to(dtype))
        if not isinstance(m, Tensor) or m.shape[:1] != x.shape[:1] or m.ndim < 2:
            result = tuple(m.shape) if isinstance(m, Tensor) else type(m).__name__
            raise ValueError(
                f"function must return m [n, ...] for x [n, ...], not {result} for {tuple(x.shape)}"
            )
        return m.detach().double()

    def measurement_shape(self, shape: Shape) -> Shape:
        """Return the shape of the function's value at 0."""
        return tuple(self(torch.zeros(1, *shape, dtype=torch.float64)).shape[1:])

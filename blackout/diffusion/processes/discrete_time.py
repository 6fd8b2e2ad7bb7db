"""Markov chains in discrete time, D3PM's among them; the number of a step serves as its time.

The reverse of a step is Bayes' rule, P(n | m, o) = P_0,k-1[o, n] P_k[n, m] / P_0k[o, m]; there are
no rates.

References: Austin et al. 2021, eq. 3; Santos et al. 2023, appendix A.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import torch
from torch import Tensor

from blackout.component import component
from blackout.diffusion.processes.finite_states import FiniteProcess
from blackout.diffusion.processes.generator import Matrix, check_matrix, load_matrix
from blackout.errors import ensure


@component("process")
class DiscreteTimeChain(FiniteProcess):
    """A chain of num_steps steps on states 0..S - 1; times are whole numbers 0..num_steps.

    Args:
        max_count: largest data level; states above are the chain's alone.
        num_steps: length of the chain.
        matrix: a transition matrix for every step, [num_steps, S, S], or one for all, [S, S]; an
            array, or the name of a `.npy` file.

    Raises:
        UserError: the file cannot be read.
        ValueError: not stochastic matrices, or too few states for the data.
    """

    def __init__(
        self, max_count: int = 255, num_steps: int = 100, matrix: Matrix | None = None
    ) -> None:
        ensure(num_steps >= 1, f"a chain needs at least one step, not {num_steps}")
        ensure(
            matrix is not None,
            "matrix must be given: a .npy file with one transition matrix, or one per step",
        )
        array = load_matrix(matrix)
        check_matrix(array, "transition matrix", 1.0)
        ensure(
            array.ndim == 2 or array.shape[:-2] == (num_steps,),
            f"matrix must be [S, S] or [num_steps, S, S] with num_steps={num_steps}, "
            f"not {list(array.shape)}",
        )
        super().__init__(max_count, array.shape[-1])
        self.num_steps = num_steps
        steps = torch.from_numpy(np.array(array, dtype=np.float64))
        self._steps = steps.expand(num_steps, *steps.shape[-2:])
        self._products: dict[torch.device, Tensor] = {}

    def step(self, k: Tensor) -> Tensor:
        """Return the matrices of steps k, from X_{k-1} to X_k: float64 [b, S, S].

        Args:
            k: int64 [b] in 1..num_steps.
        """
        return self._steps.to(k.device)[k - 1]

    def transition(self, s: Tensor, t: Tensor) -> Tensor:
        """Return P_st, the product of the steps between, for steps [b] and [b]: float64 [b, S, S].

        References: Austin et al. 2021, eq. 3.
        """
        first = self._step_numbers(s)
        last = self._step_numbers(t)
        if bool((first == 0).all()):
            return self._products_from_start(last.device)[last]
        if bool((last - first == 1).all()):
            return self.step(last)
        identity = torch.eye(self.num_states, dtype=torch.float64)
        pairs = zip(first.tolist(), last.tolist(), strict=True)
        products = [reduce(torch.matmul, self._steps[i:k], identity) for i, k in pairs]
        return torch.stack(products).to(s.device)

    def _products_from_start(self, device: torch.device) -> Tensor:
        """Return P_0k for k = 0..num_steps, float64 [num_steps + 1, S, S]: products of the steps.

        References: Austin et al. 2021, eq. 3.
        """
        if device not in self._products:
            products = [torch.eye(self.num_states, dtype=torch.float64)]
            for step in self._steps:
                product = products[-1] @ step
                products.append(product / product.sum(-1, keepdim=True))
            self._products[device] = torch.stack(products).to(device)
        return self._products[device]

    def _step_numbers(self, t: Tensor) -> Tensor:
        """Return times as int64 numbers of steps; raise ValueError for other times."""
        k = t.round().long()
        if bool(((t != k) | (k < 0) | (k > self.num_steps)).any()):
            raise ValueError(
                f"the times of this chain are whole numbers 0..{self.num_steps}: "
                f"use schedule=steps with schedule.num_steps={self.num_steps}"
            )
        return k


@component("process")
class UniformChain(DiscreteTimeChain):
    """D3PM's uniform chain: step k replaces an element by a uniform level.

    It does so with probability 1 / (T - k + 1), so that 1 - k / T of the elements are still the
    data's at step k, and none at the last. All steps are one array [T, S, S], S = max_count + 1.

    References: Austin et al. 2021, section 3.2 and appendix A.2.1.

    Args:
        max_count: largest data level.
        num_steps: T.
    """

    def __init__(self, max_count: int = 255, num_steps: int = 100) -> None:
        size = max_count + 1
        uniform = np.full((size, size), 1 / size)
        super().__init__(max_count, num_steps, _replacement_steps(uniform, num_steps))


@component("process")
class AbsorbingChain(DiscreteTimeChain):
    """D3PM's absorbing chain: as `UniformChain`, but replaced by the mask, the state max_count + 1.

    All steps are one array [T, S, S], S = max_count + 2.

    References: Austin et al. 2021, section 3.2 and appendix A.2.2.

    Args:
        max_count: largest data level.
        num_steps: T.
    """

    def __init__(self, max_count: int = 255, num_steps: int = 100) -> None:
        size = max_count + 2
        masked = np.zeros((size, size))
        masked[:, -1] = 1.0
        super().__init__(max_count, num_steps, _replacement_steps(masked, num_steps))
        self.mask = max_count + 1


@component("process")
class GaussianChain(DiscreteTimeChain):
    """D3PM's discretised Gaussian chain: steps between near levels.

    From i to j != i in proportion to exp(-4 (i - j)^2 / (max_count^2 beta_k)), normalised as on the
    whole line; what is beyond the ends stays. Betas grow evenly from 0.0001 to 0.02, times
    1,000 / num_steps. All steps are one array [T, S, S], S = max_count + 1.

    References: Austin et al. 2021, appendix A.2.3.

    Args:
        max_count: largest data level.
        num_steps: T.
    """

    def __init__(self, max_count: int = 255, num_steps: int = 100) -> None:
        betas = np.linspace(1e-4, 0.02, max(num_steps, 1)) * 1000 / max(num_steps, 1)
        distance = np.arange(-max_count, max_count + 1)
        weight = np.exp(-4 * distance**2 / (max_count**2 * betas[:, None]))
        weight /= weight.sum(1, keepdims=True)
        levels = np.arange(max_count + 1)
        steps = weight[:, levels[None, :] - levels[:, None] + max_count]
        steps[:, levels, levels] += 1 - steps.sum(-1)
        super().__init__(max_count, num_steps, steps)


def _replacement_steps(replacement: np.ndarray, num_steps: int) -> np.ndarray:
    """Return steps that replace an element with probability 1 / (T - k + 1), float64 [T, S, S].

    References: Austin et al. 2021, section 3.2.

    Args:
        replacement: distribution of the replacement of every level, [S, S].
        num_steps: T.
    """
    remaining_steps = num_steps - np.arange(max(num_steps, 1), dtype=np.float64)
    probability = 1 / remaining_steps[:, None, None]
    return (1 - probability) * np.eye(len(replacement)) + probability * replacement

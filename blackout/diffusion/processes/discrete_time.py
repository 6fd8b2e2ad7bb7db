"""Markov chains in discrete time, D3PM's among them: the same interface, with the number of the step for time.

The reverse of a step is Bayes' rule, P(n | m, o) = P_0,k-1[o, n] P_k[n, m] / P_0k[o, m], and there are no rates
[Santos 2023, appendix A; Austin 2021, eq. 3].
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
    """A chain of num_steps steps on states 0..S - 1. Times are whole numbers 0..num_steps, as float64.

    Args:
        max_count: largest data level; states above are the chain's own.
        num_steps: length of the chain.
        matrix: one transition matrix for every step, [num_steps, S, S], or one for all, [S, S]; a `.npy` file's name
            or the array.

    Raises:
        UserError: the file cannot be read.
        ValueError: not stochastic matrices, or too few states for the data.
    """

    def __init__(self, max_count: int = 255, num_steps: int = 100, matrix: Matrix | None = None) -> None:
        ensure(num_steps >= 1, f"a chain needs at least one step, not {num_steps}")
        ensure(matrix is not None, "matrix must be given: a .npy file with one transition matrix, or one per step")
        array = load_matrix(matrix)
        check_matrix(array, "transition matrix", 1.0)
        good = array.ndim == 2 or array.shape[:-2] == (num_steps,)
        ensure(good, f"matrix must be [S, S] or [num_steps, S, S] with num_steps={num_steps}, not {list(array.shape)}")
        super().__init__(max_count, array.shape[-1])
        self.num_steps = num_steps
        steps = torch.from_numpy(np.array(array, dtype=np.float64))
        self._steps = steps.expand(num_steps, *steps.shape[-2:])
        self._products: dict[torch.device, Tensor] = {}

    def step(self, k: Tensor) -> Tensor:
        """The matrices of steps k, int64 [b] in 1..num_steps, from X_{k-1} to X_k: float64 [b, S, S], as they were
        given.
        """
        return self._steps.to(k.device)[k - 1]

    def transition(self, s: Tensor, t: Tensor) -> Tensor:
        """P_st, the product of the steps between, for steps [b] and [b]: float64 [b, S, S] [Austin 2021, eq. 3]."""
        first, last = self._index(s), self._index(t)
        if bool((first == 0).all()):
            return self._from_start(last.device)[last]
        if bool((last - first == 1).all()):
            return self.step(last)
        identity = torch.eye(self.num_states, dtype=torch.float64)
        pairs = zip(first.tolist(), last.tolist(), strict=True)
        return torch.stack([reduce(torch.matmul, self._steps[i:k], identity) for i, k in pairs]).to(s.device)

    def _from_start(self, device: torch.device) -> Tensor:
        """P_0k for k = 0..num_steps, float64 [num_steps + 1, S, S]: products of the steps [Austin 2021, eq. 3]."""
        if device not in self._products:
            products = [torch.eye(self.num_states, dtype=torch.float64)]
            for step in self._steps:
                product = products[-1] @ step
                products.append(product / product.sum(-1, keepdim=True))
            self._products[device] = torch.stack(products).to(device)
        return self._products[device]

    def _index(self, t: Tensor) -> Tensor:
        """Times as int64 numbers of steps."""
        k = t.round().long()
        if bool(((t != k) | (k < 0) | (k > self.num_steps)).any()):  # of no times, none
            raise ValueError(
                f"the times of this chain are whole numbers 0..{self.num_steps}: use schedule=steps with "
                f"schedule.num_steps={self.num_steps}"
            )
        return k


@component("process")
class UniformChain(DiscreteTimeChain):
    """D3PM's uniform chain: at step k an element is replaced by a uniform level with probability 1 / (T - k + 1).

    [Austin 2021, appendix A.2.1 and section 3.2.] So 1 - k / T of the elements are still the data's at step k, and none
    at the last. All steps are one array [T, S, S], S = max_count + 1.

    Args:
        max_count: largest data level.
        num_steps: T.
    """

    def __init__(self, max_count: int = 255, num_steps: int = 100) -> None:
        size = max_count + 1
        super().__init__(max_count, num_steps, _replacing(np.full((size, size), 1 / size), num_steps))


@component("process")
class AbsorbingChain(DiscreteTimeChain):
    """D3PM's absorbing chain: as `UniformChain`, but replaced by the mask, the state max_count + 1.

    [Austin 2021, appendix A.2.2.] All steps are one array [T, S, S], S = max_count + 2.

    Args:
        max_count: largest data level.
        num_steps: T.
    """

    def __init__(self, max_count: int = 255, num_steps: int = 100) -> None:
        size = max_count + 2
        masked = np.zeros((size, size))
        masked[:, -1] = 1.0
        super().__init__(max_count, num_steps, _replacing(masked, num_steps))
        self.mask = max_count + 1


@component("process")
class GaussianChain(DiscreteTimeChain):
    """D3PM's discretised Gaussian chain [Austin 2021, appendix A.2.3]: steps between near levels.

    From i to j != i in proportion to exp(-4 (i - j)^2 / (max_count^2 beta_k)), normalised as on the whole line; what is
    beyond the ends stays. Betas grow evenly from 0.0001 to 0.02, times 1,000 / num_steps. All steps are one array
    [T, S, S], S = max_count + 1.

    Args:
        max_count: largest data level.
        num_steps: T.
    """

    def __init__(self, max_count: int = 255, num_steps: int = 100) -> None:
        betas = np.linspace(1e-4, 0.02, max(num_steps, 1)) * 1000 / max(num_steps, 1)
        far = np.arange(-max_count, max_count + 1)
        weight = np.exp(-4 * far**2 / (max_count**2 * betas[:, None]))
        weight /= weight.sum(1, keepdims=True)
        levels = np.arange(max_count + 1)
        steps = weight[:, levels[None, :] - levels[:, None] + max_count]
        steps[:, levels, levels] += 1 - steps.sum(-1)
        super().__init__(max_count, num_steps, steps)


def _replacing(by: np.ndarray, num_steps: int) -> np.ndarray:
    """Steps that replace an element by a draw from a row of `by` [S, S], with probability 1 / (T - k + 1).

    Float64 [T, S, S] for T = num_steps [Austin 2021, section 3.2], see `UniformChain`.
    """
    replaced = 1 / (num_steps - np.arange(max(num_steps, 1), dtype=np.float64))[:, None, None]
    return (1 - replaced) * np.eye(len(by)) + replaced * by

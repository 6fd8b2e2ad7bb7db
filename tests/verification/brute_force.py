"""Brute-force references for tests: matrix exponentials, bridges, reverse rates and posteriors."""

from __future__ import annotations

import numpy as np


def precise_expm(generator: np.ndarray) -> np.ndarray:
    """exp of a generator by its series in extended precision.

    Every term is positive, so small entries keep their digits.
    """
    q = generator.astype(np.longdouble)
    rate = -q.diagonal().min()
    jump = np.eye(len(q), dtype=np.longdouble)
    if rate == 0:
        return jump
    halvings = max(0, int(np.ceil(np.log2(float(rate)))) + 2)
    y = rate / 2**halvings
    jump = np.clip(jump + q / rate, 0, None)
    term = total = np.eye(len(q), dtype=np.longdouble)
    for k in range(1, 30):
        term = term @ jump * (y / k)
        total = total + term
    total = total * np.exp(-y)
    for _ in range(halvings):
        total = total @ total
    return total


def bridge(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """P(X_s = n | X_0 = o, X_t = m), [o, m, n], from P_0s and P_st; nan where m is unreachable from
    o."""
    joint = first[:, None, :] * second.T[None, :, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        return joint / joint.sum(-1, keepdims=True)


def reverse_rates(generator: np.ndarray, transition: np.ndarray) -> np.ndarray:
    """Q[j, m] P[o, j] / P[o, m], [o, m, j], without j = m."""
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = generator.T[None, :, :] * transition[:, None, :] / transition[:, :, None]
    for m in range(len(generator)):
        rates[:, m, m] = 0.0
    return rates


def posterior(p0: np.ndarray, transition: np.ndarray) -> np.ndarray:
    """P(X_0 = o | X_t = m), [m, o]; the data distribution where m cannot occur."""
    joint = transition[: len(p0)].T * p0[None, :]
    mass = joint.sum(1, keepdims=True)
    return np.where(mass > 0, joint / np.where(mass > 0, mass, 1.0), p0[None, :])

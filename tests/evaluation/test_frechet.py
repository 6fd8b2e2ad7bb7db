"""The Fréchet distance between Gaussians against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from blackout.evaluation import frechet_distance


def rotation(size: int, seed: int) -> Tensor:
    """Return a random orthogonal matrix."""
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))[0]


def covariance(size: int, samples: int, seed: int) -> Tensor:
    """Return the covariance of random samples."""
    generator = torch.Generator().manual_seed(seed)
    return torch.cov(torch.randn(size, samples, dtype=torch.float64, generator=generator))


def test_the_distance_in_one_dimension() -> None:
    """In one dimension: (m - n)^2 + (s - t)^2."""
    distance = frechet_distance(
        torch.tensor([1.0]), torch.tensor([[4.0]]), torch.tensor([4.0]), torch.tensor([[9.0]])
    )
    assert distance == pytest.approx(9 + 1, abs=1e-12)


def test_commuting_covariances_have_a_closed_form() -> None:
    turn = rotation(30, 0)
    a, b = torch.rand(2, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mu = torch.linspace(-1, 1, 30, dtype=torch.float64)
    distance = frechet_distance(mu, turn @ a.diag() @ turn.T, mu + 0.5, turn @ b.diag() @ turn.T)
    assert distance == pytest.approx(
        30 * 0.25 + float((a.sqrt() - b.sqrt()).square().sum()), rel=1e-10
    )


def test_pushforward_by_a_symmetric_matrix_has_a_closed_form() -> None:
    """x -> A x with A > 0 transports N(0, S) optimally to N(0, A S A).

    The cost is tr((A - 1) S (A - 1)).
    """
    s = covariance(20, 100, 0)
    turn = rotation(20, 1)
    a = turn @ torch.linspace(0.5, 2, 20, dtype=torch.float64).diag() @ turn.T
    excess = a - torch.eye(20, dtype=torch.float64)
    zero = torch.zeros(20)
    expected = float((excess @ s @ excess).trace())
    assert frechet_distance(zero, s, zero, a @ s @ a) == pytest.approx(expected, rel=1e-10)


def test_the_distance_is_symmetric_and_zero_for_equal_gaussians() -> None:
    mu = torch.zeros(25)
    s = covariance(25, 60, 0)
    t = covariance(25, 60, 1)
    assert frechet_distance(mu, s, mu, s) == pytest.approx(0, abs=1e-11)
    assert frechet_distance(mu, s, mu, t) == pytest.approx(
        frechet_distance(mu, t, mu, s), rel=1e-10
    )


@pytest.mark.parametrize("samples", [2, 5, 40])
def test_singular_covariances_have_the_right_distance(samples: int) -> None:
    """With fewer samples than dimensions, compared with a nuclear norm of factors."""
    generator = torch.Generator().manual_seed(samples)
    x, y = torch.randn(2, 64, samples, dtype=torch.float64, generator=generator)
    x, y = (z - z.mean(dim=1, keepdim=True) for z in (x, y))
    s, t = (z @ z.T / (samples - 1) for z in (x, y))
    cross = torch.linalg.svdvals(x.T @ y).sum() / (samples - 1)
    zero = torch.zeros(64)
    assert frechet_distance(zero, s, zero, t) == pytest.approx(
        float(s.trace() + t.trace() - 2 * cross), rel=1e-7
    )


def test_orthogonal_supports_and_zero_covariances() -> None:
    s, t = torch.zeros(2, 4, 4, dtype=torch.float64)
    s[0, 0] = t[1, 1] = 4.0
    zero = torch.zeros(4)
    assert frechet_distance(zero, s, zero, t) == pytest.approx(8)
    assert frechet_distance(zero, s, zero, 0 * t) == pytest.approx(4)
    assert frechet_distance(zero, 0 * s, zero, 0 * t) == 0


def test_the_distance_matches_torch_fidelity_on_numpy_arrays() -> None:
    from torch_fidelity.metric_fid import fid_statistics_to_metric

    rng = np.random.default_rng(0)
    mu, nu = rng.normal(size=(2, 80))
    s = np.cov(rng.normal(size=(80, 50)))
    t = np.cov(rng.normal(size=(80, 200)))
    expected = fid_statistics_to_metric(
        {"mu": mu, "sigma": s}, {"mu": nu, "sigma": t}, verbose=False
    )
    distance = frechet_distance(mu, s, nu, t)
    assert distance == pytest.approx(expected["frechet_inception_distance"], rel=1e-8)


def test_invalid_gaussians_are_refused() -> None:
    mu = torch.zeros(3)
    s = torch.eye(3)
    with pytest.raises(ValueError, match="must be"):
        frechet_distance(mu, torch.eye(2), mu, s)
    with pytest.raises(ValueError, match="3 and 2 features"):
        frechet_distance(mu, s, torch.zeros(2), torch.eye(2))
    with pytest.raises(ValueError, match="NaN"):
        frechet_distance(mu, s, mu, s * float("nan"))
    with pytest.raises(ValueError, match=r"eigenvalues are from -0\.1 to 1"):
        frechet_distance(mu, torch.diag(torch.tensor([1.0, 1.0, -0.1])), mu, s)

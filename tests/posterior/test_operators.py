"""Operators: values, the elements that each measurement depends on, maps and masks of files."""

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from blackout.diffusion.processes import PureDeath
from blackout.posterior import (
    And,
    Binomial,
    Blur,
    Function,
    Gaussian,
    Identity,
    Inpaint,
    InpaintBox,
    InpaintRandom,
    InverseProblem,
    Matrix,
    Poisson,
    Pool,
    Xor,
)
from blackout.posterior.coupling import Coupling
from blackout.posterior.likelihood_steps import colour_forests

SHAPE = (2, 6, 6)

OPERATORS = [
    (Identity(), SHAPE),
    (InpaintBox((1, 2), (0, 3)), SHAPE),
    (InpaintRandom(0.3), SHAPE),
    (Pool(2), SHAPE),
    (Pool(3), (12,)),
    (Blur(3, 0.8), SHAPE),
    (Matrix(torch.eye(12)[:5] + 1.0 * (torch.arange(12) == 3)), (12,)),
    (Xor(0.5), SHAPE),
    (And(2.0), (12,)),
    (Inpaint(torch.arange(12) % 3 > 0), (12,)),
]


@pytest.mark.parametrize("operator, shape", OPERATORS, ids=lambda part: type(part).__name__)
def test_the_incidence_lists_every_dependence_of_an_operator(operator, shape):
    x = torch.randint(0, 2, (1, *shape), generator=torch.Generator().manual_seed(0)).double()
    elements = math.prod(shape)
    m = operator(x).flatten()
    observed = operator.observed_mask(shape)
    pairs = {tuple(pair) for pair in operator.incidence(shape).T.tolist()}
    for element in range(elements):
        changed = x.flatten(1).clone()
        changed[:, element] += 1
        differs = operator(changed.view_as(x)).flatten() != m
        differs = differs if observed is None else differs & observed.flatten()
        assert {(int(k), element) for k in differs.nonzero()[:, 0]} <= pairs
    forests = colour_forests(operator.incidence(shape), elements)
    assert sorted(torch.cat([forest.elements for forest in forests]).tolist()) == list(
        range(elements)
    )
    for forest in forests:
        assert len(forest.terms.unique()) == len(forest.terms) and not forest.branches
    # levels tried one by one give the terms of all levels at once
    problem = InverseProblem(
        operator, Poisson(0.5, 0.2), torch.ones(1, *operator.measurement_shape(shape))
    )
    relaxed = Coupling(PureDeath(7)).relax(problem, shape, 0.3)
    z = torch.cat([x, 3 * x]).to(torch.uint8)
    inside = forests[-1].elements
    candidates = z.flatten(1).repeat(8, 1)
    candidates[:, inside] = torch.arange(8, dtype=torch.uint8).repeat_interleave(2)[:, None]
    one_by_one = torch.cat(
        [relaxed.problem.terms(view) for view in relaxed.to_data(candidates.view(-1, *shape))]
    )
    assert torch.allclose(relaxed.terms(z, inside, 8), one_by_one)


def test_a_box_hides_its_first_and_its_last_row_and_column():
    observed = InpaintBox((1, 2), (0, 3)).observed_mask((2, 4, 5))
    hidden = torch.zeros(2, 4, 5, dtype=torch.bool)
    hidden[:, 1:3, 0:4] = True
    assert torch.equal(observed, ~hidden)


def test_pooling_sums_blocks():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    assert Pool(2)(x).flatten().tolist() == [10, 18, 42, 50]
    assert torch.allclose(Pool(2)(Pool(2).back_project(Pool(2)(x), (1, 4, 4))), Pool(2)(x))


def test_a_blur_is_the_truncated_gaussian_filter_of_scipy():
    x = torch.rand(2, 3, 9, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = [
        [gaussian_filter(image, 1.5, truncate=2, mode="constant") for image in channels]
        for channels in x.numpy()
    ]
    assert np.allclose(Blur(7, 1.5)(x), expected)


def test_any_callable_is_an_operator():
    linear = torch.nn.Linear(6, 4)
    x = torch.rand(5, 6, dtype=torch.float64)
    signed = Matrix(linear.weight.detach())
    physics = type("Physics", (), {"A": staticmethod(lambda x: x[:, :3] - x[:, 3:])})()
    for operator, expected in (
        (Function(linear), linear(x.float()).double()),
        (Function(physics), x[:, :3] - x[:, 3:]),
        (Function(lambda x: x.cumsum(1)), x.cumsum(1)),
        (signed, x @ linear.weight.double().T),
    ):
        assert torch.allclose(operator(x), expected) and operator.measurement_shape((6,)) == tuple(
            expected.shape[1:]
        )
        assert isinstance(operator.noise, Gaussian)
    back_projected = signed.back_project(signed(x), (6,))
    assert float(back_projected.min()) >= 0 and torch.allclose(
        Matrix(-torch.eye(6)).back_project(-x, (6,)), x
    )
    assert Poisson().log_prob(torch.ones(1, 1), torch.full((1, 1), -2.0)).item() == -math.inf
    with pytest.raises(ValueError, match=r"function must return m \[n, \.\.\.\]"):
        Function(lambda x: x.sum(1)).measurement_shape((6,))


def test_maps_and_masks_of_files_have_channels_last(tmp_path):
    """Both settings read channels last."""
    survival = np.linspace(0.1, 0.9, 24).reshape(3, 4, 2)
    y = torch.ones(1, 2, 3, 4)
    np.save(tmp_path / "map.npy", survival)
    probability = Binomial(str(tmp_path / "map.npy")).log_prob(y, y).exp()
    assert np.allclose(probability[0].permute(1, 2, 0), survival)
    np.save(tmp_path / "mask.npy", survival[..., 0] > 0.5)
    assert np.array_equal(
        Inpaint(str(tmp_path / "mask.npy")).observed_mask((1, 3, 4))[0], survival[..., 0] > 0.5
    )


def test_maps_from_files(tmp_path):
    np.save(tmp_path / "map.npy", np.array([0.1, 0.9]))
    y = torch.tensor([[1.0, 1.0]])
    probability = Binomial(str(tmp_path / "map.npy")).log_prob(y, 2 * y)
    assert torch.allclose(probability.exp(), torch.tensor([[0.18, 0.18]], dtype=torch.float64))


def test_elements_are_hidden_by_a_seed():
    masks = [InpaintRandom(0.3, seed).observed_mask((1, 8, 8)) for seed in (0, 0, 1)]
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])
    assert {int((~mask).sum()) for mask in masks} == {19}

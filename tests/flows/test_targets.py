"""Targets: exact values from the literature, ratios by brute force, files."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.energy_discrepancy import pretrain, save
from benchmarks.planar import decode
from benchmarks.proposals import taylor_ratios
from blackout.errors import UserError
from blackout.flows.energies import data as planar
from blackout.flows.targets import (
    Couplings,
    EnergyNetwork,
    Ising,
    Potts,
    SpinGlass,
    Target,
    WrappedTarget,
    exact_values,
    read_couplings,
    read_energy,
)
from blackout.flows.targets.lattice import kaufman_log_z, transfer_matrix


class BruteForce(Target):
    """Another target, reduced to its log-density."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.levels, target.shape)
        self.other = target

    def log_density(self, x: Tensor) -> Tensor:
        return self.other.log_density(x)


def targets() -> list[Target]:
    """Return one target of every kind."""
    torch.manual_seed(0)
    dense = torch.randn(5, 5, dtype=torch.float64)
    return [
        Ising(3, 0.4, 0.3),
        Potts([2, 3], 4, 0.7),
        SpinGlass(3),
        Couplings(dense, dense[0]),
        EnergyNetwork(6, [8, 8]).double(),
    ]


@pytest.mark.parametrize("target", targets(), ids=lambda target: type(target).__name__)
def test_log_ratios_match_brute_force(target: Target) -> None:
    x = torch.randint(
        target.levels, (7, target.sites), generator=torch.Generator().manual_seed(1)
    ).to(torch.uint8)
    expected = BruteForce(target).log_ratios(x)
    assert torch.allclose(target.log_ratios(x), expected, atol=1e-10)
    sites = torch.tensor([4, 0])
    assert torch.allclose(target.log_ratios_at(x, sites), expected[:, sites], atol=1e-10)
    # changing one site of a group does not change the ratios of the others
    for group in target.independent_sites():
        y = x.clone()
        y[:, group[0]] = (y[:, group[0]] + 1) % target.levels
        other_states = group[1:]
        assert torch.allclose(
            target.log_ratios(y)[:, other_states], expected[:, other_states], atol=1e-10
        )
    assert sum(len(group) for group in target.independent_sites()) == target.sites


@pytest.mark.parametrize(
    "target, log_z, mean",
    [
        (Ising(3, 0.2), 6.669745, 0.968578),
        (Ising(3, 0.4), 8.456456, 5.263641),
        (Ising(4, 0.2, 0.2), 12.598503, 3.917236),
        (Ising(4, 0.4407), 15.522246, 11.039902),
        (Ising(10, 0.4407), 93.612250, 65.061801),
        (Potts(3, 3, 0.7), 15.528376, None),
        (Potts(4, 3, 1.00505254), 34.172608, 27.499239),
    ],
)
def test_closed_forms_match_published_values(
    target: Target, log_z: float, mean: float | None
) -> None:
    exact = target.closed_form()
    assert exact is not None and abs(exact["log_z"] - log_z) < 2e-6
    assert mean is None or abs(exact["mean_energy"] + mean) < 2e-6


def test_enumeration_and_transfer_matrix_agree() -> None:
    for target in (Ising([3, 4], 0.4, 0.1), Potts([3, 3], 3, 0.6)):
        enumerated = exact_values(target)
        solved = target.closed_form()
        assert enumerated is not None and solved is not None
        assert all(abs(enumerated[name] - solved[name]) < 1e-6 for name in solved)


def test_log_z_of_any_torus_without_field() -> None:
    # published values, and values from a transfer matrix
    assert abs(kaufman_log_z(2 * 0.22035, [10, 10]) - 93.612250) < 1e-6
    assert abs(kaufman_log_z(0.4406868, [10, 10]) - 93.610301) < 1e-6
    spins = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    for shape, beta in (((4, 6), 0.2), ((3, 5), 0.9), ((5, 3), 0.4407), ((7, 8), 0.01)):
        solved = transfer_matrix(beta * spins[:, None] * spins, 0 * spins, shape)
        assert solved is not None and abs(kaufman_log_z(beta, shape) - solved["log_z"]) < 1e-9
        closed_form = Ising(list(shape), beta).closed_form()
        assert (
            closed_form is not None
            and abs(closed_form["mean_energy"] - solved["mean_energy"]) < 1e-6
        )
    antiferromagnet = Ising([4, 4], -0.6).closed_form()
    frustrated = Ising([3, 4], -0.6).closed_form()
    enumerated = exact_values(Ising([4, 4], -0.6))
    assert (
        antiferromagnet is not None
        and enumerated is not None
        and abs(antiferromagnet["log_z"] - enumerated["log_z"]) < 1e-9
    )
    assert (
        frustrated is not None
        and abs(frustrated["log_z"] - exact_values(Ising([3, 4], -0.6))["log_z"]) < 1e-6
    )
    assert (Ising([40, 60], 0.6).closed_form() or {})["log_z"] > 2400 * 2 * 0.6 and Ising(
        30, 0.4, 0.1
    ).closed_form() is None
    # two ground states, beyond the range of Kaufman's hyperbolic functions
    frozen = Ising(10, 800.0)
    assert frozen.closed_form() == {
        "log_z": pytest.approx(160_000 + math.log(2)),
        "mean_energy": pytest.approx(-160_000),
    }
    assert Ising(40, 800.0).closed_form() is None


def test_targets_of_a_range_equal_single_targets() -> None:
    range_target = Ising(3, [0.2, 0.6], [0.2, 0.0])
    instances = range_target.instances(torch.tensor([0, 5 << 20, 123_456_789_012, (1 << 40) - 1]))
    x = torch.randint(2, (4, 9), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    for k, (coupling, field) in enumerate(instances.row_parameters.tolist()):  # type: ignore[union-attr]
        single = range_target.with_parameters(coupling=coupling, field=field)
        assert float(single.log_density(x[k]) - instances.log_density(x)[k]) == pytest.approx(
            0, abs=1e-12
        )
        assert torch.allclose(
            single.log_ratios(x[k : k + 1]),
            instances.select(torch.tensor([k])).log_ratios(x[k : k + 1]),
        )
        assert torch.allclose(single.context()[0], instances.context()[0][k])
    corners = range_target.instances(range_target.test_instances).row_parameters.tolist()  # type: ignore[attr-defined]
    assert corners == [[0.2, 0.2], [0.2, 0.0], [0.6, 0.2], [0.6, 0.0]]
    assert torch.equal(range_target.pair, Ising(3, 0.6).pair) and not Ising(3, 0.6).context()
    for parameters in ({"coupling": 0.8}, {"field": "much"}):
        with pytest.raises(UserError, match=r"outside the trained ranges.*0\.2, 0\.6"):
            range_target.with_parameters(**parameters)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"target\.size is fixed; only coupling and field"):
        range_target.with_parameters(size=3)
    with pytest.raises(ValueError, match=r"\[start, end\]"):
        Ising(3, [0.1, 0.2, 0.3])


def test_the_diagonal_of_j_only_shifts_log_z() -> None:
    matrix = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with_diagonal = Couplings(matrix)
    without_diagonal = Couplings(matrix - torch.diag(matrix.diag()))
    x = torch.randint(2, (3, 4))
    assert torch.allclose(with_diagonal.log_ratios(x), without_diagonal.log_ratios(x))
    assert torch.allclose(
        with_diagonal.log_density(x), without_diagonal.log_density(x) + matrix.diag().sum()
    )


def test_couplings_and_networks_are_read_from_files(tmp_path) -> None:  # type: ignore[no-untyped-def]
    matrix = np.random.default_rng(0).normal(size=(4, 4))
    field = np.arange(4)
    np.savez(tmp_path / "good.npz", J=matrix, h=field)
    x = torch.tensor([[0, 1, 1, 0]])
    s = np.array([-1.0, 1, 1, -1])
    assert float(read_couplings(tmp_path / "good.npz").log_density(x)) == pytest.approx(
        s @ matrix @ s + field @ s
    )
    np.save(tmp_path / "alone.npy", matrix)
    assert float(read_couplings(tmp_path / "alone.npy").log_density(x)) == pytest.approx(
        s @ matrix @ s
    )
    invalid = {
        "square": {"J": np.zeros((3, 4))},
        "finite": {"J": np.full((3, 3), np.nan)},
        "must have an array J": {"h": field},
        "must be": {"J": np.zeros((3, 3)), "h": np.zeros(4)},
        "real": {"J": np.zeros((3, 3), complex)},
        "not used: field; rename": {"J": np.zeros((3, 3)), "field": np.ones(3)},
        "at least one site": {"J": np.array(1.0)},
    }
    for message, arrays in invalid.items():
        np.savez(tmp_path / "wrong.npz", **arrays)
        with pytest.raises(UserError, match=message):
            read_couplings(tmp_path / "wrong.npz")
    (tmp_path / "junk.npz").write_text("junk")
    for name in ("junk.npz", "nothing.npz"):
        with pytest.raises(UserError, match=name):
            read_couplings(tmp_path / name)
    network = EnergyNetwork(4, [8])
    save(network, tmp_path / "energy.npz")
    assert torch.equal(read_energy(tmp_path / "energy.npz").log_density(x), network.log_density(x))
    with pytest.raises(UserError, match="weight_0"):
        read_energy(tmp_path / "good.npz")
    layers = {"weight_0": np.ones((1, 4)), "bias_0": np.ones(1)}
    np.savez(tmp_path / "incomplete.npz", **layers, weight_1=np.ones((1, 1)))
    with pytest.raises(UserError, match="no complete layer: weight_1"):
        read_energy(tmp_path / "incomplete.npz")


def test_taylor_ratios_are_exact_where_the_energy_is_linear() -> None:
    linear = EnergyNetwork(5, [])
    x = torch.randint(2, (3, 5))
    assert torch.allclose(taylor_ratios(linear, x), linear.log_ratios(x), atol=1e-5)
    deep = EnergyNetwork(5, [16, 16])
    with torch.no_grad():
        for weight in deep.parameters():
            weight *= 3
    assert not torch.allclose(taylor_ratios(deep, x), deep.log_ratios(x), atol=1e-3)


def test_a_class_of_the_user_needs_only_a_log_density() -> None:
    class UserTarget:
        levels = 3
        sites = 4

        def log_density(self, x: Tensor) -> Tensor:
            return x.double().sum(-1)

    ratios = WrappedTarget(UserTarget()).log_ratios(torch.tensor([[0, 2, 1, 0]]))
    assert ratios[0].tolist() == [[0, 1, 2], [-2, -1, 0], [-1, 0, 1], [0, 1, 2]]


class ForbiddenNeighbours(Target):
    """No two neighbours in a row are both 1.

    States of zero probability separate the rest, and no path from noise may cross them.
    """

    def __init__(self) -> None:
        super().__init__(2, [6])

    def log_density(self, x: Tensor) -> Tensor:
        return torch.where((x[..., 1:] * x[..., :-1] > 0).any(-1), -math.inf, x.double().sum(-1))


class WrongRatios(Couplings):
    """A target with the log-ratios of other couplings."""

    def log_ratios(self, x: Tensor) -> Tensor:
        return 1.1 * super().log_ratios(x)


@pytest.mark.parametrize(
    "target, message",
    [
        (ForbiddenNeighbours(), "not finite at some state"),
        (WrongRatios(h=[0.3, -1.0]), "differ by up to 0.2 from differences of log_density"),
    ],
)
def test_invalid_targets_are_refused_before_annealing(target: Target, message: str) -> None:
    with pytest.raises(UserError, match=message):
        target.check()
    for valid in targets():
        assert valid.check().shape == (3, valid.sites)


@pytest.mark.parametrize("density", planar.DENSITIES)
def test_points_in_the_plane_are_encoded_as_bits(density: str) -> None:
    points = torch.from_numpy(planar.sample_density(density, 500, 0))
    scale = planar.code_scale(density)
    bits = planar.encode(points, scale)
    assert (
        bits.shape == (500, 32)
        and float((decode(bits, scale) - points).abs().max()) <= 0.51 / scale
    )
    neighbours = planar.encode(
        torch.tensor([[1.0, 1.0], [1.0 + 1 / scale, 1.0]], dtype=torch.float64), scale
    )
    assert int((neighbours[0] != neighbours[1]).sum()) == 1


def test_energy_discrepancy_learns_a_density() -> None:

    network = pretrain("moons", 40, 3e-3, 64, [64, 64], 0)
    inside = planar.encode(
        torch.from_numpy(planar.sample_density("moons", 500, 9)), planar.code_scale("moons")
    )
    noise = torch.randint(2, (500, 32), generator=torch.Generator().manual_seed(0))
    assert float(network.log_density(inside).mean() - network.log_density(noise).mean()) > 1

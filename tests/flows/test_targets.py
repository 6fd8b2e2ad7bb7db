"""Targets: exact values of the literature, ratios by brute force, files."""

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
    """Another target by its log-density alone."""

    def __init__(self, other: Target) -> None:
        super().__init__(other.levels, other.shape)
        self.other = other

    def log_density(self, x: Tensor) -> Tensor:
        return self.other.log_density(x)


def targets() -> list[Target]:
    torch.manual_seed(0)
    dense = torch.randn(5, 5, dtype=torch.float64)
    return [Ising(3, 0.4, 0.3), Potts([2, 3], 4, 0.7), SpinGlass(3), Couplings(dense, dense[0]),
            EnergyNetwork(6, [8, 8]).double()]  # fmt: skip


@pytest.mark.parametrize("target", targets(), ids=lambda target: type(target).__name__)
def test_ratios_are_those_of_brute_force(target: Target) -> None:
    x = torch.randint(target.levels, (7, target.sites), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    expected = BruteForce(target).log_ratios(x)
    assert torch.allclose(target.log_ratios(x), expected, atol=1e-10)
    where = torch.tensor([4, 0])
    assert torch.allclose(target.log_ratios_at(x, where), expected[:, where], atol=1e-10)
    for group in target.independent_sites():  # flipping one of a group does not change the ratios of the others
        y = x.clone()
        y[:, group[0]] = (y[:, group[0]] + 1) % target.levels
        other = group[1:]
        assert torch.allclose(target.log_ratios(y)[:, other], expected[:, other], atol=1e-10)
    assert sum(len(group) for group in target.independent_sites()) == target.sites


@pytest.mark.parametrize("target, log_z, mean", [
    (Ising(3, 0.2), 6.669745, 0.968578), (Ising(3, 0.4), 8.456456, 5.263641), (Ising(4, 0.2, 0.2), 12.598503, 3.917236),
    (Ising(4, 0.4407), 15.522246, 11.039902), (Ising(10, 0.4407), 93.612250, 65.061801),
    (Potts(3, 3, 0.7), 15.528376, None), (Potts(4, 3, 1.00505254), 34.172608, 27.499239),
])  # fmt: skip
def test_exact_values(target: Target, log_z: float, mean: float | None) -> None:
    known = target.closed_form()
    assert known is not None and abs(known["log_z"] - log_z) < 2e-6
    assert mean is None or abs(known["mean_energy"] + mean) < 2e-6


def test_enumeration_and_transfer_matrix_agree() -> None:
    for target in (Ising([3, 4], 0.4, 0.1), Potts([3, 3], 3, 0.6)):
        listed, solved = exact_values(target), target.closed_form()
        assert listed is not None and solved is not None
        assert all(abs(listed[name] - solved[name]) < 1e-6 for name in solved)


def test_log_z_of_any_torus_without_a_field() -> None:
    assert abs(kaufman_log_z(2 * 0.22035, [10, 10]) - 93.612250) < 1e-6  # published, and by transfer matrix
    assert abs(kaufman_log_z(0.4406868, [10, 10]) - 93.610301) < 1e-6
    spins = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    for shape, beta in (((4, 6), 0.2), ((3, 5), 0.9), ((5, 3), 0.4407), ((7, 8), 0.01)):
        solved = transfer_matrix(beta * spins[:, None] * spins, 0 * spins, shape)
        assert solved is not None and abs(kaufman_log_z(beta, shape) - solved["log_z"]) < 1e-9
        found = Ising(list(shape), beta).closed_form()
        assert found is not None and abs(found["mean_energy"] - solved["mean_energy"]) < 1e-6
    upside_down, frustrated = Ising([4, 4], -0.6).closed_form(), Ising([3, 4], -0.6).closed_form()
    listed = exact_values(Ising([4, 4], -0.6))
    assert upside_down is not None and listed is not None and abs(upside_down["log_z"] - listed["log_z"]) < 1e-9
    assert frustrated is not None and abs(frustrated["log_z"] - exact_values(Ising([3, 4], -0.6))["log_z"]) < 1e-6
    assert (Ising([40, 60], 0.6).closed_form() or {})["log_z"] > 2400 * 2 * 0.6 and Ising(
        30, 0.4, 0.1
    ).closed_form() is None
    frozen = Ising(10, 800.0)  # two ground states, beyond the range of Kaufman's hyperbolic functions
    assert frozen.closed_form() == {
        "log_z": pytest.approx(160_000 + math.log(2)),
        "mean_energy": pytest.approx(-160_000),
    }
    assert Ising(40, 800.0).closed_form() is None


def test_laws_of_a_range_are_those_of_single_models() -> None:
    many = Ising(3, [0.2, 0.6], [0.2, 0.0])
    on = many.instances(torch.tensor([0, 5 << 20, 123_456_789_012, (1 << 40) - 1]))
    x = torch.randint(2, (4, 9), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    for k, (coupling, field) in enumerate(on.row_parameters.tolist()):  # type: ignore[union-attr]
        one = many.with_parameters(coupling=coupling, field=field)
        assert float(one.log_density(x[k]) - on.log_density(x)[k]) == pytest.approx(0, abs=1e-12)
        assert torch.allclose(one.log_ratios(x[k : k + 1]), on.select(torch.tensor([k])).log_ratios(x[k : k + 1]))
        assert torch.allclose(one.context()[0], on.context()[0][k])
    ends = many.instances(many.test_instances).row_parameters.tolist()  # type: ignore[attr-defined]
    assert ends == [[0.2, 0.2], [0.2, 0.0], [0.6, 0.2], [0.6, 0.0]]
    assert torch.equal(many.pair, Ising(3, 0.6).pair) and not Ising(3, 0.6).context()
    for wrong in ({"coupling": 0.8}, {"field": "much"}, {"size": 3}):
        with pytest.raises(UserError, match=r"outside the trained ranges.*0\.2, 0\.6"):
            many.with_parameters(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\[start, end\]"):
        Ising(3, [0.1, 0.2, 0.3])


def test_the_diagonal_of_j_only_moves_log_z() -> None:
    matrix = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with_diagonal, without = Couplings(matrix), Couplings(matrix - torch.diag(matrix.diag()))
    x = torch.randint(2, (3, 4))
    assert torch.allclose(with_diagonal.log_ratios(x), without.log_ratios(x))
    assert torch.allclose(with_diagonal.log_density(x), without.log_density(x) + matrix.diag().sum())


def test_files_of_couplings_and_networks(tmp_path) -> None:  # type: ignore[no-untyped-def]
    matrix, field = np.random.default_rng(0).normal(size=(4, 4)), np.arange(4)
    np.savez(tmp_path / "good.npz", J=matrix, h=field)
    x = torch.tensor([[0, 1, 1, 0]])
    s = np.array([-1.0, 1, 1, -1])
    assert float(read_couplings(tmp_path / "good.npz").log_density(x)) == pytest.approx(s @ matrix @ s + field @ s)
    np.save(tmp_path / "alone.npy", matrix)
    assert float(read_couplings(tmp_path / "alone.npy").log_density(x)) == pytest.approx(s @ matrix @ s)
    wrong = {
        "square": {"J": np.zeros((3, 4))}, "finite": {"J": np.full((3, 3), np.nan)},
        "must have an array J": {"h": field},
        "must be": {"J": np.zeros((3, 3)), "h": np.zeros(4)}, "real": {"J": np.zeros((3, 3), complex)},
        "at least one site": {"J": np.array(1.0)},
    }  # fmt: skip
    for said, arrays in wrong.items():
        np.savez(tmp_path / "wrong.npz", **arrays)
        with pytest.raises(UserError, match=said):
            read_couplings(tmp_path / "wrong.npz")
    (tmp_path / "junk.npz").write_text("junk")
    for missing in ("junk.npz", "nothing.npz"):
        with pytest.raises(UserError, match=missing):
            read_couplings(tmp_path / missing)
    network = EnergyNetwork(4, [8])
    save(network, tmp_path / "energy.npz")
    assert torch.equal(read_energy(tmp_path / "energy.npz").log_density(x), network.log_density(x))
    with pytest.raises(UserError, match="weight_0"):
        read_energy(tmp_path / "good.npz")


def test_taylor_ratios_are_exact_where_the_energy_is_linear() -> None:
    linear = EnergyNetwork(5, [])
    x = torch.randint(2, (3, 5))
    assert torch.allclose(taylor_ratios(linear, x), linear.log_ratios(x), atol=1e-5)
    deep = EnergyNetwork(5, [16, 16])
    with torch.no_grad():
        for weight in deep.parameters():
            weight *= 3
    assert not torch.allclose(taylor_ratios(deep, x), deep.log_ratios(x), atol=1e-3)


def test_a_users_class_needs_only_a_log_density() -> None:
    class Mine:
        levels, sites = 3, 4

        def log_density(self, x: Tensor) -> Tensor:
            return x.double().sum(-1)

    ratios = WrappedTarget(Mine()).log_ratios(torch.tensor([[0, 2, 1, 0]]))
    assert ratios[0].tolist() == [[0, 1, 2], [-2, -1, 0], [-1, 0, 1], [0, 1, 2]]


class Blocked(Target):
    """No two neighbours in a row are both 1: a law with states of no probability, which no path from noise takes."""

    def __init__(self) -> None:
        super().__init__(2, [6])

    def log_density(self, x: Tensor) -> Tensor:
        return torch.where((x[..., 1:] * x[..., :-1] > 0).any(-1), -math.inf, x.double().sum(-1))


class Mistaken(Couplings):
    """Log-ratios of other couplings."""

    def log_ratios(self, x: Tensor) -> Tensor:
        return 1.1 * super().log_ratios(x)


@pytest.mark.parametrize("target, message", [
    (Blocked(), "not finite at some state"),
    (Mistaken(h=[0.3, -1.0]), "differ by up to 0.2 from differences of log_density"),
])  # fmt: skip
def test_what_is_no_target_is_refused_before_it_is_annealed(target: Target, message: str) -> None:
    with pytest.raises(UserError, match=message):
        target.check()
    for sound in targets():
        assert sound.check().shape == (3, sound.sites)


@pytest.mark.parametrize("density", planar.DENSITIES)
def test_points_in_the_plane_are_coded(density: str) -> None:
    points = torch.from_numpy(planar.sample_density(density, 500, 0))
    scale = planar.code_scale(density)
    bits = planar.encode(points, scale)
    assert bits.shape == (500, 32) and float((decode(bits, scale) - points).abs().max()) <= 0.51 / scale
    neighbours = planar.encode(torch.tensor([[1.0, 1.0], [1.0 + 1 / scale, 1.0]], dtype=torch.float64), scale)
    assert int((neighbours[0] != neighbours[1]).sum()) == 1


def test_energy_discrepancy_learns_a_density() -> None:

    network = pretrain("moons", 40, 3e-3, 64, [64, 64], 0)
    inside = planar.encode(torch.from_numpy(planar.sample_density("moons", 500, 9)), planar.code_scale("moons"))
    noise = torch.randint(2, (500, 32), generator=torch.Generator().manual_seed(0))
    assert float(network.log_density(inside).mean() - network.log_density(noise).mean()) > 1

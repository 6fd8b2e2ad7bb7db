"""Mean values by chains of cluster moves, compared with enumeration and with Kaufman's energy."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from blackout.flows.annealing import Annealing
from blackout.flows.cluster_means import cluster_means, has_cluster_chains
from blackout.flows.targets import (
    Couplings,
    FixedComposition,
    Ising,
    Potts,
    SpinGlass,
    Target,
    enumerate_states,
    exact_values,
)


def unequal_ferromagnet() -> Couplings:
    """Return a ferromagnet of 9 spins with couplings of different strengths."""
    generator = torch.Generator().manual_seed(0)
    upper = torch.rand(9, 9, generator=generator, dtype=torch.float64).triu(1) * 0.15
    return Couplings(J=upper + upper.T)


@pytest.mark.parametrize(
    "target",
    [Ising(3, 0.44), Potts([2, 3], 3, 1.0), unequal_ferromagnet()],
    ids=["ising", "potts", "couplings"],
)
def test_cluster_means_equal_enumeration(target: Target) -> None:
    states, log_density = enumerate_states(target)
    probabilities = torch.softmax(log_density.double(), 0)
    quantities = {"energy": -log_density, **target.statistics(states)}
    values = cluster_means(target, torch.zeros(200, target.sites, dtype=torch.uint8), 200, seed=1)
    assert len(quantities) > 1
    for name, quantity in quantities.items():
        exact = float(probabilities @ quantity.double())
        error = values[f"mean_{name}_error"]
        deviation = math.sqrt(float(probabilities @ quantity.double().square()) - exact**2)
        assert abs(values[f"mean_{name}"] - exact) < 4 * error
        # 200 chains of 160 correlated states: far more precise than 200 independent states
        assert 0 < error < deviation / math.sqrt(200) / 3
        assert values[f"mean_{name}_ci_low"] < exact < values[f"mean_{name}_ci_high"]


def test_chains_far_from_equilibrium_have_no_means() -> None:
    """All values equal at the critical coupling: 4 moves do not forget this, 100 do."""
    target = Ising(24, 0.44068679)
    x = torch.zeros(256, target.sites, dtype=torch.uint8)
    assert cluster_means(target, x, 4, seed=0) == {}
    assert "mean_energy" in cluster_means(target, x, 100, seed=0)


def test_annealing_by_few_sweeps_has_means_of_its_weights(tmp_path: Path) -> None:
    Annealing(Ising(8, 0.44068679), 64, 32).run(tmp_path)
    report = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    assert report["cluster_moves"] == 0


def test_errors_of_cluster_means_are_the_spread_of_independent_runs() -> None:
    target = Ising(4, 0.44)
    x = torch.zeros(20, 16, dtype=torch.uint8)
    runs = [cluster_means(target, x, 60, seed) for seed in range(40)]
    energies = torch.tensor([run["mean_energy"] for run in runs])
    stated = torch.tensor([run["mean_energy_error"] for run in runs]).square().mean().sqrt()
    assert float(energies.std() / stated) == pytest.approx(1, abs=0.35)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Ising(3, 0.4), True),
        (Potts(3, 3, 1.0), True),
        (Ising(3, -0.4), False),
        (Ising(3, 0.4, field=0.1), False),
        (SpinGlass(3), False),
        (FixedComposition(Ising(2, 0.4), [2, 2]), False),
    ],
    ids=["ising", "potts", "antiferromagnet", "field", "spin glass", "composition"],
)
def test_cluster_chains_are_for_ferromagnets_without_a_field(
    target: Target, expected: bool
) -> None:
    assert has_cluster_chains(target) == expected


def test_annealing_reports_means_of_cluster_chains(tmp_path: Path) -> None:
    target = Ising(8, 0.44068679)
    exact = exact_values(target)
    assert exact is not None
    values = Annealing(target, 256, 64).run(tmp_path).values
    report = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    assert report["cluster_moves"] == 64
    error = values["mean_energy_error"]
    assert abs(values["mean_energy"] - exact["mean_energy"]) < 4 * error
    # 256 independent states, of which each has a standard deviation of 8.4, would give 0.53
    assert error < 0.35


def test_annealing_of_other_targets_has_means_of_its_weights(tmp_path: Path) -> None:
    Annealing(SpinGlass(3), 64, 32).run(tmp_path)
    report = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    assert report["cluster_moves"] == 0

"""The benchmarks run and write their results; times are not checked."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks import all as all_benchmarks
from benchmarks import (
    blackout_figures,
    counts,
    device_counts,
    flow_break_even,
    flow_quality,
    flow_tables,
    flows,
    permutations,
    sampling,
    scores,
    training,
)
from benchmarks.reference import ReferenceTraining, paper_network, reference_network
from blackout.diffusion.time_grids import fisher_times
from blackout.flows.annealed_importance import anneal
from blackout.flows.path import States
from blackout.flows.simulation import Paths
from blackout.flows.targets import Ising, enumerate_states, exact_values
from blackout.networks import LESite
from tests.random.chi_square import assert_distribution


@pytest.mark.deep
@pytest.mark.parametrize(
    "benchmark", [counts, training, sampling, device_counts, scores, permutations, flows]
)
def test_quick_mode_prints_a_table_and_writes_json(benchmark, tmp_path, capsys):
    benchmark.main(
        ["--quick", "--threads", "1", "--device", "cpu", "--json", str(tmp_path / "result.json")]
    )
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["machine"]["torch"] == torch.__version__ and result["machine"]["threads"] == 1
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(result["rows"])
    assert all(
        value > 0 for row in result["rows"] for value in row.values() if isinstance(value, float)
    )


@pytest.mark.deep
def test_all_benchmarks_write_one_file(tmp_path):
    all_benchmarks.main(
        ["--quick", "--threads", "1", "--device", "cpu", "--json", str(tmp_path / "result.json")]
    )
    results = json.loads((tmp_path / "result.json").read_text())
    assert list(results) == ["counts", "training", "sampling"] and all(
        part["rows"] for part in results.values()
    )


@pytest.mark.deep
@pytest.mark.parametrize("table", flow_tables.TABLES)
def test_tables_of_flows_are_printed(table, capsys):
    flow_tables.main([table, "--quick", "--threads", "1"])
    assert len(capsys.readouterr().out.splitlines()) > 3


def test_training_evaluates_energies_less_often_than_the_published_procedure(monkeypatch):
    epochs = flows.Epochs(LESite(9, 2, 8, 1, [3, 3]), Ising(3), (16, 16, 10, 20))
    rows = []
    original = Ising.log_ratios
    monkeypatch.setattr(
        Ising, "log_ratios", lambda self, x: rows.append(len(x)) or original(self, x)
    )
    num_evaluations = []
    for epoch in (epochs.training_step, epochs.as_published):
        rows.clear()
        epoch()
        num_evaluations.append(sum(rows))
    # in the paper's proportions 2.8 times
    assert num_evaluations == [16 * 16, 2 * 16 * 16 + 10 * 20]


def test_wrong_means_are_detected():
    target = Ising(3, 0.4)
    states, log_density = enumerate_states(target)
    indices = torch.multinomial(
        log_density.softmax(0), 4000, True, generator=torch.Generator().manual_seed(0)
    )
    weights = torch.zeros(4000).double()
    zeros = torch.zeros(4000).long()
    paths = Paths(States.evaluate(target, states[indices]), weights, zeros, zeros)
    assert 0.5 < flow_quality.worst_mean(target, paths) < 4
    assert (
        flow_quality.worst_mean(target, replace(paths, log_weights=-0.2 * log_density[indices])) > 8
    )


def test_the_reference_network_is_the_same_function():
    torch.manual_seed(0)
    network = paper_network(quick=True, channels_last=True).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
        x = torch.randint(0, 256, (2, 3, 32, 32))
        t = torch.tensor([0.1, 3.0], dtype=torch.float64)
        output = network(x, t)
        reference = reference_network(network)(x, t)
    assert float(output.std()) > 1e-3 and torch.allclose(output, reference, atol=1e-5, rtol=1e-4)


def test_reference_samples_are_binomial():
    x0 = torch.full((20, 3, 32, 32), 100, dtype=torch.uint8)
    step = ReferenceTraining(paper_network(quick=True, channels_last=False), x0, num_steps=10)
    torch.manual_seed(0)
    for k in (3, 5):
        samples = step.draw(torch.full((20,), k))
        assert_distribution(samples, stats.binom(100, float(torch.exp(-fisher_times(10)[k + 1]))))


def test_methods_are_rated_by_effective_samples_per_second():
    target = Ising(3, 0.2)
    rate, ess, log_z = flow_break_even.rate(
        target, lambda seed: (anneal(target, 64, 8, seed), None, None), 0.05
    )
    exact = exact_values(target)
    assert rate > 0 and 0.7 < ess < 1 and exact is not None and abs(log_z - exact["log_z"]) < 0.1


@pytest.mark.deep
def test_paths_of_the_figures_have_the_right_ends():
    """Reverse paths end in the distribution of X_0, forward paths in black and in a normal one."""
    rng = np.random.default_rng(0)
    n = 1000
    ends = {
        "gaussian": np.floor(blackout_figures.gaussian_back(n, rng)[-1] + 0.5)
        .astype(int)
        .clip(0, 8),
        "pure death": blackout_figures.death_back(n)[-1],
    }
    for name, end in ends.items():
        counts_of_levels = np.bincount(end, minlength=9)
        assert stats.chisquare(counts_of_levels, n * blackout_figures.P0).pvalue > 1e-3, name
    assert not blackout_figures.death_forward(n, rng)[-1].any()
    final_state = 2 * (blackout_figures.gaussian_forward(n, rng)[-1] + 0.5) / 9 - 1
    assert stats.kstest(final_state, "norm").pvalue > 1e-3
    places = np.linspace(-40, 50, 4001)
    mass = blackout_figures.gaussian_density(places)[[0, 500, 1000]].sum(1) * (
        places[1] - places[0]
    )
    assert np.allclose(mass / mass[1], 1, atol=0.02)

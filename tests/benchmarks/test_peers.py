"""Judges and reference samplers of the comparisons with other libraries."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.peers import (
    cell_numbers,
    cells,
    energies,
    images,
    lattice,
    layouts,
    posteriors,
    processes,
)
from benchmarks.peers.budget import WARMUP_SHARE, Budget, lr_factor, train
from benchmarks.peers.comparison import (
    Judgement,
    choose,
    image_options,
    images_of,
    independent_pixels,
    resampled_images,
    summarise,
    train_in_turns,
    with_steps_of,
)
from benchmarks.peers.judges import Judge, auc, auc_with_error, two_sample_auc
from benchmarks.peers.results import describe_command, markdown
from blackout.data import digits
from blackout.flows.targets import Ising, exact_values


@pytest.fixture(scope="module")
def data():
    return digits()


@pytest.fixture(scope="module")
def judge(data):
    return Judge(data, steps=150)


def test_the_classifier_knows_digits_and_prefers_them_to_independent_pixels(data, judge):
    test = images_of(data, "test")
    train = images_of(data, "train")
    pixels = independent_pixels(train, len(test), seed=0)
    assert judge.accuracy(test, data.test_labels) > 0.9
    assert judge.recognised(test) > judge.recognised(pixels) + 0.2
    assert judge.frechet(test, test) < 1e-6
    assert judge.frechet(train[: len(test)], test) < judge.frechet(pixels, test) / 3


def test_independent_pixels_have_the_training_distribution_of_every_pixel(data):
    train = images_of(data, "train").double()
    pixels = independent_pixels(images_of(data, "train"), 4000, seed=0).double()
    error = train.std(0) / math.sqrt(4000)
    assert bool(((pixels.mean(0) - train.mean(0)).abs() <= 5 * error + 1e-12).all())


def test_auc_counts_pairs():
    positive = np.array([3.0, 2.0, 2.0])
    negative = np.array([1.0, 2.0])
    pairs = [(p > n) + (p == n) / 2 for p in positive for n in negative]
    assert auc(positive, negative) == pytest.approx(np.mean(pairs))


def test_the_block_error_of_auc_is_its_spread():
    rng = np.random.default_rng(0)
    values, errors = zip(
        *(auc_with_error(rng.normal(0.5, 1, 200), rng.normal(0, 1, 200)) for _ in range(200)),
        strict=True,
    )
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.25)


@pytest.mark.deep
def test_a_forest_tells_pixels_from_digits_and_not_digits_from_digits(data):
    test = images_of(data, "test")
    train = images_of(data, "train")
    same, error = two_sample_auc(resampled_images(train, len(test), 0), test)
    assert abs(same - 0.5) < 5 * error
    assert two_sample_auc(independent_pixels(train, len(test), 0), test)[0] > 0.9


def test_the_learning_rate_rises_and_falls_to_zero():
    assert lr_factor(0) == 0 and lr_factor(1) == pytest.approx(0)
    assert lr_factor(WARMUP_SHARE / 2) == pytest.approx(0.5, abs=0.01)
    assert 0.99 < lr_factor(WARMUP_SHARE) <= 1
    assert lr_factor(0.5) > lr_factor(0.9) > 0


def test_a_budget_of_steps_does_not_depend_on_seconds(data):
    generator = processes.entries(1e-9, 1e-3)[0].make(0)
    assert train(generator, data, Budget(1e-9, 1e-3, steps=3), seed=0) == 3


def test_errors_of_a_summary_are_those_of_trainings_or_of_the_judge():
    runs = [
        {"method": "a", "evaluations": 5, "score": value, "score block error": 0.1}
        for value in (1.0, 3.0)
    ]
    (row,) = summarise(runs, ["score"])
    assert row["score"] == 2 and row["score error"] == 1
    (single,) = summarise(runs[:1], ["score"])
    assert single["score error"] == pytest.approx(0.1)
    assert "2.00 ± 1.00" in markdown([row])


def test_added_trainings_keep_the_first_runs_and_settings(data, judge, tmp_path, capsys):
    file = tmp_path / "results.json"
    words = ["--seconds", "0.3", "--num_samples", "40", "--json", str(file)]
    judgement = Judgement(data, judge, 40, (4,))
    tried = [processes.entries(0.3, lr)[0] for lr in processes.LEARNING_RATES]
    trials = [
        {"method": "pure death", "settings": "", "lr": entry.budget.lr, "distance": distance}
        for entry, distance in zip(tried, (2.0, 1.0), strict=True)
    ]
    first = image_options("processes", "", (60, 10), [*words, "--trainings", "1"])
    train_in_turns(first, "digits", [], trials, judgement)
    before = json.loads(file.read_text(encoding="utf-8"))
    options = image_options("processes", "", (60, 10), ["--add", "2", "--json", str(file)])
    assert (options.seconds, options.num_samples, options.trainings) == (0.3, 40, 3)
    best, repeated = choose(tried, judgement, before)
    assert best is tried[1] and repeated == trials
    runs = [{"method": f"pure death, {name}", "steps": 7} for name in best.samplers]
    assert with_steps_of(best, runs).budget == replace(best.budget, steps=7)
    train_in_turns(options, "digits", [], repeated, judgement)
    after = json.loads(file.read_text(encoding="utf-8"))
    assert after["runs"][: len(before["runs"])] == before["runs"]
    assert sorted({run["training"] for run in after["runs"]}) == [0, 1, 2]
    assert after["command"] == before["command"] and after["trainings"] == 3
    (added,) = after["added"]
    assert added["trainings"] == [1, 2] and added["command"].endswith("processes --add 2")


def test_cells_of_two_trainings_have_none_in_common():
    table = np.arange(cell_numbers.NUM_TEST_CELLS + 2 * max(cell_numbers.NUMBERS))
    few, many = (cell_numbers.training_cells(table, 0, n) for n in (100, 3000))
    other = cell_numbers.training_cells(table, 1, 3000)
    assert set(few) < set(many) and len(few) == 100 and len(other) == 3000
    assert not set(many) & set(other)
    assert not (set(many) | set(other)) & set(table[: cell_numbers.NUM_TEST_CELLS])


@pytest.mark.parametrize("coupling", [0.2, lattice.CRITICAL_COUPLING, 0.7])
def test_kaufmans_formula_equals_enumeration(coupling):
    states = np.array(list(itertools.product([-1, 1], repeat=16)), dtype=np.int8)
    bonds = lattice.bond_sum(states.reshape(-1, 4, 4))
    weights = np.exp(coupling * bonds)
    assert lattice.exact_log_z(coupling, 4) == pytest.approx(math.log(weights.sum()), abs=1e-9)
    mean_energy = -coupling * (weights @ bonds) / weights.sum()
    assert lattice.exact_mean_energy(coupling, 4) == pytest.approx(mean_energy, abs=1e-5)
    deviation = math.sqrt(coupling**2 * (weights @ bonds**2) / weights.sum() - mean_energy**2)
    assert lattice.exact_energy_deviation(coupling, 4) == pytest.approx(deviation, rel=1e-4)


def test_the_critical_16x16_model_has_the_same_log_z_in_both_codes():
    exact = exact_values(Ising(16, lattice.CRITICAL_COUPLING))
    assert lattice.exact_log_z(lattice.CRITICAL_COUPLING, 16) == pytest.approx(238.642, abs=1e-3)
    assert exact["log_z"] == pytest.approx(238.642, abs=1e-3)
    energy = lattice.exact_mean_energy(lattice.CRITICAL_COUPLING, 16)
    assert exact["mean_energy"] == pytest.approx(energy, abs=1e-3)


@pytest.mark.parametrize("moves", [lattice.gibbs_sweep, lattice.swendsen_wang_sweep])
def test_reference_annealing_estimates_log_z_and_the_energy(moves):
    log_weights, values = lattice.anneal(moves, 0.4, 4, chains=1000, sweeps=60, seed=0)
    weights = np.exp(log_weights - log_weights.max())
    log_z = log_weights.max() + math.log(weights.mean())
    error = weights.std() / weights.mean() / math.sqrt(len(weights))
    assert abs(log_z - lattice.exact_log_z(0.4, 4)) < 4 * error
    mean = weights @ values / weights.sum()
    residual = weights * (values - mean)
    energy_error = math.sqrt((residual**2).sum()) / weights.sum()
    assert abs(mean - lattice.exact_mean_energy(0.4, 4)) < 4 * energy_error


def test_cluster_chains_have_the_exact_mean_energy():
    energy, error = lattice.swendsen_wang_energy(0.4, 4, chains=100, sweeps=120, seed=0)
    assert abs(energy - lattice.exact_mean_energy(0.4, 4)) < 4 * error


def test_ranks_of_the_right_posterior_cover_and_narrow_draws_do_not():
    rng = np.random.default_rng(0)
    rates = rng.gamma(2.0, 1.0, (300, 20))
    truths = torch.from_numpy(rng.poisson(rates))
    right = torch.from_numpy(rng.poisson(rates, (9, 300, 20)))
    narrow = torch.from_numpy(rates).round().expand(9, -1, -1)
    for level in posteriors.LEVELS:
        share, error = posteriors.coverage(posteriors.uniform_ranks(truths, right), level)
        assert abs(share - level) < 4 * error
        share, error = posteriors.coverage(posteriors.uniform_ranks(truths, narrow), level)
        assert share < level - 4 * error


def test_draws_of_training_images_follow_the_likelihood(data):
    train = images_of(data, "train")
    for task in posteriors.make_tasks():
        draws, effective = posteriors.training_draws(train[:50], task, train[:3], 4)
        assert draws.shape == (4, 3, 1, 8, 8) and 1 <= effective <= 50
        if task.matching is not None:  # half of the pixels identifies the image
            assert bool((draws == train[:3]).all())


def test_recorded_commands_name_no_files():
    words = ["--seconds", "2", "--json", "/a/b.json", "--model", "/a/run"]
    assert describe_command("python -m x", words) == "python -m x --seconds 2 --model <run>"


def test_a_table_of_images_has_one_row_per_method():
    scores = {"Fréchet distance error": None, "forest AUC": 0.6, "forest AUC error": 0.1}
    rows = [
        {"method": method, "evaluations": number, "Fréchet distance": distance, **scores}
        for method, number, distance in (
            ("a", 10, 3.0),
            ("a", 25, 2.0),
            ("training images", None, 1.0),
            ("independent pixels", None, 9.0),
        )
    ]
    table = layouts.image_rows(rows)
    assert [row["method"] for row in table] == ["training images", "a", "independent pixels"]
    assert [(row["FD @10"], row["FD @25"]) for row in table] == [(1, 1), (3, 2), (9, 9)]
    assert all(row["AUC @25 error"] == 0.1 for row in table)


def test_the_crps_is_that_of_its_distribution():
    # of a point mass it is the distance, and of independent fair coins E|X - x| - E|X - X'| / 2
    assert float(posteriors.crps(torch.tensor([3]), torch.tensor([[1], [1]]))) == 2
    coins = torch.randint(2, (2000, 1), generator=torch.Generator().manual_seed(0))
    expected = float((coins.double() - 1).abs().mean()) - 0.25
    assert float(posteriors.crps(torch.tensor([1]), coins)) == pytest.approx(expected, abs=1e-3)
    # two draws of the right distribution have the right score in the mean: no bias by the number
    rng = np.random.default_rng(0)
    truths, draws = (
        torch.from_numpy(rng.poisson(4, 4000)),
        torch.from_numpy(rng.poisson(4, (2, 4000))),
    )
    many = torch.from_numpy(rng.poisson(4, (50, 4000)))
    few_scores = posteriors.crps(truths, draws)
    difference = few_scores - posteriors.crps(truths, many)
    assert abs(float(difference.mean())) < 4 * float(difference.std()) / math.sqrt(4000)


@pytest.mark.deep
@pytest.mark.parametrize("command", [images, processes, cells, cell_numbers, energies, posteriors])
def test_every_command_writes_its_results(command, tmp_path, capsys):
    if command in (images, processes):
        pytest.importorskip("torchcfm")
    if command is images:
        pytest.importorskip("diffusers")
        pytest.importorskip("flow_matching")
    file = tmp_path / "results.json"
    command.main(["--quick", "--json", str(file)])
    results = json.loads(file.read_text(encoding="utf-8"))
    assert results["rows"] and results["machine"]["quick"] and results["packages"]["torch"]
    assert results["command"].startswith("python -m benchmarks.peers.")
    assert markdown(results["rows"]) in capsys.readouterr().out

"""Estimates of p(known) of short vectors are right to 5 % with the default steps and particles."""

import json

import numpy as np
import pytest

from benchmarks.known_probability import RESULTS, estimate, grid_of_model, known_cases, main, toys
from blackout.diffusion.draw import SHORT_VECTOR_INPAINTING
from blackout.diffusion.particles import Particles


def test_cases_are_conditional_distributions():
    toy, num_known = toys()[0]
    data, probability, conditionals = known_cases(toy, num_known, 3)
    assert np.allclose(conditionals.sum(1), 1)
    cube = toy.p0.reshape(4, 4, 4, 4)
    assert np.allclose(probability, [cube[tuple(x[:2])].sum() for x in data.tolist()])
    times = grid_of_model(toy, 13)
    assert len(times) == 14 and bool((times.diff() > 0).all())


@pytest.mark.deep
def test_the_defaults_of_short_vectors_estimate_the_probability_to_five_per_cent():
    toy, num_known = toys()[0]
    particles = Particles(SHORT_VECTOR_INPAINTING["inpainting_particles"])
    steps = SHORT_VECTOR_INPAINTING["num_steps"]
    row = estimate(toy, num_known, steps, particles, 4, 3000)
    assert row["worst"] < 0.05 + 2 * row["noise"] and row["noise"] < 0.03
    coarse = estimate(toy, num_known, 8, particles, 4, 3000)
    assert coarse["worst"] > 0.1


def test_the_results_have_the_defaults_within_five_per_cent():
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    default = [row for row in rows if row["steps"] == SHORT_VECTOR_INPAINTING["num_steps"]]
    assert len(default) == len(toys()) and max(row["worst"] for row in default) < 0.05


@pytest.mark.deep
def test_quick_mode_writes_rows(tmp_path, capsys):
    main(["--quick", "--json", str(tmp_path / "quick.json")])
    assert len(json.loads((tmp_path / "quick.json").read_text())["rows"]) == 2 * len(toys())
    capsys.readouterr()

"""Matrices that are no generator or Markov chain are refused in one line, before training."""

import numpy as np
import pytest

from tests.cli.conftest import TINY

pytestmark = pytest.mark.deep

LEVELS = 17


def good(size=LEVELS):
    rates = np.random.default_rng(0).random((size, size))
    np.fill_diagonal(rates, 0.0)
    return rates - np.diag(rates.sum(1))


def changed(i, j, value):
    matrix = good()
    matrix[i, j] = value
    return matrix


WRONG = {
    "a negative rate": (changed(3, 4, -1.0), "[3, 4]"),
    "rows that do not sum to zero": (changed(5, 5, 0.0), "row 5"),
    "not square": (good()[:5], "(5, 17)"),
    "too few states": (good(9), "counts 0..16"),
    "a prior that is not reached": (1e-3 * good(), "never reach the prior"),
    "no jumps at all": (0 * good(), "never reach the prior"),
    "two worlds": (np.kron(np.eye(2), good(9)), "never reach the prior"),
}


@pytest.mark.parametrize("name", WRONG)
def test_generators(run, tmp_path, name):
    matrix, word = WRONG[name]
    np.save(tmp_path / "q.npy", matrix)
    arguments = ["process=generator", f"process.matrix={tmp_path / 'q.npy'}", "trainer.max_steps=2"]
    run("train", *TINY, *arguments, f"runs_dir={tmp_path / 'runs'}").assert_refused("process", word)
    assert not (tmp_path / "runs").exists()


SETTINGS = [
    (["process=generator"], "matrix"),
    (["process=generator", "process.matrix=/nowhere.npy"], "/nowhere.npy"),
    (["process=discrete", "process.matrix=/nowhere.npy"], "/nowhere.npy"),
    (["process=ordinal", "process.width=-1"], "width"),
    (["process=birth_death", "process.mean=-3"], "mean"),
    (["process=discrete_uniform", "sampler.num_steps=101"], "100"),
    (["process=uniform", "loss=likelihood"], "does not fit"),
    (["process=uniform", "head=scaled"], "does not fit"),
    (["process=uniform", "sampler=poisson"], "does not fit"),
    (["sampler=level_bridge"], "distribution over levels"),
]


@pytest.mark.parametrize("arguments, word", SETTINGS)
def test_other_settings(run, tmp_path, arguments, word):
    tiny = [
        option
        for option in TINY
        if option.split("=")[0] not in {a.split("=")[0] for a in arguments}
    ]
    run(
        "train", *tiny, *arguments, "trainer.max_steps=2", f"runs_dir={tmp_path / 'runs'}"
    ).assert_refused(word)


def test_a_generator_travels_with_its_model(run, tmp_path):
    np.save(tmp_path / "q.npy", good())
    arguments = [
        "process=generator",
        f"process.matrix={tmp_path / 'q.npy'}",
        "trainer.max_steps=2",
        "run_id=a",
    ]
    assert run("train", *TINY, *arguments, f"runs_dir={tmp_path}").code == 0
    (tmp_path / "q.npy").unlink()
    model = next(tmp_path.glob("*/a/model"))
    outcome = run("sample", f"ckpt={model}", "num_samples=2", f"out={tmp_path / 'out'}")
    assert outcome.code == 0, outcome.err
    assert np.load(tmp_path / "out" / "samples.npz")["samples"].max() <= 16


# of `sample.py`, and a word of why they are refused
OTHER_SAMPLERS = {
    "birth_death": {
        "sampler=poisson": "does not fit",
        "sampler=trapezoidal": "does not fit",
        "sampler=binomial_bridge": "not fit",
    },
    "absorbing": {
        "sampler=poisson": "does not fit the process Absorbing",
        "sampler/grid=logit sampler.grid.last=0": "never reach the prior",
    },
    "ordinal": {
        "sampler=trapezoidal": "does not fit",
        "sampler=birth_death_bridge": "does not fit",
    },
    "discrete_absorbing": {
        "sampler=tau_leap sampler.num_steps=9": "does not fit",
        "sampler/grid=logit": "whole numbers",
    },
}


@pytest.mark.parametrize(
    "process",
    [
        "absorbing",
        *(pytest.param(p, marks=pytest.mark.deep) for p in OTHER_SAMPLERS if p != "absorbing"),
    ],
)
def test_every_process_trains_samples_and_is_scored(run, tmp_path, process):
    assert (
        run(
            "train",
            *TINY,
            f"process={process}",
            "trainer.max_steps=2",
            f"runs_dir={tmp_path}",
            "run_id=a",
        ).code
        == 0
    )
    run_directory = next(tmp_path.glob("*/a"))
    assert (run_directory / "samples" / "final.png").exists()
    outcome = run("sample", f"ckpt={run_directory}", "num_samples=2", f"out={tmp_path / 'out'}")
    assert outcome.code == 0, outcome.err
    samples = np.load(tmp_path / "out" / "samples.npz")["samples"]
    assert samples.dtype == np.uint8 and samples.max() <= 16
    for arguments, word in OTHER_SAMPLERS[process].items():
        refused = run(
            "sample",
            f"ckpt={run_directory}",
            "num_samples=2",
            f"out={tmp_path / 'no'}",
            *arguments.split(),
        )
        refused.assert_refused("sampler", word)
    assert not (tmp_path / "no").exists()

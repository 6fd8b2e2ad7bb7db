"""Every process is trained, sampled with and without correctors, and scored by one command."""

import json

import numpy as np
import pytest

from tests.cli.conftest import TINY


def deep(*processes):
    return [pytest.param(process, marks=pytest.mark.deep) for process in processes]


@pytest.mark.deep
@pytest.mark.parametrize(
    "process", ["uniform", *deep("birth_death", "absorbing", "ordinal", "discrete_absorbing")]
)
def test_training_ends_well(run, tmp_path, process):
    tiny = [option for option in TINY if "val_check" not in option]
    arguments = [f"process={process}", "trainer.max_steps=20", "trainer.val_check_interval=20"]
    outcome = run("train", *tiny, *arguments, f"runs_dir={tmp_path}", "run_id=a")
    assert outcome.code == 0, outcome.err
    run_directory = next(tmp_path.glob("*/a"))
    assert (run_directory / "samples" / "final.png").exists()
    values = json.loads((run_directory / "metrics.json").read_text())["values"]
    assert 0 < values["val/bits_per_dim"] < 40


@pytest.mark.deep
@pytest.mark.parametrize("process", ["birth_death", *deep("uniform", "absorbing", "ordinal")])
def test_correctors_of_every_process_are_sampled(run, tmp_path, process):
    """With as many evaluations more as there are corrections, and other samples for it."""
    outcome = run(
        "train",
        *TINY,
        f"process={process}",
        "trainer.max_steps=2",
        f"runs_dir={tmp_path}",
        "run_id=a",
    )
    assert outcome.code == 0, outcome.err
    samples = {}
    for steps in (0, 2):
        ckpt, out = next(tmp_path.glob("*/a")), tmp_path / str(steps)
        outcome = run(
            "sample",
            f"ckpt={ckpt}",
            "num_samples=4",
            f"out={out}",
            f"sampler.correction.steps={steps}",
        )
        assert outcome.code == 0, outcome.err
        assert f"{8 + 7 * steps} network evaluations" in outcome.out
        samples[steps] = np.load(out / "samples.npz")["samples"]
    assert samples[2].max() <= 16 and (samples[0] != samples[2]).any()
    bound = run(
        "sample", f"ckpt={ckpt}", "num_samples=4", "evaluate=true", "likelihood.finite_steps=4"
    )
    bound.assert_refused("likelihood.finite_steps", "pure death")


REFUSED = {
    "rates of a chain": (
        ["process=discrete_uniform", "sampler.num_steps=8", "sampler.correction.steps=1"],
        "no rates",
    ),
    "a distribution of levels of an endless process": (
        ["process=birth_death", "head=levels", "loss=cross_entropy", "sampler=level_bridge"],
        "finitely many",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_cannot_work_are_refused(run, tmp_path, name):
    arguments, word = REFUSED[name]
    tiny = [
        option
        for option in TINY
        if option.split("=")[0] not in {a.split("=")[0] for a in arguments}
    ]
    run(
        "train", *tiny, *arguments, "trainer.max_steps=2", f"runs_dir={tmp_path / 'runs'}"
    ).assert_refused(word)
    assert not (tmp_path / "runs").exists()


def rows(matrix):
    return matrix / matrix.sum(-1, keepdims=True)


def wrong(matrix, i, j, change):
    matrix[i, j] += change
    return matrix


POSITIVE = rows(np.random.default_rng(0).random((17, 17)) + 0.5)
CHAINS = {
    "rows that do not sum to one": (wrong(POSITIVE.copy(), 2, 3, 0.1), "row 2"),
    "a negative probability": (wrong(wrong(POSITIVE.copy(), 2, 3, -0.5), 2, 4, 0.5), "negative"),
    "as many steps as it has not": (np.stack([POSITIVE] * 7), "num_steps=20"),
    "steps of the wrong shape": (POSITIVE[:5], "(5, 17)"),
    "a prior that is not reached": (np.eye(17), "never reach the prior"),
    "too few states": (rows(POSITIVE[:9, :9]), "counts 0..16 need at least 17 states, not 9"),
}


@pytest.mark.parametrize("name", CHAINS)
def test_matrices_that_are_no_markov_chains_are_refused(run, tmp_path, name):
    matrix, word = CHAINS[name]
    np.save(tmp_path / "p.npy", matrix)
    tiny = [option for option in TINY if "num_steps" not in option]
    arguments = ["process=discrete", "process.num_steps=20", f"process.matrix={tmp_path / 'p.npy'}"]
    run("train", *tiny, *arguments, f"runs_dir={tmp_path / 'runs'}").assert_refused("process", word)
    assert not (tmp_path / "runs").exists()

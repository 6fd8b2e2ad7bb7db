"""Sample k depends on seed and k alone, not on the other samples or their order."""

import numpy as np
import pytest

from tests.cli.conftest import TINY


@pytest.fixture
def draw(run, tmp_path):
    assert run("train", *TINY, "trainer.max_steps=2", f"runs_dir={tmp_path}", "run_id=a").code == 0

    def draw(*arguments):
        outcome = run("sample", f"ckpt={tmp_path / 'digits/a'}", "seed=5", *arguments)
        assert outcome.code == 0, outcome.err
        return np.load(outcome.folder / "samples.npz")["samples"]

    return draw


@pytest.mark.deep
def test_samples_are_drawn_again_by_index_bit_for_bit(draw):
    all_samples = draw("num_samples=40", "sampler.batch_size=16")
    selected = draw("num_samples=40", "sampler.batch_size=16", "indices=[37,3,17]")
    assert np.array_equal(selected, all_samples[[37, 3, 17]])
    assert len(np.unique(all_samples.reshape(40, -1), axis=0)) == 40


@pytest.mark.deep
def test_indices_beyond_num_samples_are_drawn_and_bad_ones_refused(run, draw, tmp_path):
    assert np.array_equal(draw("indices=[4242,1]")[1], draw("num_samples=64")[1])
    for bad in ("[-1]", "[]", "[1.5]", "7", "[a]"):
        run("sample", f"ckpt={tmp_path / 'digits/a'}", f"indices={bad}").assert_refused("indices")
    run("sample", f"ckpt={tmp_path / 'digits/a'}", "indices=[1]", "evaluate=true").assert_refused(
        "indices"
    )

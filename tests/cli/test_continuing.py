"""Settings that may change when a run is continued."""

import numpy as np
import pytest
import yaml

from blackout.training.checkpoint_files import read_checkpoint, write_checkpoint
from blackout.training.optimization import ema_decay
from tests.cli.conftest import TINY
from tests.killed import outcome

# with the learning rate of the digits recipe, whose cosine ends at `trainer.max_steps`
TIED = [option for option in TINY if not option.startswith("optimizer.decay")]


def weights(run_directory):
    return read_checkpoint(run_directory / "checkpoints/last.ckpt")["state_dict"]


@pytest.mark.deep
def test_a_run_may_grow_and_be_scored_otherwise(run, tmp_path):
    run_settings = [f"runs_dir={tmp_path}", "run_id=a"]
    assert run("train", *TIED, "trainer.max_steps=2", "metrics=none", *run_settings).code == 0
    grown = run("train", *TIED, "trainer.max_steps=4", "metrics.scores=[fd]", *run_settings)
    assert grown.code == 0, grown.err
    assert read_checkpoint(tmp_path / "digits/a/checkpoints/last.ckpt")["global_step"] == 4
    run("train", *TIED, "trainer.max_steps=4", "ema_half_life=1000", *run_settings).assert_refused(
        "ema_half_life"
    )
    run("train", *TIED, "trainer.max_steps=4", "flip=true", *run_settings).assert_refused("flip")


def test_a_run_that_is_extended_is_the_longer_run(run, tmp_path):
    """Weights, samples, model and metrics.csv agree, except for scores of the shorter run."""
    options = [
        *(o for o in TINY if not o.startswith("trainer.val_check")),
        "trainer.val_check_interval=3",
    ]
    for run_id, steps in (("whole", 6), ("cut", 4), ("cut", 6)):
        done = run(
            "train",
            *options,
            f"trainer.max_steps={steps}",
            f"runs_dir={tmp_path}",
            f"run_id={run_id}",
        )
        assert done.code == 0, done.err
    cut, longer = (outcome(tmp_path / "digits" / name) for name in ("cut", "whole"))
    cut_rows, whole_rows = (result.pop("metrics") for result in (cut, longer))
    assert cut == longer
    added = {
        row["step"]: row.keys() - longer_row.keys()
        for row, longer_row in zip(cut_rows, whole_rows, strict=True)
    }
    assert [
        {name: row[name] for name in longer_row}
        for row, longer_row in zip(cut_rows, whole_rows, strict=True)
    ] == whole_rows
    assert {step for step, names in added.items() if names} == {
        "4"
    } and "test/bits_per_dim" in added["4"]


@pytest.mark.deep
def test_another_instruction_set_is_warned_of(run, tmp_path):
    options = [*TINY, f"runs_dir={tmp_path}", "run_id=a", "metrics=none"]
    assert run("train", *options, "trainer.max_steps=2").code == 0
    last = tmp_path / "digits/a/checkpoints/last.ckpt"
    checkpoint = read_checkpoint(last)
    checkpoint["made_with"]["instruction set"] = "ABACUS"
    write_checkpoint(checkpoint, last)
    continued = run("train", *options, "trainer.max_steps=3")
    assert (
        continued.code == 0
        and "not continued bit for bit: instruction set ABACUS -> " in continued.err
    )


@pytest.mark.deep
def test_a_single_sample_is_trained_on(run, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(16).reshape(1, 1, 4, 4))
    data = [
        "dataset=counts",
        f"dataset.path={tmp_path / 'x.npy'}",
        "metrics=none",
        "trainer.max_steps=2",
    ]
    assert run("train", *TINY, *data, f"runs_dir={tmp_path}", "run_id=a").code == 0
    assert run("sample", f"ckpt={tmp_path / 'x/a'}", "num_samples=2").code == 0


@pytest.mark.deep
def test_a_half_life_in_images_does_not_depend_on_the_batch(run, tmp_path):
    options = [option for option in TINY if not option.startswith("batch_size")]
    settings = (
        "batch_size=64",
        "ema_half_life=128",
        "trainer.max_steps=1",
        f"runs_dir={tmp_path}",
        "run_id=a",
    )
    assert run("train", *options, *settings).code == 0
    config = yaml.safe_load((tmp_path / "digits/a/config.yaml").read_text())
    decay = ema_decay(config)
    assert decay == 0.5**0.5 and ema_decay({**config, "batch_size": 32}) ** 2 == pytest.approx(
        decay, rel=1e-15
    )
    run("train", *TINY, "ema_half_life=-1", f"runs_dir={tmp_path}").assert_refused("ema_half_life")

"""A bug in a user's component keeps its traceback; what settings can fix is one line."""

import pytest

from tests.cli.conftest import TINY

HERE = "tests.cli.user_components"
BUGS = {
    "network": ([f"network.body._target_={HERE}.ForgottenKey"], KeyError, "network"),
    "layer": (
        ["~network.body", f"+network.body={{_target_: {HERE}.WrongLayer}}"],
        RuntimeError,
        "network",
    ),
    "loss": (["~loss", f"+loss={{_target_: {HERE}.BuggyLoss}}"], TypeError, "loss"),
    "kernel": ([f"sampler.kernel._target_={HERE}.BuggyKernel"], AttributeError, "sampler"),
    "dataset": (
        ["~dataset", f"+dataset={{_target_: {HERE}.empty_dataset}}"],
        IndexError,
        "dataset",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_keeps_its_traceback_and_names_the_component(run, tmp_path, name):
    arguments, kind, component = BUGS[name]
    with pytest.raises(kind) as bug:
        run("train", *TINY, *arguments, "trainer.max_steps=2", f"runs_dir={tmp_path}")
    assert any("user_components.py" in str(entry.path) for entry in bug.traceback)
    assert any(f"`{component}" in note for note in bug.value.__notes__)
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_loss_that_follows_the_protocol_trains(run, tmp_path):
    loss = ["~loss", f"+loss={{_target_: {HERE}.ProtocolLoss}}"]
    outcome = run("train", *TINY, *loss, "trainer.max_steps=2", f"runs_dir={tmp_path}")
    assert outcome.code == 0, outcome.err


def test_a_component_may_refuse_a_setting_in_its_own_words(run, tmp_path):
    loss = ["~loss", f"+loss={{_target_: {HERE}.CarefulLoss, power: -1}}"]
    run("train", *TINY, *loss, f"runs_dir={tmp_path}").assert_refused("loss.power")


def test_debugging_shows_the_traceback_of_a_refusal(run, tmp_path, monkeypatch):
    monkeypatch.setenv("BLACKOUT_DEBUG", "1")
    outcome = run("train", *TINY, "batch_size=0", f"runs_dir={tmp_path}")
    assert outcome.code == 2 and "Traceback" in outcome.err and "error: dataset" in outcome.err

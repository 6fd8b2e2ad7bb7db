"""Long runs hold no more than short ones."""

import pytest

from blackout import load_model
from tests.cli.conftest import TINY, run  # noqa: F401  (a fixture)
from tests.soak.callbacks import live_tensors


@pytest.mark.deep
def test_no_tensor_outlives_its_step(run, tmp_path):  # noqa: F811
    # at the same point of two validation intervals, late enough that everything has been used
    target = "tests.soak.callbacks.LiveTensors"
    counter = f"{{_target_: {target}, path: {tmp_path / 'alive'}, steps: [33, 57]}}"
    options = [
        "trainer.max_steps=60",
        "trainer.val_check_interval=6",
        "trainer.log_every_n_steps=1",
    ]
    outcome = run(
        "train", *TINY, *options, f"+callbacks.memory={counter}", f"runs_dir={tmp_path}", "run_id=a"
    )
    assert outcome.code == 0, outcome.err
    early, late = (int(line) for line in (tmp_path / "alive").read_text().splitlines())
    assert late <= early

    module = load_model(tmp_path / "digits/a")
    alive = {}

    def count(k, xt, prediction):
        if k in (2, 6):
            alive[k] = live_tensors()

    module.sample(4, 0, callback=count)
    assert alive[2] <= alive[6]

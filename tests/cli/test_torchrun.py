"""`torchrun sample.py` shares the work among processes and changes nothing."""

import json

import pytest

from tests import processes
from tests.cli.conftest import TINY


@pytest.mark.deep
def test_two_processes_draw_and_score_the_same_samples_as_one(run, tmp_path):
    assert run("train", *TINY, "trainer.max_steps=2", f"runs_dir={tmp_path}", "run_id=a").code == 0
    options = [
        f"ckpt={tmp_path / 'digits/a'}",
        "num_samples=70",
        "sampler.batch_size=16",
        "sampler.num_steps=5",
    ]
    options += [
        "evaluate=true",
        "metrics=digits",
        "metrics.scores=[fd,is,prdc,classes]",
        "likelihood.images=300",
        "likelihood.repeats=1",
        "seeds=2",
        "device=cpu",
    ]
    alone = run("sample", *options, f"out={tmp_path / 'one'}")
    assert alone.code == 0, alone.err
    shared = processes.run_distributed("sample", *options, f"out={tmp_path / 'two'}")
    assert shared.returncode == 0, shared.stderr
    assert shared.stdout.count("70 samples") == 1
    for file in ("samples.npz", "grid.png"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    single_process, two_processes = (
        json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("one", "two")
    )
    # sums over samples are added in another order
    assert two_processes["values"] == pytest.approx(single_process["values"], rel=1e-6)
    assert two_processes["likelihood"]["test"] == {
        name: pytest.approx(single_process["likelihood"]["test"][name], rel=1e-9)
        for name in ("continuous", "ends")
    }

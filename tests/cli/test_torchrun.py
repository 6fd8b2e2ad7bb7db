"""`torchrun sample.py` shares the work among processes and changes nothing."""

import json
import subprocess
import sys

import pytest

from tests.cli.conftest import ROOT, TINY


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
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        ROOT / "sample.py",
    ]
    shared = subprocess.run(
        [*command, *options, f"out={tmp_path / 'two'}"], capture_output=True, text=True, cwd=ROOT
    )
    assert shared.returncode == 0, shared.stderr
    assert shared.stdout.count("70 samples") == 1
    for file in ("samples.npz", "grid.png"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    single_process, two_processes = (
        json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("one", "two")
    )
    assert two_processes["values"] == pytest.approx(single_process["values"], rel=1e-9)
    assert two_processes["likelihood"]["test"] == {
        name: pytest.approx(single_process["likelihood"]["test"][name], rel=1e-12)
        for name in ("continuous", "ends")
    }

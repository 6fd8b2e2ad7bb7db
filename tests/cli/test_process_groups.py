"""Processes that train together leave their group before they end, and meet anew in each job."""

import csv
import signal
import sys

import pytest

from tests import processes
from tests.cli.conftest import TINY

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(sys.platform != "linux", reason="threads are listed in /proc"),
]

TWO = ("trainer.accelerator=cpu", "trainer.devices=2", "trainer.strategy=ddp", "metrics=none")
GROUP_THREADS = ("gloo", "tcpstore")  # parts of the names of the threads of a process group


def train(folder, *settings, launch=processes.run_distributed):
    """Train in two processes; return the outcome, and the group's threads alive at their exit."""
    folder.mkdir()
    threads = (
        f"+callbacks.threads={{_target_: tests.soak.callbacks.ThreadsAtExit, folder: {folder}}}"
    )
    words = (*TINY, *TWO, "trainer.max_steps=4", threads, f"runs_dir={folder}")
    outcome = launch("train", *settings, *words)  # Hydra takes -m as the first word only
    names = {path.name: path.read_text().splitlines() for path in folder.glob("rank_*.txt")}
    assert names.keys() == {"rank_0.txt", "rank_1.txt"}, outcome.stderr
    alive = [
        name
        for rank in names.values()
        for name in rank
        if any(part in name for part in GROUP_THREADS)
    ]
    return outcome, alive


def signal_at(step, name):
    return (
        f"+callbacks.signal={{_target_: tests.soak.callbacks.SignalAt, step: {step}, name: {name}}}"
    )


@pytest.mark.parametrize(
    "launch", [processes.run_distributed, processes.run], ids=["torchrun", "lightning"]
)
def test_no_thread_of_the_group_is_alive_after_training(tmp_path, launch):
    outcome, alive = train(tmp_path / "a", "run_id=a", launch=launch)
    assert outcome.returncode == 0, outcome.stderr
    assert not alive
    continued = launch(
        "train", *TINY, *TWO, "trainer.max_steps=4", f"runs_dir={tmp_path / 'a'}", "run_id=a"
    )
    assert continued.returncode == 0 and continued.stdout.count("has ended") >= 1, continued.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_no_thread_of_the_group_is_alive_after_a_signal(tmp_path, name):
    outcome, alive = train(tmp_path / "a", "run_id=a", signal_at(2, name))
    number = signal.Signals[name].value
    assert f"stopped by signal {number} and saved at step 2" in outcome.stderr, outcome.stderr
    assert "terminate called" not in outcome.stderr and "SIGABRT" not in outcome.stderr
    assert not alive


def test_every_job_of_a_sweep_trains_in_two_processes(tmp_path):
    outcome, alive = train(tmp_path / "a", "-m", "seed=1,2,3")
    assert outcome.returncode == 0, outcome.stderr
    assert not alive
    (table,) = (tmp_path / "a").glob("sweeps/*/results.csv")
    with table.open() as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["done"] * 3


def test_every_job_of_a_sweep_draws_in_two_processes(run, tmp_path):
    assert (
        run(
            "train",
            *TINY,
            "metrics=none",
            "trainer.max_steps=2",
            f"runs_dir={tmp_path}",
            "run_id=a",
        ).code
        == 0
    )
    common = ("-m", f"ckpt={tmp_path / 'digits/a'}", "num_samples=16", "device=cpu", "seed=1,2")
    words = (
        *common,
        "out=${hydra:sweep.dir}/${hydra:job.num}",
        f"hydra.sweep.dir={tmp_path / 'sweep'}",
    )
    outcome = processes.run_distributed("sample", *words)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("job 1 (2 of 2)") == 1  # said by the first process alone
    files = [tmp_path / f"sweep/{job}/samples.npz" for job in range(2)]
    assert files[0].read_bytes() != files[1].read_bytes()


def test_a_job_that_fails_in_one_process_does_not_end_the_others(tmp_path):
    fault = "+callbacks.fault={_target_: tests.soak.callbacks.FailsAt, step: 2, rank: 0}"
    words = (
        *TINY,
        *TWO,
        "trainer.max_steps=4",
        f"runs_dir={tmp_path}",
        fault,
        "callbacks.fault.rank=0,1,7",
    )
    outcome = processes.run_distributed("train", "-m", *words)
    assert outcome.returncode == 1
    (table,) = tmp_path.glob("sweeps/*/results.csv")
    with table.open() as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["failed", "failed", "done"], (
            outcome.stderr
        )

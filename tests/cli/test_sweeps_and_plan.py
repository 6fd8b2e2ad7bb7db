"""A sweep continues after failed jobs; a plan prints the cost of a run and writes nothing."""

import csv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from blackout.cli.cost import activation_bytes, cost_per_sample
from blackout.cli.sweeps import _add_row, number_of_jobs
from blackout.config.explain import suggest_key
from blackout.networks import CountNetwork, NCSNpp, PaperInputs
from tests.cli.conftest import TINY
from tests.cli.test_experiments import stand_in


@pytest.mark.deep
def test_a_failing_job_does_not_end_the_sweep(run, tmp_path):
    without_width = [option for option in TINY if "width" not in option]
    outcome = run(
        "train",
        "-m",
        *without_width,
        "network.body.width=0,bad,12",
        "trainer.max_steps=2",
        f"runs_dir={tmp_path}",
    )
    assert outcome.code == 1
    errors = outcome.err.splitlines()
    assert len(errors) == 3 and "2 job(s) failed" in errors[-1]
    (table,) = tmp_path.glob("sweeps/*/results.csv")
    rows = list(csv.DictReader(table.open()))
    assert [row["state"] for row in rows] == ["failed", "failed", "done"]
    assert "width" in rows[0]["error"] and rows[0]["val/bits_per_dim"] == ""
    assert float(rows[2]["val/bits_per_dim"]) > 0 and (tmp_path / "digits").is_dir()
    assert len(list((tmp_path / "digits").glob("*/model"))) == 1


@pytest.mark.deep
def test_jobs_are_numbered_from_0_as_their_folders_in_both_programs(run, tmp_path):
    trained = run("train", "-m", *TINY, "seed=1,2", "trainer.max_steps=1", f"runs_dir={tmp_path}")
    assert trained.code == 0, trained.err
    assert "job 0 (1 of 2):" in trained.out
    (table,) = tmp_path.glob("sweeps/*/results.csv")
    rows = list(csv.DictReader(table.open()))
    assert [row["job"] for row in rows] == ["0", "1"]
    assert not [
        path for path in table.parent.iterdir() if path.is_dir() and not path.name.startswith(".")
    ]
    sweep = tmp_path / "sampled"
    sampled = run(
        "sample",
        "-m",
        f"ckpt={rows[0]['run']}",
        "num_samples=2",
        "seed=3,4",
        f"hydra.sweep.dir={sweep}",
    )
    assert sampled.code == 0 and "job 1 (2 of 2):" in sampled.out, sampled.err
    samples = list(csv.DictReader((sweep / "results.csv").open()))
    assert [row["job"] for row in samples] == ["0", "1"]
    for row in samples:
        assert Path(row["run"]).parts[-2:] == (row["job"], "samples"), row["run"]
        assert (sweep / row["job"] / "samples" / "samples.npz").exists()


@pytest.mark.deep
def test_a_bug_in_a_job_leaves_its_traceback(run, tmp_path):
    poison = "+callbacks.poison={_target_: tests.cli.test_sweeps_and_plan.Bug}"
    outcome = run(
        "train", "-m", *TINY, "seed=1,2", poison, "trainer.max_steps=2", f"runs_dir={tmp_path}"
    )
    assert outcome.code == 1
    (table,) = tmp_path.glob("sweeps/*/results.csv")
    assert [row["error"] for row in csv.DictReader(table.open())] == [
        "ZeroDivisionError: a bug"
    ] * 2
    assert "on_train_start" in (table.parent / "error_0.txt").read_text()


@pytest.mark.deep
def test_jobs_that_share_a_run_are_refused_and_sweeps_do_not_share_a_folder(run, tmp_path):
    for _ in range(2):
        outcome = run(
            "train",
            "-m",
            *TINY,
            "data_on_device=true,false",
            "run_id=a",
            "trainer.max_steps=1",
            f"runs_dir={tmp_path}",
        )
        assert outcome.code == 1 and "job 0 of this sweep writes to" in outcome.err
    tables = sorted(tmp_path.glob("sweeps/*/results.csv"))
    assert len(tables) == 2
    for table in tables:
        assert [row["state"] for row in csv.DictReader(table.open())] == ["done", "failed"]


@pytest.mark.deep
def test_a_sweep_does_not_start_processes_that_would_sweep_again(run, tmp_path):
    two = ["trainer.accelerator=cpu", "trainer.devices=2", "trainer.strategy=ddp"]
    outcome = run(
        "train", "-m", *TINY, "seed=1", *two, "trainer.max_steps=2", f"runs_dir={tmp_path}"
    )
    assert outcome.code == 1 and "torchrun" in outcome.err


def test_a_plan_prints_and_writes_nothing(run, tmp_path):
    outcome = run(
        "train", *TINY, "plan=true", f"runs_dir={tmp_path / 'runs'}", "trainer.max_steps=1000"
    )
    assert outcome.code == 0, outcome.err
    lines = dict(line.split(":", 1) for line in outcome.out.splitlines())
    assert set(lines) == {"parameters", "work", "memory", "data", "length", "time", "scores"}
    assert lines["parameters"].strip() == "3,824"
    assert (
        "64,000 samples" in lines["length"]
        and "1,258 training + 180 validation + 359 test" in lines["data"]
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_plan_for_a_device_that_is_not_there_is_refused_in_one_line(run, tmp_path):
    run("train", *TINY, "plan=true", "trainer=gpu", f"runs_dir={tmp_path}").assert_refused("gpu")


def test_a_plan_of_counts_does_not_call_them_images(run, tmp_path):
    np.save(tmp_path / "counts.npy", np.random.default_rng(0).poisson(3, (100, 5)))
    words = ["dataset=counts", f"dataset.path={tmp_path / 'counts.npy'}", "plan=true"]
    outcome = run("train", *words, f"runs_dir={tmp_path / 'runs'}", "trainer.precision=32-true")
    assert outcome.code == 0, outcome.err
    assert "samples" in outcome.out and "image" not in outcome.out


def test_a_plan_prints_what_scores_cost_next_to_training(run, tmp_path):
    scores = [
        f"callbacks.scores.{name}"
        for name in ("num_samples=100", "every_n_steps=250", "num_steps_between=2")
    ]
    words = [*TINY, "metrics=digits", *scores, "trainer.val_check_interval=250", "sampler=poisson"]
    outcome = run("train", *words, "plan=true", f"runs_dir={tmp_path}", "trainer.max_steps=1000")
    assert outcome.code == 0, outcome.err
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("scores:")]
    assert "4 times 100 samples of 2 evaluations during training" in line
    assert "100 samples of" in line.split(";")[1] and "% of the training" in line.split(";")[1]


def test_a_plan_for_another_machine_says_that_the_batch_does_not_fit_here(run, tmp_path):
    words = [*TINY, "plan=true", "batch_size=1000000000", "trainer.max_steps=1000"]
    outcome = run("train", *words, f"runs_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("memory:")]
    assert "does not fit here" in line and "of memory on cpu" in line


class ReadsValues(torch.nn.Module):
    """A linear layer that looks at what it is given."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(10, 10)

    def forward(self, x):
        return self.layer(x) if float(x.sum()) == 0 else x


def test_memory_of_networks_that_read_values_is_measured_with_numbers():
    network = ReadsValues()
    model = SimpleNamespace(
        network=network, example_inputs=lambda: (torch.zeros(1, 10),), device=torch.device("cpu")
    )
    plain = SimpleNamespace(network=network.layer, example_inputs=model.example_inputs)
    assert activation_bytes(model) == activation_bytes(plain) > 0


@pytest.mark.deep
def test_a_plan_needs_no_evaluation_of_a_large_network(run, tmp_path, monkeypatch):
    """62.7 million parameters, and not one convolution with numbers in it."""
    monkeypatch.setattr("blackout.data.cifar10", stand_in("cifar10"))
    shapes = []
    real = torch.nn.functional.conv2d

    def counted(x, *args, **kwargs):
        shapes.append(x.device.type)
        return real(x, *args, **kwargs)

    monkeypatch.setattr("torch.nn.functional.conv2d", counted)
    outcome = run(
        "train", "dataset=cifar10", "plan=true", f"runs_dir={tmp_path}", "trainer.accelerator=cpu"
    )
    assert outcome.code == 0, outcome.err
    lines = dict(line.split(":", 1) for line in outcome.out.splitlines())
    assert lines["parameters"].strip() == "62,693,251" and "21.8 GFLOP per sample" in lines["work"]
    assert "no batch was run" in lines["time"] and set(shapes) == {"meta"}


@pytest.mark.parametrize("channels_last", [False, True])
def test_costs_on_tensors_without_storage_equal_measured_ones(channels_last):
    torch.manual_seed(0)
    # masks of dropout are a byte per element on a device, and four on a CPU
    body = NCSNpp(
        (3, 8, 8),
        channels=8,
        multipliers=[1, 2],
        blocks_per_level=1,
        attention_resolutions=[4],
        dropout=0,
    )
    network = CountNetwork(body, PaperInputs(255), channels_last)
    example = torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.ones(1, dtype=torch.float64)
    weight_pointers = {
        value.untyped_storage().data_ptr() for value in (*network.parameters(), *network.buffers())
    }
    saved_bytes = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        saved_bytes.update(
            {storage.data_ptr(): storage.nbytes()}
            if storage.data_ptr() not in weight_pointers
            else {}
        )
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(*example)
    # The counter of torch 2.10 and 2.11 misses fused attention on a CPU.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        network(*example)
    flops, activations = cost_per_sample(
        SimpleNamespace(network=network, example_inputs=lambda: example)
    )
    assert 0 <= flops - counter.get_total_flops() < 0.01 * flops
    # the plan leaves out copies of two small weights, and what fused attention saves: 1.1 % here
    assert (
        abs(activations - sum(saved_bytes.values()))
        < (0.1 if channels_last else 0.012) * activations
    )


class Bug:
    def __new__(cls):
        from pytorch_lightning.callbacks import Callback

        class Bug(Callback):
            def on_train_start(self, trainer, pl_module):
                raise ZeroDivisionError("a bug")

        return Bug()


def test_the_number_of_jobs_of_a_sweep_is_computed():
    assert number_of_jobs(["-m", "seed=1,2,3", "optimizer.lr=1e-3,2e-3", "run_id=a"]) == 6
    assert (
        number_of_jobs(["-m", "hydra/sweeper=optuna", "seed=1,2"]) is None
        and number_of_jobs(["x"]) is None
    )


def test_a_job_that_runs_again_has_one_row(tmp_path):
    for job, loss in ((2, 0.5), (10, 0.1), (2, 0.4)):
        _add_row(tmp_path / "results.csv", {"job": job, "loss": loss})
    with (tmp_path / "results.csv").open() as file:
        assert [(row["job"], row["loss"]) for row in csv.DictReader(file)] == [
            ("2", "0.4"),
            ("10", "0.1"),
        ]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lr", "optimizer.lr"),
        ("epochs", "trainer.max_steps"),
        ("b", None),
        ("optimizer.LR", "optimizer.lr"),
        ("trainer.steps", "trainer.max_steps"),
        ("sampler.steps", "sampler.num_steps"),
    ],
)
def test_short_names_are_completed(word, meant):
    suggestion = suggest_key(
        word, ["seed", "batch_size", "optimizer.lr", "trainer.max_steps", "sampler.num_steps"]
    )
    assert suggestion == (f" (did you mean {meant}?)" if meant else "")

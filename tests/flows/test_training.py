"""Training, resuming, saving and sampling a flow, as users do it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from blackout import load_model
from blackout.errors import UserError
from blackout.flows import Events, FlowSampler, Gibbs, Ising, Rollout
from blackout.flows.draw import build_draw
from blackout.flows.model import AmortisedFlow
from blackout.flows.path import States
from blackout.flows.targets import exact_values
from blackout.flows.weights import effective_sample_size, jackknife_error, log_mean_exp
from blackout.networks import LEMLP, LESite
from tests import processes
from tests.cli.conftest import run  # noqa: F401  (a fixture)
from tests.killed import killed_and_continued

SMALL = (
    "family=flow",
    "callbacks.progress=null",
    "network.channels=8",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "rollout.num_times=6",
    "rollout.chains=16",
    "rollout.group_size=8",
    "rollout.every_n_steps=5",
    "rollout.buffer_size=2",
    "batch_size=16",
    "trainer.log_every_n_steps=1",
    "validation_samples=16",
    "callbacks.checkpoints.every_n_steps=3",
    "trainer.val_check_interval=10",
    "refine@rollout.refine=gibbs",
    "rollout.resample_below=0.7",
    "simulation.num_steps=3",
)


@pytest.fixture(scope="module")
def couplings(tmp_path_factory):
    """A file of couplings."""
    path = tmp_path_factory.mktemp("flow") / "mine.npz"
    np.savez(path, J=0.2 * np.random.default_rng(0).normal(size=(6, 6)), h=0.1 * np.ones(6))
    return path


@pytest.mark.deep
def test_a_killed_run_resumes_bit_for_bit_and_exports_its_target(run, couplings, tmp_path):  # noqa: F811
    settings = [
        *SMALL,
        "target=couplings",
        f"target.path={couplings}",
        "trainer.max_steps=20",
        f"runs_dir={tmp_path}",
    ]
    directory = killed_and_continued(run, settings, tmp_path / "couplings")
    couplings.rename(couplings.with_suffix(".moved"))  # the couplings are stored in the model
    model = load_model(directory)
    couplings.with_suffix(".moved").rename(couplings)
    assert float(model.target.pair.abs().sum()) > 0 and model.sample(5).shape == (5, 6)
    assert model.rates()(
        States.evaluate(model.target, torch.zeros(2, 6, dtype=torch.int64)), 0.5
    ).shape == (2, 6, 2)
    assert "replay" not in " ".join(model.state_dict())
    report = json.loads((directory / "metrics.json").read_text())["values"]
    assert {"val/ess", "log_z", "ess", "log_z_exact", "mean_energy_error"} <= report.keys()
    for picture in ("final/diagnostics.png", "final.png"):
        assert min(Image.open(directory / "samples" / picture).size) > 40


@pytest.mark.deep
def test_two_processes_share_a_buffer_and_train_like_one(run, tmp_path):  # noqa: F811
    settings = [*SMALL, "target.size=3", "trainer.max_steps=12", f"runs_dir={tmp_path}"]
    assert run("train", *settings, "run_id=one").code == 0
    settings = [option for option in settings if option != "trainer.devices=1"]
    distributed = processes.run_distributed(
        "train", *settings, "trainer.devices=2", "trainer.strategy=ddp", "run_id=two"
    )
    assert distributed.returncode == 0, distributed.stderr
    first_run, second_run = (tmp_path / "ising" / name for name in ("one", "two"))
    states = [
        torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for folder in (first_run, second_run)
    ]
    assert states[0].keys() == states[1].keys() and "replay_buffer.x" in " ".join(states[0])
    for name, value in states[0].items():
        torch.testing.assert_close(
            states[1][name], value, rtol=1e-5, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
        )
    arrays = [np.load(folder / "samples/final.npz") for folder in (first_run, second_run)]
    # Gradients are summed in another order: weights differ in their last bits, and rarely a sample.
    equal_samples = (
        (arrays[0]["samples"] == arrays[1]["samples"]).reshape(len(arrays[0]["samples"]), -1).all(1)
    )
    assert equal_samples.mean() > 0.9
    # separate processes always draw figures
    for picture in ("final/diagnostics.png", "final.png"):
        assert min(Image.open(second_run / "samples" / picture).size) > 40
    log_weights = [array["log_weights"][equal_samples] for array in arrays]
    np.testing.assert_allclose(*log_weights, rtol=0, atol=1e-5)


@pytest.mark.deep
def test_training_improves_the_flow_and_sampling_reports_its_scores(run, tmp_path):  # noqa: F811
    settings = [
        "family=flow",
        "callbacks.progress=null",
        "target.size=[2,3]",
        "target.coupling=0.4",
    ]
    settings += [
        "network.channels=16",
        "network.heat_bath=true",
        "trainer.accelerator=cpu",
        "rollout.num_times=10",
    ]
    settings += [
        "trainer.devices=1",
        "trainer.max_steps=200",
        "trainer.val_check_interval=50",
        f"runs_dir={tmp_path}",
        "run_id=a",
    ]
    assert run("train", *settings).code == 0
    ckpt = tmp_path / "ising/a"
    out = tmp_path / "out"
    sampled = run(
        "sample", f"ckpt={ckpt}", f"out={out}", "num_samples=600", "simulation.num_steps=8"
    )
    assert sampled.code == 0, sampled.err
    values = json.loads((out / "metrics.json").read_text())["values"]
    arrays = np.load(out / "samples.npz")
    assert (
        values["ess"] > 0.9
        and abs(values["log_z"] - values["log_z_exact"]) < 4 * values["log_z_error"] + 0.01
    )
    assert arrays["samples"].shape == (600, 2, 3) and arrays["log_weights"].dtype == np.float64
    weights = torch.from_numpy(arrays["log_weights"])
    assert abs(float(effective_sample_size(weights)) - values["ess"]) < 1e-9
    model = load_model(ckpt)
    exact = exact_values(model.target)
    assert exact is not None and values["log_z_exact"] == exact["log_z"]
    repeated = run(
        "sample",
        f"ckpt={ckpt}",
        f"out={tmp_path / 'one'}",
        "num_samples=600",
        "indices=[417]",
        "simulation.num_steps=8",
    )
    assert repeated.code == 0, repeated.err
    row = np.load(tmp_path / "one/samples.npz")
    assert (row["samples"][0] == arrays["samples"][417]).all()
    assert row["log_weights"][0] == pytest.approx(arrays["log_weights"][417], abs=1e-5)
    leaped = run(
        "sample",
        f"ckpt={ckpt}",
        f"out={tmp_path / 'leap'}",
        "num_samples=100",
        "simulation=leap",
        "simulation.num_steps=8",
        "refine=gibbs",
        "simulation.resample_below=0.5",
    )
    assert leaped.code == 0 and "neither ESS" in leaped.out
    for option in (
        "classes=[3]",
        "simulation.steps=3",
        "path=3",
        "refine.moves=0",
        "likelihood=nowhere.npz",
    ):
        run("sample", f"ckpt={ckpt}", f"out={tmp_path / 'no'}", option).assert_refused(
            option.split("=")[0].split(".")[0]
        )


INVALID_SETTINGS = {
    "target.path=/nowhere.npz target=couplings": "no such file",
    "target=couplings": "path must be given",
    "network=leconv network.kernels=[2]": "odd",
    "network=leconv network.kernels=[7]": "wraps around",
    "network=leconv target=couplings target.path=COUPLINGS": "lattice",
    "network=mlp": "network",
    "flip=true": "flip",
    "conditional=true": "conditional",
    "head=scaled": "head",
    "target=planar target.path=/nowhere.npz": "writes such a file",
    "target.size=0": "size must be",
    "target.size=[3]": "size must be",
    "target.q=3": "no such setting",
    "target=potts target.q=1": "levels",
    "network=letf network.heads=5": "multiple",
    "rollout.num_times=1": "num_times must be at least 2",
    "rollout.estimator=best": "plain",
    "rollout.resample_below=2": "(0, 1]",
    "simulation.num_steps=0": "num_steps",
    "target=isng": "did you mean ising",
    "batch_size=0": "batch_size",
    "network.messages=8 target=couplings target.path=COUPLINGS": "messages",
    "loss.clip=-1": "clip",
    "network.channels=0": "channels",
    "network.layers=-1": "layers",
}


@pytest.mark.parametrize("line", INVALID_SETTINGS)
def test_invalid_settings_are_refused_in_one_line(run, couplings, tmp_path, line):  # noqa: F811
    words = line.replace("COUPLINGS", str(couplings)).split()
    run("train", "family=flow", *words, f"runs_dir={tmp_path}", "plan=true").assert_refused(
        INVALID_SETTINGS[line]
    )


@pytest.mark.deep
def test_one_flow_samples_a_range_of_targets_it_is_conditioned_on() -> None:
    torch.manual_seed(0)
    target = Ising([2, 3], [0.2, 0.4], [0.2, 0.0])
    network = LESite(6, 2, 16, 2, lattice=[2, 3], heat_bath=True, parameters=2)
    rollout = Rollout(
        num_times=8,
        chains=64,
        group_size=32,
        every_n_steps=40,
        refine=Gibbs(),
        resample_below=0.7,
        chains_per_instance=16,
    )
    flow = AmortisedFlow(network, target, Events(8), rollout=rollout)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for number in range(80):
        loss = flow.training_step({"batch_number": number, "position": torch.arange(64)})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    recorded = set()
    flow.record = lambda name, values: recorded.add(name)
    flow.validation_step({"index": torch.arange(256)})
    assert recorded == set(flow.validation_metrics)
    for parameters in ({}, {"coupling": 0.3, "field": 0.15}):
        draw = build_draw(flow, {"target": parameters})
        assert (
            draw.model.target.context()[0].tolist()
            == target.with_parameters(**parameters).context()[0].tolist()
        )
        weights = draw.simulate(torch.arange(1000), 0).log_weights
        exact = exact_values(target.with_parameters(**parameters))
        assert exact is not None and effective_sample_size(weights) > 0.9
        assert abs(float(log_mean_exp(weights)) - exact["log_z"]) < 4 * jackknife_error(weights)
    with pytest.raises(UserError, match="trained on ranges"):
        build_draw(FlowSampler(LESite(6, 2), Ising([2, 3])), {"target": {"coupling": 0.4}})
    with pytest.raises(UserError, match="cannot be conditioned"):
        AmortisedFlow(LEMLP(6, 2), target).try_once()

"""Training, resuming, reporting and reusing a learned energy, as users do it."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import planar
from blackout import load_model
from blackout.cli.report_page import save_report
from blackout.errors import UserError
from blackout.evaluation import CountScorer
from blackout.flows import Events, Ising, Rollout
from blackout.flows.draw import FlowDraw
from blackout.flows.energies import EnergyFamily
from blackout.flows.energies.data import StateData, target_samples
from blackout.flows.energies.evaluation import baseline_nats
from blackout.flows.energies.model import EnergySampler
from blackout.flows.energies.pair_energy import PairEnergy, fit_couplings
from blackout.flows.targets.energy_network import EnergyNetwork, decode, encode
from tests.cli.conftest import run  # noqa: F401  (a fixture)
from tests.killed import killed_and_continued

SMALL = (
    "family=energy",
    "callbacks.progress=null",
    "rates.channels=8",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "rollout.num_times=5",
    "rollout.chains=8",
    "rollout.group_size=8",
    "flow_steps=2",
    "batch_size=16",
    "negative.chains=16",
    "trainer.log_every_n_steps=1",
    "callbacks.checkpoints.every_n_steps=3",
    "trainer.val_check_interval=10",
    "simulation.num_steps=3",
    "trainer.limit_val_batches=1",
)


def test_points_of_the_plane_are_drawn_over_the_density() -> None:
    points = torch.tensor([[0.5, 0.25], [-0.6, -0.6]], dtype=torch.float64) * 2**15
    # larger to the right
    target = {
        "log_density": lambda x: 10 * decode(x, 2.0**15)[:, 0],
        "plane": True,
        "device": "cpu",
    }
    draw = FlowDraw(SimpleNamespace(target=SimpleNamespace(**target)), Events(3))  # type: ignore[arg-type]
    states = encode(points, 1.0)
    torch.testing.assert_close(decode(states, 1.0), points, rtol=0, atol=0.51)
    picture = np.asarray(draw.picture({"samples": states}), int)
    background = np.asarray(draw.picture({"samples": states[:0]}), int)[..., 0]
    assert (np.diff(background.mean(0)) >= 0).all() and background[:, -1].min() == 160 > background[
        :, 0
    ].max()
    marked = np.argwhere((picture == (251, 146, 60)).all(2))
    half = 200 / 0.75
    for x, y in ((0.5, 0.25), (-0.6, -0.6)):
        near = np.abs(marked - (200 - half * y, 200 + half * x)).max(1) <= 4
        assert 10 < near.sum() < 40
        marked = marked[~near]
    assert not len(marked) and draw.picture({"samples": states}, columns=2) is None


COUPLINGS = (
    "~dataset",
    "target=ising",
    "target.size=3",
    "energy=pairs",
    "energy.l1=0.01",
    "target_samples=200",
)


@pytest.mark.deep
def test_a_killed_run_resumes_bit_for_bit_and_reports_couplings(run, tmp_path):  # type: ignore[no-untyped-def]  # noqa: F811
    settings = [
        *SMALL,
        *COUPLINGS,
        "trainer.max_steps=14",
        "pretraining_steps=2",
        "start=zero",
        "negative.max_enumerated_states=0",
        f"runs_dir={tmp_path}",
    ]
    ckpt = killed_and_continued(run, settings, tmp_path / "ising")
    values = json.loads((ckpt / "metrics.json").read_text())["values"]
    assert {
        "val/nll",
        "val/ess",
        "neg_log_rmse",
        "neg_log_rmse_zero_couplings",
        "log_z_exact",
    } <= values.keys()
    model = load_model(ckpt)
    assert isinstance(model, EnergySampler) and isinstance(model.target, PairEnergy)
    assert float(model.target.couplings.detach().abs().sum()) > 0 and model.sample(3).shape == (
        3,
        9,
    )
    outcome = run(
        "sample", f"ckpt={ckpt}", f"out={tmp_path / 'out'}", "num_samples=50", "evaluate=true"
    )
    assert outcome.code == 0, outcome.err
    for folder in (ckpt / "samples" / "final", tmp_path / "out"):
        saved = np.load(folder / "couplings.npz")
        assert np.array_equal(saved["couplings"], model.target.couplings.detach()) and saved[
            "field"
        ].shape == (9,)
    report = json.loads((tmp_path / "out/metrics.json").read_text())
    verdicts = json.loads((tmp_path / "out/baselines.json").read_text())["verdicts"]
    assert verdicts.keys() == report["comparisons"].keys() >= {"nll_exact"}
    assert "nll_exact is" in verdicts["nll_exact"] and "of this model" in verdicts["nll_exact"]
    page = save_report(ckpt).read_text()
    assert "test/nll" in page
    values = report["values"]
    assert values["max_gradient_z_score"] > 2 and "at its maximum" in report["convergence"]
    for name in ("ais", "sampler"):
        assert (
            abs(values[f"nll_{name}"] - values["nll_exact"])
            < 4 * values[f"nll_{name}_error"] + 0.02
        )
    assert values["nll_chain_bound"] > values["nll_exact"] - 0.1


@pytest.mark.parametrize("negative", ["pcd", pytest.param("discrepancy", marks=pytest.mark.deep)])
def test_learned_energies_become_targets_of_flows(run, tmp_path, negative):  # type: ignore[no-untyped-def]  # noqa: F811
    levels = 3 if negative == "discrepancy" else 2
    rng = np.random.default_rng(0)
    np.save(tmp_path / "states.npy", np.repeat(rng.integers(levels, size=(80, 1)), 5, axis=1))
    options = [name for name in SMALL if "negative" not in name]
    settings = [
        *options,
        "dataset=counts",
        f"dataset.path={tmp_path / 'states.npy'}",
        f"negative={negative}",
    ]
    trained = run(
        "train",
        *settings,
        "energy.widths=[8]",
        "trainer.max_steps=6",
        f"runs_dir={tmp_path}",
        "run_id=a",
    )
    assert trained.code == 0, trained.err
    (ckpt,) = tmp_path.glob("*/a")
    model = load_model(ckpt)
    assert isinstance(model.target, EnergyNetwork) and model.target.levels == levels
    flow = [
        "family=flow",
        "target=energy_network",
        f"target.ckpt={ckpt}",
        "rollout.num_times=4",
        "rollout.chains=8",
    ]
    outcome = run(
        "train",
        *flow,
        "rollout.group_size=8",
        "callbacks.progress=null",
        "trainer.max_steps=2",
        "batch_size=8",
        "validation_samples=8",
        "network.channels=8",
        f"runs_dir={tmp_path}",
        "run_id=b",
    )
    assert outcome.code == 0, outcome.err
    (flow_run,) = tmp_path.glob("*/b")
    x = torch.randint(levels, (7, 5))
    assert torch.equal(load_model(flow_run).target.log_density(x), model.target.log_density(x))


def test_samples_of_an_energy_are_scored_against_its_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blackout.evaluation.classifier_tests.TREES", 5)
    data = target_samples(Ising(3, 0.2), 300, 0, "ising")
    scores = CountScorer().begin(data, 60, torch.device("cpu"))
    scores.update({"samples": data.train[:60]}, torch.arange(60))
    assert scores.compute()["ks_mean"] < 0.3


def test_the_tree_baseline_is_exact_for_a_markov_chain() -> None:
    """The tree reaches the entropy of a chain of five sites and three levels; independent sites do
    not."""
    rng = np.random.default_rng(0)
    stay = 0.8
    x = rng.integers(3, size=(8000, 5))
    for k in range(1, 5):
        x[:, k] = np.where(
            rng.random(8000) < stay, x[:, k - 1], (x[:, k - 1] + rng.integers(1, 3, 8000)) % 3
        )
    states = torch.from_numpy(x).to(torch.uint8)
    fitted = baseline_nats(StateData("chain", states[:4000], states[4000:], 2), 4000)
    nats = {name: float(scores.values.mean()) for name, scores in fitted.items()}
    entropy = np.log(3) - 4 * (stay * np.log(stay) + (1 - stay) * np.log((1 - stay) / 2))
    assert nats["uniform"] == pytest.approx(5 * np.log(3))
    assert nats["independent_sites"] == pytest.approx(5 * np.log(3), abs=0.01)
    # three standard errors of 4,000 states
    assert nats["chow_liu_tree"] == pytest.approx(entropy, abs=0.06)
    wide = StateData("wide", states[:9].repeat(1, 200), states[9:18].repeat(1, 200), 2)
    assert "chow_liu_tree" not in baseline_nats(wide, 9)


def test_pair_energies_start_at_the_fitted_couplings_and_keep_them() -> None:
    data = target_samples(Ising(3, 0.2), 300, 0, "ising")
    family = EnergyFamily()
    fitted = PairEnergy(9)
    fit_couplings(fitted, data.train)
    description = {
        "energy": {"_target_": "blackout.flows.energies.PairEnergy", "sites": 9},
        "network": {"_target_": "blackout.networks.LESite", "sites": 9, "levels": 2, "channels": 8},
        "simulation": {"_target_": "blackout.flows.Events", "num_steps": 2},
    }
    model = family.assemble(
        {"model": description},
        family.tensors(data),
        start="likelihood",
        rollout=Rollout(3, 8, group_size=8),
    )
    assert torch.equal(model.energy.upper, fitted.upper) and not model.train_energy
    for number in range(12):
        position = torch.arange(8)
        loss = model.training_step(
            {"x0": data.train[:8], "batch_number": number, "position": position}
        )
        loss.backward()
    assert model.energy.upper.grad is None
    description["network"]["levels"] = 3
    with pytest.raises(UserError, match="2 levels, rates and data 3: energy=mlp"):
        family.assemble({"model": description}, family.tensors(data))


@pytest.mark.deep
def test_planar_points_are_learned_and_plotted(run, tmp_path, capsys, monkeypatch):  # type: ignore[no-untyped-def]  # noqa: F811
    monkeypatch.setattr(planar, "_POINTS", 32)
    monkeypatch.setattr(planar, "_SHOWN", 100)
    monkeypatch.setattr(planar, "uniform_weights", partial(planar.uniform_weights, number=1000))
    monkeypatch.setattr(planar, "entropy", partial(planar.entropy, number=400, centres=4000))
    settings = [
        *SMALL,
        "family=energy",
        "dataset=planar",
        "energy.widths=[16]",
        "dataset.num_points=500",
        "pretraining_steps=3",
    ]
    trained = run("train", *settings[1:], "trainer.max_steps=8", f"runs_dir={tmp_path}", "run_id=a")
    assert trained.code == 0, trained.err
    planar.main(
        [
            str(next(tmp_path.glob("*/a"))),
            "--out",
            str(tmp_path / "shown"),
            "--repeats",
            "2",
            "--sweeps",
            "2",
        ]
    )
    for picture in ("landscape", "trajectories"):
        assert (tmp_path / f"shown/{picture}.png").exists()
    printed = capsys.readouterr().out
    assert "entropy of moons: 19." in printed
    assert {"nll_ebm", "nll_dnfs", "mmd_ebm", "mmd_dnfs"} <= set(printed.split())


INVALID_SETTINGS = {
    "~dataset": "dataset=... must be given",
    "dataset=counts dataset.path=/nowhere.npy": "/nowhere.npy",
    "dataset=counts dataset.path=HALVES": "HALVES",
    "dataset=planar dataset.density=lions": "dataset.density must be",
    "dataset=planar simulation=leap": "events",
    "dataset=planar loss@objective=leaps": "loss@objective=dnfs",
    "dataset=planar loss=leaps": "loss@objective",
    "dataset=planar flow_steps=0": "flow_steps",
    "dataset=planar pretraining_steps=''": "pretraining_steps",
    "dataset=planar negative.chains=1": "negative.chains",
    "dataset=planar network@rates=leconv": "lattice",
    "dataset=planar negative=discrepancy negative.perturb_probability=2": (
        "negative.perturb_probability"
    ),
    "dataset=planar energy.l1=3": "no such setting",
    "dataset=planar start=warm": "start must be likelihood or zero",
    "dataset=planar energy.num_cosines=-1": "num_cosines",
    "~dataset target=ising target_samples=1": "target_samples",
    "~dataset target=ising energy=pairs energy.l1=-1": "l1",
}


@pytest.mark.parametrize("line", INVALID_SETTINGS)
def test_invalid_settings_are_refused_in_one_line(run, tmp_path, line):  # type: ignore[no-untyped-def]  # noqa: F811
    np.save(tmp_path / "halves.npy", np.full((20, 4), 0.5))
    words = line.replace("HALVES", str(tmp_path / "halves.npy")).split()
    message = INVALID_SETTINGS[line].replace("HALVES", "halves.npy")
    run("train", "family=energy", *words, f"runs_dir={tmp_path}", "plan=true").assert_refused(
        message
    )

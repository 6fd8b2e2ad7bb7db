"""Every experiment and network of the family is composed and fits its target."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from benchmarks.energy_discrepancy import pretrain, save
from blackout.flows import FlowFamily
from blackout.flows.replay import ReplayBuffer, Rollout, roll_out
from blackout.flows.targets import Target
from tests.cli.conftest import ROOT

# Energies: tests/flows/energies.
EXPERIMENTS = (
    "flow_ising",
    "flow_ising_critical",
    "dnfs/figure1",
    "dnfs/figure4",
    "dnfs/figure5",
    "dnfs/figure15_leaps",
    "dnfs/table1 recipe=flow/sets",
    "dnfs/table1 graphs=large recipe=flow/sets_large",
    "dnfs/table5 recipe=flow/cuts",
    "dnfs/table5 graphs=medium recipe=flow/cuts_medium",
    "dnfs/table5 graphs=large recipe=flow/cuts_large",
    "dnfs/table5 graphs=large recipe=flow/cuts_swept",
)
NETWORKS = ("lesite", "lemlp", "leconv", "letf")


def build_model(folder: Path, *overrides: str):  # type: ignore[no-untyped-def]
    """Compose a configuration, build its model and try it once."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = OmegaConf.to_container(
            compose("train", [*overrides, f"data_dir={folder}"]), resolve=True
        )
    assert isinstance(config, dict)
    family = FlowFamily()
    config = {str(name): value for name, value in config.items()}
    source = family.source(config)
    description = {"family": config["family"], **family.describe(config, source)}
    model = family.build(description, family.tensors(source), config, ema_decay=0.9, seed=0)
    family.dry_run(model)
    return model, config


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiments_have_the_settings_of_their_papers(experiment: str, tmp_path: Path) -> None:
    name, *recipe = experiment.split()
    if name == "dnfs/figure4":
        save(pretrain("moons", 1, 1e-3, 2, [8], 0), tmp_path / "planar_moons.npz")
    small = (
        ("rollout.chains=8", "target.num_training=3", "target.num_test=1")
        if recipe
        else ("rollout.chains=2",)
    )
    model, config = build_model(
        tmp_path, f"experiment={name}", *recipe, *small, "rollout.buffer_size=1"
    )
    assert (
        config["experiment_name"].startswith(name.replace("/", "_")) and config["dataset"] is None
    )
    assert (
        config["callbacks"]["checkpoints"]["mode"] == "max"
        and config["trainer"]["precision"] == "32-true"
    )
    assert (model.network.partition is not None) == (name == "dnfs/figure15_leaps")
    assert model.target.plane == (name == "dnfs/figure4")
    if name == "dnfs/figure5":
        assert model.target.shape == (10, 10) and config["rollout"]["num_times"] == 64
        assert config["optimizer"]["lr"] == 1e-3 and config["trainer"]["max_steps"] == 100_000


@pytest.mark.parametrize("loss", ["dnfs", "leaps"])
@pytest.mark.parametrize("network", NETWORKS)
def test_one_step_lowers_every_loss_of_every_network(
    network: str, loss: str, tmp_path: Path
) -> None:
    small = [
        "network.channels=8",
        "target.size=3",
        "rollout.num_times=3",
        "rollout.chains=4",
        "rollout.group_size=4",
    ]
    model, _ = build_model(
        tmp_path, "family=flow", "~dataset", f"network={network}", f"loss={loss}", *small
    )
    roll_out(model.rollout, model.target, model.rates(trained=True), 0, model.replay_buffer)
    batch = {"batch_number": 1, "position": torch.arange(8), "index": torch.arange(8)}
    first = model.training_step(batch)
    first.backward()
    gradients = [weight.grad for weight in model.network.parameters() if weight.grad is not None]
    assert first.item() > 0 and all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    with torch.no_grad():
        for weight in model.network.parameters():
            if weight.grad is not None:
                weight -= (
                    1e-3
                    * weight.grad
                    / torch.stack([gradient.norm() for gradient in gradients]).norm()
                )
    assert model.training_step(batch).item() < first.item()


class FourthPower(Target):
    """log rho = 15 m^4.

    At t of about 0.8, disorder and both ordered modes have equal mass, with little between them.
    """

    def __init__(self) -> None:
        super().__init__(2, [20])

    def log_density(self, x: torch.Tensor) -> torch.Tensor:
        return 15 * (2 * x.double() - 1).mean(-1) ** 4


@pytest.mark.deep
def test_default_rollouts_find_modes_that_untrained_rates_miss(tmp_path: Path) -> None:
    target = FourthPower()
    ordered = {}
    for name, options in {
        "default": [],
        "rates alone": ["rollout.refine=null", "rollout.resample_below=null"],
    }.items():
        rollout = build_model(tmp_path, "family=flow", *options)[0].rollout
        replay = ReplayBuffer(rollout, 2, 20)
        roll_out(rollout, target, lambda states, t: torch.zeros_like(states.log_ratios), 0, replay)
        ordered[name] = float(
            ((2 * replay.x[0, -1].double() - 1).mean(-1).abs() > 0.7).double().mean()
        )
    assert ordered["default"] > 0.6 and ordered["rates alone"] < 0.1  # exact value: 0.85


def test_the_horizon_of_rollouts_grows_to_the_whole_path() -> None:
    rollout = Rollout(num_times=3, chains=8, group_size=8, horizon=0.2, horizon_steps=10)
    for number, end in ((0, 0.2), (5, 0.6), (10, 1.0), (99, 1.0)):
        assert rollout.times(number).tolist() == pytest.approx([0.0, end / 2, end])
    assert Rollout(num_times=3, horizon=0.2).times(0).tolist() == [0.0, 0.5, 1.0]

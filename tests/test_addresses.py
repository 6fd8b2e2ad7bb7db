"""Components by the names that YAML files and saved models ever gave them."""

import re
from pathlib import Path

import hydra.utils
import pytest
import yaml

from blackout.addresses import MOVED, as_first_spelled, current, modernise

CONF = Path(__file__).parents[1] / "conf"
FIRST = [
    "correctors.BirthDeath",
    "correctors.ThinAndBridge",
    "dispersed_heads.LogisticMixtureHead",
    "dispersed_heads.VarianceHead",
    "grids.OptimalGrid",
    "heads.BoundedHead",
    "heads.ScaledHead",
    "heads.SoftplusHead",
    "importance.GradientImportance",
    "jump_heads.BirthDeathHead",
    "jump_heads.LevelHead",
    "jump_heads.LogisticHead",
    "jump_kernels.BirthDeathBridge",
    "jump_kernels.LevelBridge",
    "jump_kernels.LevelCorrector",
    "jump_kernels.TauLeap",
    "jump_losses.BirthDeathLoss",
    "jump_losses.CrossEntropy",
    "jump_losses.RateLoss",
    "jump_losses.StepLoss",
    "kernels.BinomialBridge",
    "kernels.PanjerLeap",
    "kernels.PoissonLeap",
    "kernels.PosteriorBridge",
    "kernels.Trapezoidal",
    "kernels.nearest_rounding",
    "kernels.stochastic_rounding",
    "losses.CountLoss",
    "processes.Absorbing",
    "processes.AbsorbingChain",
    "processes.BirthDeath",
    "processes.DiscreteTimeChain",
    "processes.Ordinal",
    "processes.PureDeath",
    "processes.Uniform",
    "processes.UniformChain",
    "processes.from_generator",
    "samplers.Sampler",
    "schedules.Schedule",
    "schedules.cosine_times",
    "schedules.fisher_times",
    "schedules.logistic_times",
    "schedules.logit_times",
    "schedules.step_times",
    "schedules.uniform_times",
]
"""Every address within `blackout.diffusion` in the YAML files of commit 9966eea."""
WITHOUT_YAML = ["processes.PiecewiseClock", "processes.PowerClock"]
NETWORKS = [
    "process_inputs.BirthDeathInputs", "process_inputs.LevelInputs", "wrapper.PaperInputs",
    "wrapper.StandardisedInputs",
]  # fmt: skip


def test_all_that_moved_is_in_the_table():
    names = {f"blackout.diffusion.{name}" for name in FIRST + WITHOUT_YAML}
    assert names | {f"blackout.networks.{name}" for name in NETWORKS} == set(MOVED)


@pytest.mark.parametrize("old", MOVED)
def test_every_old_name_leads_to_the_component(old):
    made = hydra.utils.get_object(current(old))
    assert made.__name__ == {"Sampler": "make_sampler"}.get(old.rsplit(".")[-1], old.rsplit(".")[-1])
    assert re.fullmatch(r"blackout\.(diffusion|networks)\.\w+", current(old))
    assert current(current(old)) == current(old)


def test_what_the_yaml_files_say_is_up_to_date_and_exists():
    for path in CONF.rglob("*.yaml"):
        config = yaml.safe_load(path.read_text())
        assert modernise(config) == config, path
        for name in re.findall(r"_target_: (blackout\.(?:diffusion|networks)\.\S+)", path.read_text()):
            hydra.utils.get_object(name)


def test_a_round_trip_gives_back_the_first_spelling_and_touches_nothing_else():
    first = {
        "head": {"_target_": "blackout.diffusion.dispersed_heads.VarianceHead", "base": {"_target_": "my.Head"}},
        "sampler": {"_target_": "blackout.diffusion.samplers.Sampler", "corrector_between": [1, 2], "grid": None},
        "many": [{"_target_": f"blackout.diffusion.{name}"} for name in FIRST],
        "name": "blackout.diffusion.heads.ScaledHead",
        "_target_": 3,
    }
    now = modernise(first)
    assert now["sampler"]["_target_"] == "blackout.diffusion.make_sampler" and now["name"] == first["name"]
    assert now["many"][0] == {"_target_": "blackout.diffusion.BirthDeathCorrector"}
    assert as_first_spelled(now) == first and modernise(now) == now
    assert first["head"]["_target_"] == "blackout.diffusion.dispersed_heads.VarianceHead"

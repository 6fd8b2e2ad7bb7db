"""Impossible settings of samplers, simulations, rollouts and callbacks are refused at the start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from omegaconf import DictConfig, OmegaConf

from blackout.component import leaves
from blackout.config.compose import component_parameters, compose
from tests.cli.conftest import Outcome

pytestmark = pytest.mark.deep

PERCEPTRON = ("network=mlp", "network.body.width=8", "network.body.depth=1")
SMALL_ROLLOUT = ("rollout.num_times=3", "rollout.chains=8", "debug=fast")
FAMILIES = {
    "counts": PERCEPTRON,
    "counts by a bridge": (*PERCEPTRON, "sampler=binomial_bridge"),
    "counts of birth and death": (*PERCEPTRON, "process=birth_death"),
    "codes": ("family=codes", "dataset=cycles"),
    "shuffle": ("family=shuffle", "dataset=sort_digits", "decoder=beam"),
    "flow": ("family=flow", "+target.shape=[2,2]", *SMALL_ROLLOUT),
    "energy": ("family=energy", "dataset=counts", *SMALL_ROLLOUT),
}
GROUPS = ("sampler", "simulation", "rollout", "negative", "reverse", "shuffle", "callbacks")
# settings of draws that are no arguments of a component
OTHER_SETTINGS = {"codes": ("passes", "order", "sampler.greedy")}

# values of settings of which -1 is possible
IMPOSSIBLE = {
    "callbacks.checkpoints.monitor": "[]",
    "callbacks.progress.refresh_rate": "abc",
    "callbacks.progress.seconds": "abc",
    "sampler.grid.first": "nan",
    "sampler.grid.last": "nan",
}
GIVEN_BY_THE_PROGRAM = {
    "callbacks.checkpoints.directory",
    "callbacks.nonfinite.directory",
    "callbacks.samples.directory",
    "callbacks.samples.preview",
    "callbacks.scores.scorer",
    "callbacks.scores.required",
    "sampler.grid.num_steps",
}
ANY_WHOLE_NUMBER = {"callbacks.samples.seed", "callbacks.scores.seed"}
TOO_LARGE = {
    "counts": (
        "callbacks.samples.num_samples",
        "callbacks.samples.num_steps",
        "callbacks.scores.num_samples",
        "callbacks.scores.num_samples_between",
        "sampler.num_steps",
        "batch_size",
    ),
    "flow": (
        "simulation.num_steps",
        "rollout.num_times",
        "rollout.chains",
        "rollout.buffer_size",
        "batch_size",
    ),
    "codes": ("batch_size", "passes"),
    "shuffle": ("batch_size",),
}


def settings(family: str, config: DictConfig) -> Iterator[str]:
    """Dotted names of all settings of a family's draws and callbacks."""
    names = [name for name, _ in leaves(OmegaConf.to_container(config))]
    components = sorted(
        name.removesuffix("._target_") for name in names if name.endswith("._target_")
    )
    for component in components:
        used = component != "callbacks.scores" or config.metrics
        if component.split(".")[0] in GROUPS and used:
            yield from (
                f"{component}.{option}" for option in component_parameters(config, component)
            )
    yield from OTHER_SETTINGS.get(family, ())


def words(family: str, folder: Path) -> list[str]:
    """The command line of a small run of a family; it has scores where its recipe has some."""
    if family != "energy":
        return [*FAMILIES[family]]
    np.save(folder / "bits.npy", np.random.default_rng(0).integers(0, 2, (60, 3)).astype(np.uint8))
    return [*FAMILIES[family], f"dataset.path={folder / 'bits.npy'}"]


def assert_all_refused(
    run: Callable[..., Outcome], folder: Path, family: str, values: dict[str, str]
) -> None:
    """Each of the values alone ends the program with one line, before there is a run."""
    accepted = []
    for name, value in values.items():
        runs = folder / name
        outcome = run("train", *words(family, folder), f"runs_dir={runs}", f"++{name}={value}")
        lines = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
        if outcome.code != 2 or len(lines) != 1 or runs.exists():
            accepted.append((name, value, outcome.code, outcome.err[-300:]))
    assert not accepted


@pytest.mark.parametrize("family", FAMILIES)
def test_impossible_values_are_refused(
    family: str, run: Callable[..., Outcome], tmp_path: Path
) -> None:
    config = compose("train", words(family, tmp_path))
    values = {name: IMPOSSIBLE.get(name, "-1") for name in settings(family, config)}
    tested = {
        name: value
        for name, value in values.items()
        if name not in GIVEN_BY_THE_PROGRAM | ANY_WHOLE_NUMBER
    }
    assert tested
    assert_all_refused(run, tmp_path, family, tested)


@pytest.mark.parametrize("family", TOO_LARGE)
def test_sizes_beyond_all_memory_are_refused(
    family: str, run: Callable[..., Outcome], tmp_path: Path
) -> None:
    assert_all_refused(run, tmp_path, family, dict.fromkeys(TOO_LARGE[family], str(10**12)))

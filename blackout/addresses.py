"""Addresses: of components in packages, now and before, and of values in nested settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_FILES = {
    "correctors": ["ThinAndBridge"],
    "dispersed_heads": ["LogisticMixtureHead", "VarianceHead"],
    "grids": ["OptimalGrid"],
    "heads": ["BoundedHead", "ScaledHead", "SoftplusHead"],
    "importance": ["GradientImportance"],
    "jump_heads": ["BirthDeathHead", "LevelHead", "LogisticHead"],
    "jump_kernels": ["BirthDeathBridge", "LevelBridge", "LevelCorrector", "TauLeap"],
    "jump_losses": ["BirthDeathLoss", "CrossEntropy", "RateLoss", "StepLoss"],
    "kernels": [
        "BinomialBridge", "PanjerLeap", "PoissonLeap", "PosteriorBridge", "Trapezoidal", "nearest_rounding",
        "stochastic_rounding",
    ],
    "losses": ["CountLoss"],
    "processes": [
        "Absorbing", "AbsorbingChain", "BirthDeath", "DiscreteTimeChain", "Ordinal", "PiecewiseClock", "PowerClock",
        "PureDeath", "Uniform", "UniformChain", "from_generator",
    ],
    "schedules": [
        "Schedule", "cosine_times", "fisher_times", "logistic_times", "logit_times", "step_times", "uniform_times",
    ],
}  # fmt: skip
"""Where the components of `blackout.diffusion` were when YAML files named them by file."""
_FIRST_SPELLED = {
    "blackout.diffusion.correctors.BirthDeath": "blackout.diffusion.BirthDeathCorrector",
    "blackout.diffusion.samplers.Sampler": "blackout.diffusion.make_sampler",
    **{f"blackout.diffusion.{f}.{name}": f"blackout.diffusion.{name}" for f, names in _FILES.items() for name in names},
}
_OTHER_SPELLINGS = {
    "blackout.networks.process_inputs.BirthDeathInputs": "blackout.networks.BirthDeathInputs",
    "blackout.networks.process_inputs.LevelInputs": "blackout.networks.LevelInputs",
    "blackout.networks.wrapper.PaperInputs": "blackout.networks.PaperInputs",
    "blackout.networks.wrapper.StandardisedInputs": "blackout.networks.StandardisedInputs",
}

MOVED: dict[str, str] = {**_FIRST_SPELLED, **_OTHER_SPELLINGS}
"""What YAML files and saved models called components that have another address now -> that address."""

FIRST_FAMILY = {"_target_": "blackout.diffusion.CountDiffusion"}
"""Of models and runs from when there was only one."""


class Table(NamedTuple):
    """The components of one package that a model file may name: `TABLE` in the package's `components.py`.

    Names are below the package. A place is the name of the argument that the component is given for.
    """

    made: Mapping[str, tuple[str, ...]]
    """Place -> classes and factories, which are called with the arguments described beside them."""
    passed: Mapping[str, tuple[str, ...]] = {}
    """Place -> classes and pure functions that are passed on with arguments filled in (`_partial_: true`)."""
    called: Mapping[str, tuple[str, ...]] = {}
    """Place -> the arguments that what is passed on there gets when it is called, and so not from a file."""
    asked: Mapping[str, str] = {}
    """What only the command line may choose -> what to give there."""


def current(name: str) -> str:
    """The address now of a component by any name it ever had."""
    return MOVED.get(name, name)


def modernise(node: Any) -> Any:
    """Plain containers with every `_target_` in them by its present name; they themselves stay as they are."""
    return _renamed(node, MOVED)


def as_first_spelled(node: Any) -> Any:
    """The inverse: every `_target_` as the first YAML files spelled it, for hashes that must not change."""
    return _renamed(node, {new: old for old, new in _FIRST_SPELLED.items()})


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything in nested mappings."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def _renamed(node: Any, names: dict[str, str]) -> Any:
    if isinstance(node, list | tuple):
        return type(node)(_renamed(item, names) for item in node)
    if not isinstance(node, dict):
        return node
    renamed = {key: _renamed(value, names) for key, value in node.items()}
    target = renamed.get("_target_")
    return {**renamed, "_target_": names.get(target, target)} if isinstance(target, str) else renamed

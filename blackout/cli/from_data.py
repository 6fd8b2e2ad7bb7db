"""From data in memory to a model that Lightning's Trainer trains: the recipes of the commands in a script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from torch import nn

from blackout.component import Plain
from blackout.config.descriptions import add_defaults, to_description
from blackout.config.instantiate import instantiate
from blackout.errors import UserError
from blackout.files import CONF
from blackout.protocols import Source
from blackout.random import fold_seed
from blackout.training.data_module import SourceDataModule
from blackout.training.family import ComponentFamily
from blackout.training.lightning_module import Standalone
from blackout.training.model import INITIALISATION, Model, check_asked
from blackout.training.optimization import Optimization, ema_decay

_RECIPES = {"blackout": "counts", "energy": "counts"}
"""Of arrays of counts; the other families have one recipe each."""
_OF_PROGRAMS = {"family", "dataset", "trainer", "callbacks", "logger", "metrics", "optimizer", "plan", "run_id"}
"""What commands set, and a Trainer or the arguments here do in a script."""
_OF_TRAINING = ("lr", "factory", "warmup_steps", "decay_steps")
"""What is told of `Optimization`, by its own names."""


def from_data(
    data: Any,
    network: Any = None,
    *,
    family: str = "blackout",
    recipe: str | None = None,
    batch_size: int | None = None,
    ema_decay: float | None = None,
    seed: int = 0,
    validation: float | None = None,
    **given: Any,
) -> Standalone:
    """A model with its data: `trainer.fit(model)`, `model.sample(16)`, `model.save_pretrained("folder")`.

    It is trained as the commands train it, by the recipe of the family. Components are given as a class, as
    `functools.partial(<class>, <arguments>)`, as one of the frozen dataclasses (`Sampler`, `Schedule`, ...) or as a
    mapping with `_target_`, so that a saved model can be made again.

    Args:
        data: for counts a dataset of `blackout.data`, or integers [N, D] or [N, C, H, W] as a tensor or NumPy array, of
            which a tenth is validation data and a tenth test data; for other families their `Source` (`Puzzles`,
            `PermutationData`, ...), or for `family="flow"` a target as a component.
        network: a body such as `blackout.networks.UNet`; or a whole network, as a mapping. None: one that fits.
        family: blackout, flow, energy, shuffle or codes.
        recipe: in conf/recipe/<family>; None for that of counts, or the family's own.
        batch_size, ema_decay: in place of the recipe's.
        seed: of weights, order, noise and times.
        validation: share or number of the samples of an array for validation, in place of a tenth; 0 for none.
        given: settings of the family, components among them (`head=`, `sampler=`, `conditional=`, ...), and `lr`,
            `factory`, `warmup_steps` and `decay_steps` of `blackout.training.optimization.Optimization`.

    Raises:
        UserError: data, settings or components that do not fit, or a component that could not be made again.
    """
    check_asked(1, seed)
    optimization = {name: given.pop(name) for name in _OF_TRAINING if name in given}
    own = {"batch_size": batch_size, "ema_decay": ema_decay, "seed": seed, **given}
    own |= {} if network is None else {"network": network}
    if family == "flow":
        own["target"] = data
    settings = _settings(family, recipe, own)
    of_family: ComponentFamily = instantiate(settings["family"], "family")
    if validation is not None:
        data = of_family.divide(data, validation)
    source = of_family.source(settings) if family == "flow" else of_family.source_of(data)
    with torch.random.fork_rng():
        model = make_model(of_family, settings, source)
    of_family.check_sampler(model, scored=False)
    of_family.dry_run(model)
    how: Optimization = replace(instantiate(settings["optimizer"], "optimizer"), **optimization)
    return Standalone(model, how, SourceDataModule(source, settings["batch_size"], seed, epochs=True))


def make_model(family: ComponentFamily, settings: Plain, source: Source) -> Model:
    """The untrained model for `source`, initialised from the seed."""
    description = {"family": settings["family"], **family.describe(settings, source)}
    torch.manual_seed(fold_seed(settings["seed"], INITIALISATION))
    training = {"ema_decay": ema_decay(settings), "seed": settings["seed"]}
    model: Model = family.build(description, family.tensors(source), settings, **training)
    model.source = lambda: source
    return model


def _settings(family: str, recipe: str | None, own: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a recipe with those that are given, and what follows from them."""
    chosen = [f"family={family}", f"recipe={family}/{recipe or _RECIPES.get(family, 'none')}", "dataset=none"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", chosen)
    if unknown := sorted(own.keys() - (config.keys() - _OF_PROGRAMS)):
        components = [name for name, part in config.items() if isinstance(part, DictConfig) and "_target_" in part]
        raise UserError(f"{unknown[0]}: no such option; components are {', '.join(map(str, components))}")
    OmegaConf.set_struct(config, False)
    config.dataset = None  # recipes may set part of one; here the data are given
    for name, value in ((name, value) for name, value in own.items() if value is not None):
        part = to_description(value, name)
        if isinstance(config[name], DictConfig) and "_target_" in config[name] and not isinstance(part, Mapping):
            raise UserError(f"{name}={part!r}: a class is needed, functools.partial of one, or a mapping with _target_")
        if name == "network" and isinstance(value, type) and not issubclass(value, nn.Module):
            raise UserError(f"network: {value.__name__} is no torch.nn.Module")
        body = name == "network" and not isinstance(value, Mapping) and "body" in config.network
        if body and part["_target_"] != config.network._target_:
            config.network.body = part
        elif isinstance(part, Mapping) and isinstance(before := config[name], DictConfig):
            # its own defaults for what the recipe lists of the one before, to which others may refer
            whole_part = add_defaults(part, name).items()
            config[name] = {key: value for key, value in whole_part if key in part or key in before}
        else:
            config[name] = part
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]

"""From data in memory to a model that Lightning's Trainer trains, by the commands' recipes."""

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
from blackout.data.count_data import split_array
from blackout.data.splits import DEFAULT_VALIDATION
from blackout.errors import UserError, error_context, refuse
from blackout.files import CONF
from blackout.protocols import Source
from blackout.random import fold_seed
from blackout.training.data_module import SourceDataModule
from blackout.training.family import ComponentFamily
from blackout.training.lightning_module import Standalone
from blackout.training.model import INITIALISATION, Model, check_sampling_arguments
from blackout.training.optimization import Optimization, ema_decay

# family of arrays of counts -> its recipe; the other families have one recipe each
DEFAULT_RECIPES = {"blackout": "counts", "energy": "counts"}
# what commands set, and what in a script the Trainer or the arguments of `from_data` do
PROGRAM_SETTINGS = {
    "callbacks",
    "dataset",
    "family",
    "logger",
    "metrics",
    "optimizer",
    "plan",
    "run_id",
    "trainer",
}
# arguments of `Optimization`, by its own names
OPTIMIZATION_SETTINGS = ("lr", "factory", "warmup_steps", "decay_steps")


def from_data(  # noqa: PLR0913 - keyword-only settings of a run
    data: Any,
    network: Any = None,
    *,
    family: str = "blackout",
    recipe: str | None = None,
    batch_size: int | None = None,
    ema_decay: float | None = None,
    seed: int = 0,
    validation: float | None = None,
    labels: Any = None,
    **settings: Any,
) -> Standalone:
    """Return a model with its data, which Lightning's Trainer trains as the commands would.

    A component is given as a class, as `functools.partial(<class>, <arguments>)`, as one of the
    frozen dataclasses (`Sampler`, `Schedule`, ...) or as a mapping with `_target_`, so that a saved
    model can be built again.

    Args:
        data: for counts, a data set of `blackout.data`, or whole numbers [N, D] or [N, C, H, W] as
            a tensor, NumPy array, SciPy sparse matrix, AnnData, DataFrame or xarray.DataArray, of
            which a tenth is validation data and a tenth test data; for other families their
            `Source` (`Puzzles`, `PermutationData`, ...), or for `family="flow"` a target as a
            component.
        network: a body such as `blackout.networks.UNet`, or a whole network as a mapping; None
            chooses one that fits.
        family: blackout, flow, energy, shuffle or codes.
        recipe: in conf/recipe/<family>; None for that of counts, or the family's own.
        batch_size: None for the recipe's.
        ema_decay: decay of the averaged weights per step; None for the recipe's.
        seed: of weights, order, noise and times.
        validation: share or number of the samples of an array for validation, in place of a tenth;
            0 for none.
        labels: class of each sample of an array, whole numbers or texts [N], or the name of a
            column of AnnData or a DataFrame; the model is then conditional, unless
            `conditional=False`.
        settings: of the family, components among them (`head=`, `sampler=`, `conditional=`, ...),
            and `lr`, `factory`, `warmup_steps` and `decay_steps` of
            `blackout.training.optimization.Optimization`.

    Raises:
        UserError: data, settings or components that do not fit, or a component that could not be
            built again.

    Example:
        >>> import torch
        >>> from blackout import from_data
        >>> model = from_data(torch.poisson(torch.full((100, 5), 3.0)).long())
        >>> model.sample(16).shape
        torch.Size([16, 5])
    """
    check_sampling_arguments(1, seed)
    if labels is not None:
        refuse(family != "blackout", f"labels are for family=blackout, not for {family}")
        with error_context("data"):
            share = DEFAULT_VALIDATION if validation is None else validation
            data = split_array(data, share, labels)
        settings = {"conditional": True, **settings}
        validation = None
    optimization_settings = {
        name: settings.pop(name) for name in OPTIMIZATION_SETTINGS if name in settings
    }
    overrides = {"batch_size": batch_size, "ema_decay": ema_decay, "seed": seed, **settings}
    if network is not None:
        overrides["network"] = network
    if family == "flow":
        overrides["target"] = data
    config = _compose_settings(family, recipe, overrides)
    model_family: ComponentFamily = instantiate(config["family"], "family")
    if validation is not None:
        data = model_family.divide(data, validation)
    is_flow = family == "flow"  # whose data are its target, an energy
    with error_context("data"):
        source = model_family.source(config) if is_flow else model_family.to_source(data)
    with torch.random.fork_rng():
        model = make_model(model_family, config, source)
    model_family.check_sampler(model, scored=False)
    model_family.dry_run(model)
    optimization: Optimization = instantiate(config["optimizer"], "optimizer")
    optimization = replace(optimization, **optimization_settings)
    data_module = SourceDataModule(source, config["batch_size"], seed, epochs=True)
    return Standalone(model, optimization, data_module)


def make_model(family: ComponentFamily, settings: Plain, source: Source) -> Model:
    """Return the untrained model for `source`, initialised from the seed."""
    description = {"family": settings["family"], **family.describe(settings, source)}
    torch.manual_seed(fold_seed(settings["seed"], INITIALISATION))
    training = {"ema_decay": ema_decay(settings), "seed": settings["seed"]}
    model: Model = family.build(description, family.tensors(source), settings, **training)
    model.source = lambda: source
    return model


def _compose_settings(
    family: str, recipe: str | None, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of a recipe with overrides; a null override keeps the recipe's value.

    Raises:
        UserError: a setting that does not exist, or a value that is not a component where one is
            needed.
    """
    recipe = recipe or DEFAULT_RECIPES.get(family, "none")
    words = [f"family={family}", f"recipe={family}/{recipe}", "dataset=none"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", words)
    unknown = sorted(overrides.keys() - (config.keys() - PROGRAM_SETTINGS))
    if unknown:
        components = [str(name) for name, part in config.items() if _is_component(part)]
        raise UserError(f"{unknown[0]}: no such setting; components are {', '.join(components)}")
    OmegaConf.set_struct(config, False)
    config.dataset = None  # recipes may set part of one; here the data are given
    for name, value in overrides.items():
        if value is not None:
            _override(config, name, value)
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


def _override(config: DictConfig, name: str, value: Any) -> None:
    """Set a component or a value in a composed configuration.

    Raises:
        UserError: a value that is not a component where one is needed.
    """
    part = to_description(value, name)
    current = config[name]
    if _is_component(current) and not isinstance(part, Mapping):
        raise UserError(
            f"{name}={part!r}: give a class, functools.partial of one, or a mapping with _target_"
        )
    if name == "network":
        if isinstance(value, type) and not issubclass(value, nn.Module):
            raise UserError(f"network: {value.__name__} is not a torch.nn.Module")
        is_body = not isinstance(value, Mapping) and "body" in current
        if is_body and part["_target_"] != current._target_:
            current.body = part
            return
    if isinstance(part, Mapping) and isinstance(current, DictConfig):
        # Other settings may refer to arguments that the recipe lists: those keep a value, the
        # default of the new component.
        complete = add_defaults(part, name)
        config[name] = {
            key: value for key, value in complete.items() if key in part or key in current
        }
    else:
        config[name] = part


def _is_component(part: Any) -> bool:
    return isinstance(part, DictConfig) and "_target_" in part

"""From data in memory to a model that Lightning's Trainer trains: the recipe of `dataset=counts` without Hydra."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from blackout.data import CountData
from blackout.diffusion.family import CountDiffusion
from blackout.errors import UserError
from blackout.random import fold_seed
from blackout.training.components import described
from blackout.training.data_module import SourceDataModule
from blackout.training.lightning_module import Standalone
from blackout.training.model import INITIALISATION
from blackout.training.optimization import Optimization

_NETWORK = {"_target_": "blackout.networks.CountNetwork", "inputs": {"_target_": "blackout.networks.CountInputs"}}
_GRID = {"_target_": "blackout.diffusion.logistic_times", "_partial_": True}
RECIPE: dict[str, dict[str, Any]] = {
    "network": {**_NETWORK, "body": {"_target_": "blackout.networks.body_for"}, "channels_last": True},
    "head": {"_target_": "blackout.diffusion.GammaHead", "own_counts": None},
    "process": {"_target_": "blackout.diffusion.PureDeath"},
    "schedule": {
        "_target_": "blackout.diffusion.Schedule",
        "grid": {**_GRID, "first": None, "last": None, "location": None, "scale": None, "floor": 0.2},
        "num_steps": 1000,
        "continuous": True,
    },
    "loss": {"_target_": "blackout.diffusion.CountLoss", "kind": "instantaneous", "weighting": "growth"},
    "sampler": {
        "_target_": "blackout.diffusion.make_sampler",
        "num_steps": 50,
        "kernel": {"_target_": "blackout.diffusion.Trapezoidal"},
    },
}
"""That of conf/recipe/blackout/counts.yaml; what is null follows from the data."""


def from_data(
    data: Any,
    network: Any = None,
    *,
    conditional: bool = False,
    batch_size: int = 128,
    lr: float = 2e-3,
    optimizer: Callable[..., Optimizer] = torch.optim.Adam,
    warmup_steps: int = 100,
    decay_steps: int | None = None,
    ema_decay: float = 0.998,
    seed: int = 0,
    label_dropout: float = 0.1,
    validation_draws: int = 8,
    **parts: Any,
) -> Standalone:
    """A model of counts with its data: `trainer.fit(model)`, `model.sample(16)`, `model.save_pretrained("folder")`.

    Components are given as a class, as `functools.partial(<class>, <arguments>)`, as one of the frozen dataclasses
    (`Sampler`, `Schedule`, ...) or as a mapping with `_target_`, so that a saved model can be made again.

    Args:
        data: `CountData`, or integers [N, D] or [N, C, H, W] as a tensor or NumPy array, of which a tenth is held out.
        network: a body such as `blackout.networks.UNet`; or a whole network, as a mapping. None: one that fits.
        conditional: whether the network is given the classes of the samples.
        batch_size: samples per step, over all devices.
        lr, optimizer, warmup_steps, decay_steps: see `Optimization`.
        ema_decay: of the averaged weights, which samples are drawn with.
        seed: of weights, order, noise and times.
        label_dropout, validation_draws: see `BlackoutDiffusion`.
        parts: head, process, schedule, loss, sampler, in place of the recipe's.

    Raises:
        UserError: data or components that do not fit, or a component that could not be made again.
    """
    data = data if isinstance(data, CountData) else CountData.from_array(data)
    family, description = CountDiffusion(), _described_model(data, network, parts, conditional)
    training = {"label_dropout": label_dropout, "validation_draws": validation_draws}
    with torch.random.fork_rng():
        torch.manual_seed(fold_seed(seed, INITIALISATION))
        model = family.build(description, family.tensors(data), training, ema_decay=ema_decay, seed=seed)
    model.source = lambda: data
    family.dry_run(model)
    how = Optimization(lr, optimizer, warmup_steps, decay_steps)
    return Standalone(model, how, SourceDataModule(data, batch_size, seed, epochs=True))


def _described_model(data: CountData, network: Any, parts: Mapping[str, Any], conditional: bool) -> dict[str, Any]:
    """The recipe with the parts that are given, completed with what the data decide."""
    if unknown := parts.keys() - RECIPE.keys():
        raise UserError(f"{min(unknown)}: no such option; components are {', '.join(RECIPE)}")
    chosen = {name: described(part, name) for name, part in parts.items()}
    settings: dict[str, Any] = {**RECIPE, "network": _network(network), **chosen, "conditional": conditional}
    if "loss" not in chosen:
        settings["loss"] = {**RECIPE["loss"], "scale": settings["schedule"].get("num_steps", 1000)}
    return {"family": {"_target_": "blackout.diffusion.CountDiffusion"}, **CountDiffusion().describe(settings, data)}


def _network(given: Any) -> Mapping[str, Any]:
    """The description of a whole network: a body by itself gets the recipe's inputs."""
    if given is None:
        return RECIPE["network"]
    found: Mapping[str, Any] = described(given, "network")
    whole = isinstance(given, Mapping) or found["_target_"] == _NETWORK["_target_"]
    return found if whole else {**_NETWORK, "body": found}

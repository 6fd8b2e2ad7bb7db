"""From configuration to objects, and back to a plain description that a file can keep.

A component is a mapping with a `_target_`. What the data decides (shape, max_count, mean, std) and what the head
decides (outputs) need not be written down: every component whose signature asks for one of these names gets it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import hydra.utils
import torch
from hydra.errors import InstantiationException
from omegaconf import OmegaConf
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor

from blackout.addresses import current, modernise
from blackout.data import CountData
from blackout.diffusion.heads import Head
from blackout.diffusion.module import BlackoutDiffusion
from blackout.diffusion.processes import Process
from blackout.diffusion.processes.matrix_file import without_files
from blackout.diffusion.samplers import Sampler, sample
from blackout.diffusion.schedules import Schedule
from blackout.errors import UserError

_TELLTALES = {
    "network": "forward", "head": "outputs", "process": "prior", "schedule": "intervals", "loss": "__call__",
    "sampler": "kernel",
}  # fmt: skip
"""What a part must have to be taken for what it is."""
_TRIED = 9
"""Times of a grid at which a sampler is tried."""
MODEL_PARTS = ("network", "head", "process", "schedule", "loss", "sampler")
MODEL_MODULES = ("blackout.networks", "blackout.diffusion")


def instantiate(config: Any, where: str, **kwargs: Any) -> Any:
    """Make the object a configuration describes.

    Args:
        config: a mapping with `_target_`, or anything else, which is returned as it is.
        where: the configuration's name, for the message.
        kwargs: further arguments, passed on untouched.

    Raises:
        UserError: the component refused its arguments, or does not exist.
    """
    config = modernise(config)
    with refusals(where):
        try:
            if not kwargs:
                return hydra.utils.instantiate(config, _convert_="all")
            return hydra.utils.instantiate({**config, "_partial_": True}, _convert_="all")(**kwargs)
        except InstantiationException as error:
            raise error.__cause__ or UserError(str(error)) from None


@contextmanager
def refusals(where: str) -> Iterator[None]:
    """Inside, whatever goes wrong is about what the user gave: say where, in one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{where}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """An exception's first line, with its kind where that says more than the line."""
    line = (str(error).splitlines() or [""])[0]
    plain = isinstance(error, ValueError | TypeError | ImportError | MisconfigurationException) and line
    return line if plain else f"{type(error).__name__} {line}".strip()


def data_facts(data: CountData) -> dict[str, Any]:
    """What components may ask about the data."""
    return {"shape": list(data.shape), "max_count": data.max_count, "mean": data.mean, "std": data.std}


def model_config(config: Mapping[str, Any], data: CountData) -> dict[str, Any]:
    """The complete plain description of a model for `data`, from which `build_model` makes it without the data.

    Raises:
        UserError: a model with classes (`conditional`) of data without labels, or a component that does not exist.
    """
    parts = {name: _plain(config[name]) for name in MODEL_PARTS}
    parts["process"] = without_files(parts["process"])
    facts = data_facts(data)
    if config.get("conditional", False):
        if data.num_classes is None:
            raise UserError(f"conditional=true: {data.name} has no labels")
        facts["num_classes"] = data.num_classes
    filled = {name: fill(parts[name], facts, name) for name in ("process", "head")}
    outputs = _make_head(filled["head"], instantiate(filled["process"], "process")).outputs
    filled = {name: fill(part, {**facts, "outputs": outputs}, name) for name, part in parts.items()}
    return {
        "data": {"name": data.name, **facts},
        "dataset": {key: value for key, value in _plain(config.get("dataset") or {}).items() if key != "data_dir"},
        "metrics": _plain(config.get("metrics")),
        "model": filled,
    }


def fill(part: Any, facts: Mapping[str, Any], where: str) -> Any:
    """Give every component inside `part` the facts its signature asks for and its configuration leaves out."""
    if isinstance(part, list):
        return [fill(item, facts, where) for item in part]
    if not isinstance(part, dict):
        return part
    filled = {key: fill(value, facts, f"{where}.{key}") for key, value in part.items()}
    if "_target_" in filled and not filled.get("_partial_", False):
        wanted = inspect.signature(_resolve(filled, where)).parameters
        filled.update({name: fact for name, fact in facts.items() if name in wanted and filled.get(name) is None})
    return filled


def build_model(config: Mapping[str, Any], mean: Tensor, **training: Any) -> BlackoutDiffusion:
    """Make the module that `model_config` describes.

    Args:
        config: what `model_config` returned.
        mean: E[X_0] of the data, of its shape.
        training: further arguments of `BlackoutDiffusion` (optimization, ema_decay, seed).

    Raises:
        UserError: a component refused its arguments.
    """
    parts = {name: instantiate(config["model"][name], name) for name in MODEL_PARTS if name != "head"}
    parts["head"] = _make_head(config["model"]["head"], parts["process"])
    for name, attribute in _TELLTALES.items():
        if not hasattr(parts[name], attribute):
            raise UserError(f"{name}: {type(parts[name]).__name__} cannot serve as the {name}")
    with refusals("process"):
        parts["process"].check_final_time(parts["schedule"].times[-1])
    _check_fit(parts, tuple(mean.shape))
    module = BlackoutDiffusion(mean=mean, **parts, **training)
    module.config = dict(config)
    return module


def _check_fit(parts: Mapping[str, Any], shape: tuple[int, ...]) -> None:
    """Try loss and sampler once on an empty sample, so that a head, loss or sampler of another process shows now.

    Raises:
        UserError: they do not fit together.
    """
    process, head, schedule, loss = parts["process"], parts["head"], parts["schedule"], parts["loss"]
    s, t = schedule.intervals(torch.full((1,), 0.5, dtype=torch.float64))
    x0, raw = torch.zeros(1, *shape, dtype=torch.uint8), torch.zeros(1, head.outputs, *shape)

    def train() -> Tensor:
        xt, target = process.observe(x0, t, torch.Generator().manual_seed(0))
        losses: Tensor = loss(head(raw, xt, t), target, s, t)
        return losses

    _try("loss", train, loss, process, head, shape)
    check_sampler(parts["sampler"], schedule, process, head, shape)


def check_sampler(sampler: Sampler, schedule: Schedule, process: Process, head: Head, shape: tuple[int, ...]) -> None:
    """Try a sampler once, on an empty sample and a few of its times, before anything long.

    Args:
        sampler: whose kernel, correctors and grid are tried.
        schedule, process, head: the model's.
        shape: of one sample.

    Raises:
        UserError: kernel or correctors need what the head does not predict or belong to another process, or the grid
            is not one of the process.
    """
    with refusals("sampler"):
        times = (sampler.grid or schedule.grid)(sampler.num_steps)
        process.check_final_time(times[-1])
    few = times[torch.linspace(0, len(times) - 1, min(len(times), _TRIED)).round().long()]
    raw = torch.zeros(1, head.outputs, *shape)

    def check(k: int, xt: Tensor, prediction: object) -> None:
        if xt.shape != (1, *shape):  # at once: with every further step it would be larger
            raise TypeError("a kernel for predictions of another shape")

    def draw() -> Tensor:
        return sample(
            lambda xt, t: head(raw, xt, t), process, few, (1, *shape), torch.Generator().manual_seed(0), check,
            kernel=sampler.kernel, correction=sampler.correction,
        )  # fmt: skip

    _try("sampler", draw, sampler.kernel, process, head, shape)


def _try(
    name: str, trial: Callable[[], Tensor], part: object, process: Process, head: Head, shape: tuple[int, ...]
) -> None:
    try:
        fits = trial().shape == (1, *shape)
    except (AttributeError, IndexError, RuntimeError, TypeError):
        fits = False
    except ValueError as error:
        raise UserError(f"{name}: {error}") from error
    if not fits:
        raise UserError(
            f"{name}: {type(part).__name__} does not fit the process {type(process).__name__} with the head "
            f"{type(head).__name__}; `process=` alone chooses head, loss and sampler that do"
        )


def _make_head(config: Mapping[str, Any], process: Process) -> Head:
    """The head, with the process where its signature asks for one."""
    wants_process = "process" in inspect.signature(_resolve(config, "head")).parameters
    return instantiate(config, "head", **({"process": process} if wants_process else {}))


def check_targets(config: Any, trusted: tuple[str, ...] = (), own: tuple[str, ...] = MODEL_MODULES) -> None:
    """Refuse a description read from a file that names anything but this package's components.

    Args:
        config: plain containers.
        trusted: further module prefixes whose components may be made.
        own: this package's modules whose components are meant here.

    Raises:
        UserError: a `_target_` outside `own` and `trusted`.
    """
    if isinstance(config, list):
        for item in config:
            check_targets(item, trusted, own)
    if not isinstance(config, Mapping):
        return
    for value in config.values():
        check_targets(value, trusted, own)
    if "_target_" in config:
        name, allowed = config["_target_"], (*own, *trusted)
        # the name's prefix first, so that nothing foreign is even imported; then where the object really lives
        prefix_ok = isinstance(name, str) and name.startswith(tuple(f"{module}." for module in allowed))
        if not prefix_ok or not _resolve(config, "model").__module__.startswith(allowed):
            raise UserError(
                f"the model file asks for '{name}', which is not a component of {', '.join(allowed)}: not loaded"
            )


def _resolve(part: Mapping[str, Any], where: str) -> Any:
    try:
        return hydra.utils.get_object(current(part["_target_"]))
    except KeyError:
        raise UserError(f"{where}: the configuration names no _target_") from None
    except Exception as error:  # hydra raises bare ImportError and its own kinds alike
        raise UserError(f"{where}: {part['_target_']} cannot be found: {str(error).splitlines()[0]}") from error


def _plain(config: Any) -> Any:
    return OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else config

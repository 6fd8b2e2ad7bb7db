"""The settings of a run: the configuration that Hydra composed, checked, in plain containers.

docs/reference/settings.md lists them.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from blackout.config.choices import list_choices
from blackout.config.explain import explain_values, suggest_key
from blackout.distributed import is_first
from blackout.errors import UserError, refuse
from blackout.files import CONF, refuse_address

TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a name",
    list: "a list",
}
# setting -> values that it takes besides those of its type
SPECIAL_VALUES: dict[str, tuple[str | None, ...]] = {
    "ema_decay": (None,),
    "compile": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
}
# settings with the path of a file or folder, in which ~ is the user's home: shells expand it only
# at the start of a word
PATH_SETTINGS = frozenset(["data_dir", "out", "runs_dir", "samples"])
VALUE_GROUPS = frozenset(["likelihood"])  # groups of plain values, without a component
NO_CHOICE_NEEDED = ()  # default of a group that may stay empty
CHOICE_NEEDED: dict[str, Any] = {}  # default of a group in which something must be chosen
BUSY_LOAD = 0.9  # load per processor above which several threads wait for each other
EXPECTED_WARNINGS = (
    "does not have many workers",  # small data sets are faster without worker processes
    "in eval mode at the start of training",  # of classifiers and teachers, which are not trained
    "treespec, LeafSpec",  # inside torch
    "`EvalLoader` across ranks is zero",  # data without validation samples
)


def resolve_settings(cfg: DictConfig, allow_additions: bool = False) -> dict[str, Any]:
    """Return the settings in plain containers, with interpolations resolved.

    Args:
        cfg: what Hydra composed.
        allow_additions: keep settings that the program does not declare if the command line sets
            them; whoever reads them refuses unknown ones. Other undeclared settings come from
            choices that training uses too, and are left out.

    Raises:
        UserError: an unknown setting, one without a value, or a value of the wrong type.
    """
    try:
        config: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise UserError(explain_values(cfg) or str(error).splitlines()[0]) from error
    _refuse_partial_overrides()
    _refuse_text_for_groups(config)
    if config.get("ckpt_path") == "last":  # Lightning's word for the default here
        config["ckpt_path"] = None

    defaults = _declared_settings() if HydraConfig.initialized() else config
    for name in sorted(config.keys() | defaults.keys()):
        if name not in config:
            refuse(defaults[name] != NO_CHOICE_NEEDED, f"{name} must be given")
        elif name in defaults:
            config[name] = _check_type(name, config[name], defaults[name])
        else:
            suggestion = suggest_key(name, sorted(defaults))
            refuse(not allow_additions, f"{name}: no such setting{suggestion}")
            if not is_overridden(name):
                del config[name]
    for name in config.keys() & PATH_SETTINGS:
        if isinstance(config[name], str):
            config[name] = os.path.expanduser(config[name])
    for name in config.keys() & {"data_dir", "out"}:
        refuse_address(Path(str(config[name])))
    return config


def optional_path(config: Mapping[str, Any], name: str) -> str | None:
    """Return a setting that names a file or directory, or None if it is null.

    Raises:
        UserError: it is a list, a mapping or a truth value.
    """
    value = config[name]
    is_wrong = isinstance(value, dict | list | bool)
    refuse(is_wrong, f"{name} must be the name of a file or directory, not {value!r}")
    return None if value is None else str(value)


def is_overridden(group: str) -> bool:
    """Return whether the command line itself chooses from a group, or sets a part of it."""
    prefixes = (f"{group}.", f"{group}/", f"{group}@")
    return any(key == group or key.startswith(prefixes) for key in _overridden_keys())


def thread_warning(load: float, threads: int, processors: int) -> str:
    """Return a warning if `threads` would wait for each other; empty if they would not.

    Args:
        load: number of processes that ran or waited, averaged over the last minute.
        threads: number of threads of torch.
        processors: number of processors of the machine.
    """
    if threads < 2 or load < BUSY_LOAD * processors:
        return ""
    return (
        f"threads: torch uses {threads}, but the load is {load:.1f} on {processors} processors; "
        "threads that wait for each other can be twenty times slower than a single one; "
        "set OMP_NUM_THREADS=1"
    )


def configure_libraries(tf32: bool = False) -> None:
    """Set torch's and Lightning's global options for a program, and warn if threads would stall.

    Args:
        tf32: whether a CUDA device may round the inputs of float32 products and convolutions to
            TF32, which has 11 significant bits of 24. Networks of scores never do.
    """
    warning = thread_warning(os.getloadavg()[0], torch.get_num_threads(), os.cpu_count() or 1)
    if warning and is_first():
        print(warning, flush=True)
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    for name in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", f".*{message}")


def _refuse_text_for_groups(config: Mapping[str, Any]) -> None:
    """Refuse `optimizer: adamw` in an experiment, which Hydra reads as text and not as a choice.

    Raises:
        UserError: the entry of the defaults list that makes the choice.
    """
    for name, value in config.items():
        if isinstance(value, str) and (CONF / name).is_dir() and value in list_choices(name):
            entry = f"- override /{name}: {value}"
            raise UserError(
                f"{name}: {value} is text here; to choose it, write {entry} in the defaults list"
            )


def _declared_settings() -> dict[str, Any]:
    """Return the settings that program, family and experiment declare, with their defaults.

    A group has the default `CHOICE_NEEDED` or `NO_CHOICE_NEEDED`.
    """
    hydra_config = HydraConfig.get()
    group_choices = hydra_config.runtime.choices
    program = _load_declarations(str(hydra_config.job.config_name))
    family = _load_declarations(f"family/{group_choices.get('family')}")
    experiment = _load_experiment(f"experiment/{group_choices.get('experiment')}")
    # An experiment adds settings of its own; its values of other settings are not defaults.
    groups = experiment.groups | program.groups | family.groups
    declared = experiment.values | groups | family.values | program.values
    return {
        name: CHOICE_NEEDED if value == "???" else value
        for name, value in declared.items()
        if name != "hydra"
    }


class Declarations(NamedTuple):
    """Groups and settings that a YAML file declares, with their defaults."""

    groups: dict[str, Any]  # name -> `CHOICE_NEEDED` or `NO_CHOICE_NEEDED`
    values: dict[str, Any]  # setting -> default
    bases: list[str]  # experiments that it is based on


def _load_experiment(name: str) -> Declarations:
    """Return what an experiment and the experiments that it is based on declare."""
    declarations = _load_declarations(name)
    for base_name in declarations.bases:
        base = _load_experiment(base_name)
        declarations = Declarations(
            base.groups | declarations.groups, base.values | declarations.values, []
        )
    return declarations


def _load_declarations(name: str) -> Declarations:
    """Return what a file on Hydra's search path declares; nothing if there is no such file."""
    sources = HydraConfig.get().runtime.config_sources
    files = [Path(source.path) / f"{name}.yaml" for source in sources if source.schema == "file"]
    for file in files:
        if file.is_file():
            values: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
            defaults_list = values.pop("defaults", [])
            bases = [
                entry.lstrip("/")
                for entry in defaults_list
                if isinstance(entry, str) and entry.startswith("/experiment/")
            ]
            return Declarations(dict(_declared_groups(defaults_list)), values, bases)
    return Declarations({}, {}, [])


def _declared_groups(defaults_list: Any) -> Iterator[tuple[str, Any]]:
    """Yield every group of a defaults list and whether a choice is needed, last first."""
    for entry in reversed(defaults_list):
        if not isinstance(entry, dict):
            continue  # `_self_`
        for key, choice in entry.items():
            words = re.split(r"[ @]", key)  # "optional process", "/refine@rollout.refine"
            name = re.split(r"[/.]", words[-1].lstrip("/"))[0]
            is_needed = choice is not None and len(words) == 1 and "$" not in choice
            yield name, CHOICE_NEEDED if is_needed else NO_CHOICE_NEEDED


def _check_type(name: str, value: Any, default: Any) -> Any:
    """Return the value of a setting in the type of its default.

    Whole numbers are accepted as numbers, and numbers as names: a directory may be called 17.

    Raises:
        UserError: a value of another type.
    """
    if name in VALUE_GROUPS:
        return _check_value_group(name, value, default)
    expected = type(default)
    special_values = SPECIAL_VALUES.get(name, ())
    if expected not in TYPE_NAMES or type(value) is expected or value in special_values:
        return value
    if expected in (float, str) and type(value) in (int, float):
        return expected(value)
    special_names = ["null" if special is None else special for special in special_values]
    allowed = [TYPE_NAMES[expected], *special_names]
    raise UserError(f"{name} must be {' or '.join(allowed)}, not {value!r}")


def _check_value_group(group: str, values: Any, defaults: Mapping[str, Any]) -> Any:
    """Return a group of plain values, each in the type of its default.

    Raises:
        UserError: an unknown name, or a value of another type.
    """
    if isinstance(values, str):  # the name of a file, for families that read one
        return values
    is_mapping = isinstance(values, Mapping)
    refuse(not is_mapping, f"{group} must be a group of settings, not {values!r}")
    unknown = sorted(values.keys() - defaults.keys())
    if unknown:
        raise UserError(f"{group}.{unknown[0]}: no such setting; one of {', '.join(defaults)}")
    return {
        name: _check_type(f"{group}.{name}", value, defaults[name])
        for name, value in values.items()
    }


def _overridden_keys() -> list[str]:
    """Return the names that the command line sets, without signs and values."""
    words = HydraConfig.get().overrides.task if HydraConfig.initialized() else ()
    return [word.lstrip("+~").partition("=")[0] for word in words]


def _refuse_partial_overrides() -> None:
    """Refuse `..._partial_=...`: the code decides whether a component is built or passed on.

    Raises:
        UserError: the name of the setting.
    """
    for key in _overridden_keys():
        is_partial = key.rpartition(".")[2] == "_partial_"
        refuse(is_partial, f"{key}: no such setting, because the code sets _partial_: omit it")

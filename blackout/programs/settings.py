"""The settings of a program: where Hydra finds them, and of what kinds they are.

A group such as `head` is a file, conf/head.yaml, whose sections are its choices; the section `grid/logit` of
conf/sampler.yaml is a choice of `sampler/grid`. Groups whose choices set things everywhere (family, recipe, experiment,
task, debug) are folders with a file for each, as Hydra has them, and so are groups in folders of the user's. What a
paper or a family has many of is one file in such a folder: the section `table4/s1` of conf/experiment/dnfs.yaml is
`experiment=dnfs/table4/s1`.

A command line is checked against what the YAML files of the program and of the chosen family list;
docs/reference/settings.md has them as a table, with what may change in a run (`run_directory`).
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
import warnings
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.hydra import Hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override, OverrideType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf, open_dict

from blackout.distributed import is_first
from blackout.errors import UserError, refuse
from blackout.files import CONF, refuse_address, working_folder
from blackout.training.instantiate import find

PROGRAMS = ("train", "sample")
EVERYWHERE = ("experiment/", "recipe/", "task/")
"""Groups whose choices set things everywhere, in files of many."""


@functools.cache
def sections(group: str) -> dict[str, DictConfig | None]:
    """The choices in the file of a group, and of groups inside it, as `<group>/<choice>`; none without such a file."""
    file = CONF / f"{group}.yaml"
    if group in PROGRAMS or not file.is_file():
        return {}
    written = OmegaConf.load(file)
    assert isinstance(written, DictConfig)
    return {f"{group}/{name!s}": node for name, node in written.items_ex(resolve=False)}


def home(name: str) -> str:
    """The file that would have the section of `<group>/<choice>`: `<group>`, or `experiment/<paper>`."""
    return "/".join(name.split("/")[: 1 + name.startswith(EVERYWHERE)])


class Sections(ConfigSource):
    """The choices in files of groups, and recipes that follow from others, as Hydra asks for them."""

    unwritten: ClassVar[dict[str, DictConfig]] = {}
    """Recipes of datasets that have none of their own; files, which Hydra looks at first, go before them."""

    @staticmethod
    def scheme() -> str:
        """What paths of this source begin with."""
        return "sections"

    def load_config(self, config_path: str) -> ConfigResult:
        """A choice. A section that is `null` makes the group null; one that only lists others has no place itself."""
        name = config_path.removesuffix(".yaml")
        node = {**self.unwritten, **sections(home(name))}[name]
        if node is None:
            node = OmegaConf.create({name.rpartition("/")[0]: None, "defaults": []})
        package = "_global_" if list(node)[-1:] == ["defaults"] or name.startswith(EVERYWHERE) else None
        return ConfigResult(self.provider, self.full_path(), node.copy(), {"package": package})

    def is_config(self, config_path: str) -> bool:
        """Whether there is such a choice."""
        name = config_path.removesuffix(".yaml")
        return name in self.unwritten or name in sections(home(name))

    def is_group(self, config_path: str) -> bool:
        """Whether there is such a group."""
        return any(name.startswith(f"{config_path}/") for name in sections(home(config_path)))

    def available(self) -> bool:
        """Always."""
        return True

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """The choices of a group, in order."""
        names = (name.rpartition("/") for name in sections(home(config_path)))
        return sorted(choice for group, _, choice in names if group == config_path)


def _with_sections(repository: ConfigRepository, search_path: ConfigSearchPath) -> None:
    """Look in folders first, the user's too, and last but Hydra's own schemas in the files of groups."""
    _initialize_sources(repository, search_path)
    repository.sources.append(Sections("blackout", f"{Sections.scheme()}://{CONF}"))
    repository.sources.sort(key=lambda source: (source.scheme() == "structured", isinstance(source, Sections)))


def recipe(family: str, dataset: str | None) -> str:
    """How a family trains on a dataset: recipe/<family>/<dataset>.yaml; what none.yaml says where there is none."""
    Sections.unwritten[f"recipe/{family}/none"] = OmegaConf.create({"defaults": [{"/metrics": "none"}]})
    if dataset not in (None, "none"):
        Sections.unwritten[f"recipe/{family}/{dataset}"] = OmegaConf.create({"defaults": [f"/recipe/{family}/none"]})
    return f"{family}/{dataset or 'none'}"


def metrics_for(dataset: str | None) -> str:
    """The scores that a recipe for a dataset chooses; the model's own where no recipe does."""
    texts = (file.read_text() for file in CONF.glob(f"recipe/*/{dataset}.yaml"))
    return next((found[1] for text in texts if (found := re.search(r"/metrics: (?!none)(\w+)", text))), "model")


def options(config: DictConfig, where: str) -> dict[str, inspect.Parameter]:
    """The arguments of the component at a dotted name, by name; none where there is no component that can be read."""
    part = OmegaConf.select(config, where, throw_on_resolution_failure=False) if where else None
    if not isinstance(part, DictConfig) or "_target_" not in part:
        return {}
    try:
        parameters = inspect.signature(find(part, where)).parameters
    except (UserError, TypeError, ValueError):  # refused later, in words of its own; or a class of C code
        return {}
    return {name: argument for name, argument in parameters.items() if argument.kind is not argument.VAR_POSITIONAL}


def _shrink(part: Any, sizes: DictConfig) -> None:
    """Give components of these classes, wherever they are in the settings, these arguments."""
    if not isinstance(part, DictConfig) or part._is_none() or part._is_missing():
        return
    for name, node in part.items_ex(resolve=False):
        if name != "hydra":
            _shrink(node, sizes)
    if "_target_" in part and part["_target_"] in sizes:
        part.merge_with(sizes[part["_target_"]])


def _apply_with_options(overrides: list[Override], config: DictConfig) -> None:
    """Apply what the command line sets: options that a component has and its YAML leaves out need no `+`. Before it,
    what `debug=fast` says of large components under `miniature`.

    Raises:
        UserError: `..._partial_=...`; whether a component is made or passed on is no one's choice. Or a file of many
            experiments or recipes, without which of them.
    """
    for group in (word[:-1] for word in EVERYWHERE if word[:-1] in config):
        raise UserError(f"{group}: which of this file? Add a slash and one of {', '.join(config[group])}")
    with open_dict(config):
        if "miniature" in config:
            _shrink(config, config.pop("miniature"))
    for override in overrides:
        where, _, name = override.key_or_group.rpartition(".")
        refuse(name == "_partial_", f"{override.key_or_group}: no such option")
        part = OmegaConf.select(config, where, throw_on_resolution_failure=False) if where else None
        left_out = isinstance(part, DictConfig) and name not in part and override.type is OverrideType.CHANGE
        if left_out and name in options(config, where):
            override.type = OverrideType.FORCE_ADD
        _apply([override], config)


def _mode_of(hydra: Hydra, config_name: str | None, overrides: list[str]) -> Any:
    """What `hydra.mode=` asks for: Hydra composes everything once more to look, and no file of ours says it."""
    return _mode(hydra, config_name, overrides) if any("hydra.mode" in word for word in overrides) else None


OmegaConf.register_new_resolver("recipe", recipe, replace=True)
OmegaConf.register_new_resolver("metrics_for", metrics_for, replace=True)
OmegaConf.register_new_resolver("folder", lambda place: str(working_folder(str(place))), replace=True)
_initialize_sources = ConfigRepository.initialize_sources
ConfigRepository.initialize_sources = _with_sections  # type: ignore[assignment]  # Hydra has no hook for these two
_apply = ConfigLoaderImpl._apply_overrides_to_config
ConfigLoaderImpl._apply_overrides_to_config = staticmethod(_apply_with_options)  # type: ignore[assignment]
_mode = Hydra.get_mode
Hydra.get_mode = _mode_of  # type: ignore[assignment, method-assign]
yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # type: ignore[misc]  # ten times as quick

KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a name", list: "a list"}
_ALSO = {
    "ema_decay": (None,),
    "compile": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
}
"""What a setting takes besides values of its kind."""
_PLAIN_GROUPS = frozenset(("likelihood",))
"""Groups of settings that name no component."""
_CROWDED = 0.9
"""Of the processors, whose load leaves none to threads that wait for each other."""


def resolve(cfg: DictConfig, extra: bool = False) -> dict[str, Any]:
    """The settings as plain containers.

    Args:
        cfg: what Hydra composed.
        extra: let pass settings that the program does not have but the command line gives; those who read them refuse
            unknown ones. Others come from a choice that is for training, too, and are left out.

    Raises:
        UserError: an unknown setting (added with +), one that was removed, or a value of the wrong kind.
    """
    config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    config |= {"ckpt_path": None} if config.get("ckpt_path") == "last" else {}  # the run's own, as always
    defaults = _listed() if HydraConfig.initialized() else config
    for name in sorted(config.keys() | defaults.keys()):
        refuse(name not in config and defaults[name] != (), f"{name} must be given")
        refuse(name not in defaults and not extra, f"{name}: no such option")
        if name not in defaults and not asked_for(name):
            del config[name]
        if name in defaults and name in config:
            config[name] = _checked(name, config[name], defaults[name])
    for name in config.keys() & {"data_dir", "out"}:
        refuse_address(Path(str(config[name])))
    return config


def _listed() -> dict[str, Any]:
    """The settings that the YAML files of the program, the chosen family and the experiment list, with their defaults.

    A group is () where nothing need be chosen, {} where something must.
    """
    run = HydraConfig.get()
    folders = [Path(source.path) for source in run.runtime.config_sources if source.schema == "file"]
    listed: dict[str, Any] = {}
    chosen = [f"{group}/{run.runtime.choices.get(group)}" for group in ("family", "experiment")]
    for name in (chosen[0], run.job.config_name, chosen[1]):
        file = next((found for folder in folders if (found := folder / f"{name}.yaml").is_file()), None)
        written: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False) if file else {}
        entries = [entry.items() for entry in written.pop("defaults", ()) if isinstance(entry, dict)]
        for group, choice in chain(*entries):
            words = re.split(r"[ @]", group)  # "optional process", "/refine@rollout.refine"
            needed = choice is not None and len(words) == 1 and "$" not in choice
            listed.setdefault(re.split(r"[/.]", words[-1].lstrip("/"))[0], {} if needed else ())
        listed = written | listed if name == chosen[1] else listed | written  # an experiment adds its own alone
    return {name: {} if value == "???" else value for name, value in listed.items() if name != "hydra"}


def _checked(name: str, value: Any, default: Any) -> Any:
    """The value of a setting, of the kind of its default: whole numbers are numbers, and any number is a name.

    Raises:
        UserError: a value of another kind.
    """
    kind = type(default)
    if name in _PLAIN_GROUPS:
        if isinstance(value, str):  # the name of a file, for families that read one
            return value
        refuse(not isinstance(value, Mapping), f"{name} must be a group of settings, not {value!r}")
        if unknown := sorted(value.keys() - default.keys()):
            raise UserError(f"{name}.{unknown[0]}: no such option; one of {', '.join(default)}")
        return {part: _checked(f"{name}.{part}", one, default[part]) for part, one in value.items()}
    if kind not in KINDS or type(value) is kind or value in _ALSO.get(name, ()):
        return value
    if kind in (float, str) and type(value) in (int, float):
        return kind(value)  # a directory may be called 17
    also = ("null" if one is None else one for one in _ALSO.get(name, ()))
    raise UserError(f"{name} must be {', '.join((KINDS[kind], *also))}, not {value!r}")


def path(config: Mapping[str, Any], name: str) -> str | None:
    """A setting that names a file or directory, or null.

    Raises:
        UserError: it is a list or a mapping.
    """
    value = config[name]
    refuse(isinstance(value, dict | list | bool), f"{name} must be the name of a file or directory, not {value!r}")
    return None if value is None else str(value)


def asked_for(group: str) -> bool:
    """Whether the command line itself, rather than a recipe, chooses a group or sets part of it."""
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else ()
    return any(word.lstrip("+~").startswith(group) for word in given)


def crowded(load: float, threads: int, processors: int) -> str:
    """What is wrong with so many threads where so many processors have this load; nothing, where little runs.

    Args:
        load: how many processes ran or waited, in the mean of the last minute.
    """
    if threads < 2 or load < _CROWDED * processors:
        return ""
    told = f"{threads}, and a load of {load:.1f} on {processors} processors already"
    return f"threads: {told}: those that wait for each other can be twenty times slower than one; set OMP_NUM_THREADS=1"


def set_libraries() -> None:
    """Silence Lightning's warnings about deliberate choices, keep cuDNN from rounding float32 to TF32's 11 bits, and
    say where threads would stall."""
    if (told := crowded(os.getloadavg()[0], torch.get_num_threads(), os.cpu_count() or 1)) and is_first():
        print(told, flush=True)
    torch.backends.cudnn.allow_tf32 = False
    for name in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    expected = (
        "does not have many workers",
        "in eval mode at the start of training",
        "treespec, LeafSpec",
        "`EvalLoader` across ranks is zero",  # data without validation samples
    )
    for message in expected:
        warnings.filterwarnings("ignore", f".*{message}")

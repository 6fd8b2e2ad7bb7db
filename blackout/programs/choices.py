"""What Hydra is told about conf/: groups that are one file, recipes for every dataset, options that no YAML lists.

A group such as `head` is a file, conf/head.yaml, whose sections are its choices; the section `grid/logit` of
conf/sampler.yaml is a choice of `sampler/grid`. Groups whose choices set things everywhere (family, recipe, experiment,
task, debug) are folders with a file for each, as Hydra has them, and so are groups in folders of the user's.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any, ClassVar

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict

from blackout.errors import UserError
from blackout.files import CONF
from blackout.training.components import find

PROGRAMS = ("train", "sample")


@functools.cache
def sections(group: str) -> dict[str, DictConfig | None]:
    """The choices in the file of a group, and of groups inside it, as `<group>/<choice>`; none without such a file."""
    file = CONF / f"{group}.yaml"
    if group in PROGRAMS or not file.is_file():
        return {}
    written = OmegaConf.load(file)
    assert isinstance(written, DictConfig)
    return {f"{group}/{name!s}": node for name, node in written.items_ex(resolve=False)}


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
        if not self.is_config(name):
            raise ConfigLoadError(f"{name} not found")
        node = self.unwritten.get(name) or sections(name.split("/")[0])[name]
        if node is None:
            node = OmegaConf.create({name.rpartition("/")[0]: None, "defaults": []})
        package = "_global_" if list(node)[-1:] == ["defaults"] else None
        return ConfigResult(self.provider, self.full_path(), node.copy(), {"package": package})

    def is_config(self, config_path: str) -> bool:
        """Whether there is such a choice."""
        name = config_path.removesuffix(".yaml")
        return name in self.unwritten or name in sections(name.split("/")[0])

    def is_group(self, config_path: str) -> bool:
        """Whether there is such a group."""
        return any(name.startswith(f"{config_path}/") for name in sections(config_path.split("/")[0]))

    def available(self) -> bool:
        """Always."""
        return True

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """The choices of a group, in order."""
        names = (name.rpartition("/") for name in sections(config_path.split("/")[0]))
        return sorted(choice for group, _, choice in names if group == config_path)


class SectionsPath(SearchPathPlugin):
    """Adds the files of groups to the places where Hydra looks."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add them."""
        search_path.append("blackout", f"{Sections.scheme()}://{CONF}")


def _sections_last(repository: ConfigRepository, search_path: ConfigSearchPath) -> None:
    """Look in folders first, the user's too, and last but Hydra's own schemas in the files of groups."""
    _initialize_sources(repository, search_path)
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
    return next(
        (found[1] for text in texts if (found := re.search(r"/metrics: (\w+)", text)) and found[1] != "none"), "model"
    )


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
        UserError: `..._partial_=...`; whether a component is made or passed on is no one's choice.
    """
    with open_dict(config):
        if "miniature" in config:
            _shrink(config, config.pop("miniature"))
    for override in overrides:
        where, _, name = override.key_or_group.rpartition(".")
        if name == "_partial_":
            raise UserError(f"{override.key_or_group}: no such option")
        part = OmegaConf.select(config, where, throw_on_resolution_failure=False) if where else None
        left_out = isinstance(part, DictConfig) and name not in part and override.type is OverrideType.CHANGE
        if left_out and name in options(config, where):
            override.type = OverrideType.FORCE_ADD
        _apply([override], config)


Plugins.instance().register(Sections)
Plugins.instance().register(SectionsPath)
OmegaConf.register_new_resolver("recipe", recipe, replace=True)
OmegaConf.register_new_resolver("metrics_for", metrics_for, replace=True)
_initialize_sources = ConfigRepository.initialize_sources
ConfigRepository.initialize_sources = _sections_last  # type: ignore[assignment]  # Hydra has no hook for these two
_apply = ConfigLoaderImpl._apply_overrides_to_config
ConfigLoaderImpl._apply_overrides_to_config = staticmethod(_apply_with_options)  # type: ignore[assignment]

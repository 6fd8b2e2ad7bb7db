"""Hydra's compositions, remembered: a process that runs hundreds of command lines reads the same YAML files each time.

The list of files depends on the choices of groups alone, and the configuration before what the command line sets
on that list alone; both are kept by exactly that. Folders of the user's are read anew each time, and fresh interpreters
that tests start compose as ever. YAML is written by libyaml, as the programs read it.
"""

from __future__ import annotations

import pickle
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra._internal import config_loader_impl as loader
from hydra._internal import defaults_list
from hydra._internal.config_repository import CachingConfigRepository, IConfigRepository
from hydra._internal.defaults_list import DefaultsList, Overrides
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf

from blackout.files import CONF
from blackout.programs import settings  # changes Hydra where it reads groups, before this does

HYDRA_CONF = Path(hydra.__file__).parent / "conf"
_lists: dict[Any, DefaultsList] = {}
_configs: dict[Any, bytes] = {}  # pickled: copies of settings that are made of these cost a third
_files: dict[tuple[str, int], bytes] = {}
_words: dict[tuple[str, str], bytes] = {}
_choices: dict[Any, ConfigResult] = {}
_placed: dict[Any, tuple[ConfigResult, bytes]] = {}
_read = CachingConfigRepository.load_config
_read_alone = loader.ConfigLoaderImpl._load_single_config
_interpolations = defaults_list._create_interpolation_map
_make_list = loader.create_defaults_list
_compose = loader.ConfigLoaderImpl._compose_config_from_defaults_list
_parse = OverridesParser.parse_rule
_load = OmegaConf.load
_deep = DictConfig.__deepcopy__
_known: dict[Any, bytes] = {}
_list_settings = settings._listed


def _places(repo: IConfigRepository) -> tuple[tuple[str, str, str], ...] | None:
    """Where a repository reads; None where that may change."""
    sources = repo.get_sources()
    return tuple((one.scheme(), one.provider, one.path) for one in sources) if all(map(_stays, sources)) else None


def _stays(source: ConfigSource) -> bool:
    return source.scheme() != "file" or source.path == str(CONF)


def _defaults_list(
    repo: IConfigRepository, config_name: str | None, overrides_list: list[Override], *rest: Any, **named: Any
) -> DefaultsList:
    places = _places(repo)
    if places is None:
        return _make_list(repo, config_name, overrides_list, *rest, **named)
    of_config = Overrides(repo, overrides_list).config_overrides
    of_groups = [override for override in overrides_list if not any(override is other for other in of_config)]
    key = (places, config_name, rest, tuple(named.items()), tuple(override.input_line for override in of_groups))
    if key not in _lists:
        _lists[key] = _make_list(repo, config_name, of_groups, *rest, **named)
    return replace(_lists[key], config_overrides=of_config)


def _choice(self: CachingConfigRepository, config_path: str) -> ConfigResult | None:
    """A file or section with its own list, which is looked at here, and copied where it is merged."""
    key: Any = _places(self), config_path
    if key[0] is None:
        source = self.delegate._find_object_source(config_path, ObjectType.CONFIG)  # type: ignore[attr-defined]
        if source is None or not _stays(source):
            return _read(self, config_path)
        key = source.scheme(), source.path, config_path
    if key not in _choices and (found := _read(self, config_path)) is not None:
        _choices[key] = found
    return _choices.get(key)


def _choice_alone(self: Any, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
    """The same where it belongs, to be merged, after which it is another's."""
    key: Any = _places(repo), default.config_path, default.package, default.primary
    if key[0] is None or key not in _placed:
        found = _read_alone(self, default, repo)
        _placed[key] = copy(found), pickle.dumps(found.config)
    found, config = _placed[key]
    found = copy(found)
    found.config = pickle.loads(config)
    return found


def _with_sources(self: CachingConfigRepository, delegate: Any) -> None:
    """Hydra copies all that its sources hold, its own schemas too, so that others may stand in their place."""
    self.delegate, self.cache = copy(delegate), {}


def _deeply(self: DictConfig, memo: dict[int, Any]) -> DictConfig:
    """A copy of whole settings, which have no parent, and are that of all in them."""
    content = self.__dict__["_content"]
    if self.__dict__["_parent"] is not None or not isinstance(content, dict):
        return _deep(self, memo)
    if any(node.__dict__["_parent"] is not self for node in content.values()):
        return _deep(self, memo)
    return pickle.loads(pickle.dumps(self))


def _map_of(overrides: Overrides, listed: list[InputDefault], *rest: Any) -> DictConfig | None:
    """What names in a list of defaults stand for, if there are any: it is made for every file, and few have names."""
    return _interpolations(overrides, listed, *rest) if any(one.is_interpolation() for one in listed) else None


def _composed(self: Any, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
    places = _places(repo)
    if places is None:
        return _compose(self, defaults, repo)
    key = (places, repr(defaults))
    if key not in _configs:
        _configs[key] = pickle.dumps(_compose(self, defaults, repo))
    return pickle.loads(_configs[key])


def _loaded(file: Any) -> Any:
    """A YAML file, by name or opened."""
    path = Path(name if isinstance(name := getattr(file, "name", file), str | Path) else "")
    if not {CONF, HYDRA_CONF} & {*path.parents}:
        return _load(file)
    key = (str(path), path.stat().st_mtime_ns)
    if key not in _files:
        _files[key] = pickle.dumps(_load(file))
    return pickle.loads(_files[key])


def _settings() -> dict[str, Any]:
    """The settings of a program, which follow from few choices."""
    run = HydraConfig.get()
    places = tuple(source.path for source in run.runtime.config_sources if source.schema == "file")
    if set(places) != {str(CONF)}:
        return _list_settings()
    key = run.job.config_name, *(run.runtime.choices.get(group) for group in ("family", "experiment"))
    if key not in _known:
        _known[key] = pickle.dumps(_list_settings())
    return pickle.loads(_known[key])


def _parsed(self: OverridesParser, word: str, rule: str) -> Any:
    """What a word of a command line means, which its letters alone decide."""
    if (word, rule) not in _words:
        _words[word, rule] = pickle.dumps(_parse(self, word, rule))
    return pickle.loads(_words[word, rule])


def remember() -> None:
    """From now on, in this process."""
    if yaml.__with_libyaml__:
        yaml.SafeDumper = yaml.CSafeDumper
    OmegaConf.load = staticmethod(_loaded)
    OverridesParser.parse_rule = _parsed
    CachingConfigRepository.load_config = _choice
    loader.ConfigLoaderImpl._load_single_config = _choice_alone
    defaults_list._create_interpolation_map = _map_of
    loader.create_defaults_list = _defaults_list
    loader.ConfigLoaderImpl._compose_config_from_defaults_list = _composed
    CachingConfigRepository.__init__ = _with_sources
    DictConfig.__deepcopy__ = _deeply
    settings._listed = _settings

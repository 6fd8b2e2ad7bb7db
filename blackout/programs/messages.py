"""Hydra's and OmegaConf's messages in one sentence."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from blackout.programs.words import CONF

_QUOTES = "a value with spaces or = , ( ) [ ] { } : ~ needs quotes within quotes: 'dataset.path=\"/data/my file.npy\"'"


def misunderstood(line: str) -> str:
    """What to type instead of a command line at which Hydra itself fails, with this message."""
    if "slurm" in line.lower():
        return f"hydra/launcher: {line}; hydra/launcher=submitit_local needs no SLURM"
    if "Config group override" in line:
        return "groups take the names of their files, not null: metrics=none, logger=none"
    return f"this command line cannot be understood: {line}"


def explain(error: Exception) -> str:
    """Hydra's and OmegaConf's messages in one sentence, with the nearest valid name where a name is wrong."""
    text, cause = str(error), str(error.__cause__ or "")
    if match := re.search(
        r"Could not find '([^']+)'\s+Available options in '([^']+)':((?:\s+\S+)*?)(?:\s*\n\s*Config search|\Z)", text
    ):
        wrong, group, options = match.group(1).rsplit("/", 1)[-1], match.group(2), match.group(3).split()
        missing = ", pip install 'blackout[slurm]' brings it" if "submitit" in wrong else ""
        return f"{group}={wrong}: no such choice{missing}{_nearest(wrong, options)}; one of {', '.join(options)}"
    if match := re.search(r"In '([^']+)': Could not override '([^']+)'", text):
        recipe, group = match.group(1), match.group(2).split("@")[0]
        where, _, choice = recipe.rpartition("/")
        return f"{where}={choice} chooses a {group}, which the chosen family lacks: choose another {where}, or ~{where}"
    if match := re.search(r"Could not (?:override|delete)[^']*'([^']+)'", text):
        key = match.group(1).split("=")[0]
        keys = _default_keys()
        return f"{key}: no such option" + (" of the chosen groups" if key in keys else _nearest(key, keys))
    if match := re.search(r"Interpolation key '([^']+)' not found", text):
        reader = text.split("full_key: ")[-1].split()[0]
        wanted, group = match.group(1), reader.split(".")[0]
        return f"{reader} is made from {wanted}, which the chosen family lacks: choose another {group}"
    return _of_values(text, cause) or _plain(text, cause, type(error).__name__)


def _of_values(text: str, cause: str) -> str:
    """Messages about values: one that is missing, or is a sweep without -m."""
    if match := re.search(r"Missing mandatory value: (\S+)", f"{text} {cause}"):
        whole = re.search(r"full_key: (\S+)", f"{text} {cause}")
        name = (whole or match).group(1)
        return f"{name} must be given: {name}=...; --help beside the other words of the command says what it is"
    if match := re.search(r"Ambiguous value for argument '([^=]+)=([^']*)'", text):
        name, value = match.groups()
        return f"{name}={value} is a sweep, which needs -m; a list is {name}=[{value}], text '{name}=\"{value}\"'"
    return ""


def _plain(text: str, cause: str, kind: str) -> str:
    """The first line, with advice where Hydra's grammar refuses a value."""
    line = (text.splitlines() or [kind])[0] + (f" ({cause.splitlines()[0]})" if cause else "")
    grammar = r"mismatched input|token recognition error|extraneous input|[Nn]o ?[Vv]iable ?[Aa]lt"
    return f"{line}; {_QUOTES}" if re.search(grammar, text) else line


def _nearest(word: str, options: list[str]) -> str:
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def _default_keys() -> list[str]:
    """Every key of the default configuration of the running command, in dotted form."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import DictConfig

    def walk(node: DictConfig, prefix: str) -> Iterator[str]:
        for key in node:
            path = prefix + str(key)
            yield path
            child = node._get_node(key)
            if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
                yield from walk(child, f"{path}.")

    command = Path(sys.argv[0]).stem.removeprefix("blackout-")
    if not (CONF / f"{command}.yaml").exists():
        return []
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return list(walk(compose(command), ""))

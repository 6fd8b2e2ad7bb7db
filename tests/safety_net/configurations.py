"""The resolved configuration of every family, recipe, experiment and task.

The file has what differs between a command line and the most similar command line that chooses only
a family, so that it is small enough to read. Comparisons use whole configurations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from hydra.errors import HydraException

from tests.safety_net.choices import choices, choices_below, compose_config, flatten, to_plain

# Values by dotted name.
Configuration: TypeAlias = dict[str, Any]

ABSENT = "<absent>"  # value of a name that the base has and the configuration lacks


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Yield (program, overrides) of every command line; not all of them can be composed."""
    families = choices("family")
    datasets = choices("dataset")
    yield "train", []
    yield "sample", []
    for family in families:
        yield "train", [f"family={family}"]

    # Recipes of a family. Those of papers belong to experiments, other parts to what chooses them.
    datasets_with_recipe = set()
    for path in choices_below("recipe"):
        family, _, name = path.partition("/")
        if name in datasets:
            datasets_with_recipe.add(name)
        if family in families:
            choice = f"dataset={name}" if name in datasets else f"recipe={family}/{name}"
            yield "train", [f"family={family}", choice]
    for dataset in datasets:
        if dataset in datasets_with_recipe:
            yield "sample", [f"dataset={dataset}"]

    for process in choices("process"):
        yield "train", [f"process={process}"]
    for group in ("debug", "target", "baseline"):
        for choice in choices(group):
            for family in families:
                yield "train", [f"family={family}", f"{group}={choice}"]
    for experiment in choices_below("experiment"):
        yield "train", [f"experiment={experiment}"]
    for task in choices_below("task"):
        yield "sample", [f"task={task}"]


def configurations() -> dict[str, Configuration]:
    """Return the configuration of every command line that can be composed, by command line."""
    table = {}
    for program, overrides in command_lines():
        try:
            config = compose_config(program, overrides)
        except HydraException:  # the family does not have the group
            continue
        table[" ".join([program, *overrides])] = dict(flatten(to_plain(config)))
    return table


def compress(table: Mapping[str, Configuration]) -> dict[str, dict[str, Any]]:
    """Write configurations as differences from those of the families."""
    bases = {name: config for name, config in table.items() if _is_base(name)}
    entries: dict[str, dict[str, Any]] = {}
    for name, config in table.items():
        if name in bases:
            entries[name] = {"settings": dict(sorted(config.items()))}
            continue
        differences = {base: _subtract(config, bases[base]) for base in sorted(bases)}
        base = min(differences, key=lambda base: len(differences[base]))
        entries[name] = {"base": base, "settings": differences[base]}
    return dict(sorted(entries.items()))


def expand(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Configuration]:
    """Restore the configurations from `compress`."""
    table = {}
    for name, entry in entries.items():
        settings = dict(entries[entry["base"]]["settings"]) if "base" in entry else {}
        settings |= entry["settings"]
        table[name] = {key: value for key, value in settings.items() if value != ABSENT}
    return table


def _is_base(command_line: str) -> bool:
    overrides = command_line.split()[1:]
    return all(override.startswith("family=") for override in overrides)


def _subtract(config: Configuration, base: Configuration) -> Configuration:
    """Return the values in which a configuration differs from its base."""
    differences: Configuration = dict.fromkeys(base.keys() - config.keys(), ABSENT)
    for name, value in config.items():
        if name not in base or base[name] != value:
            differences[name] = value
    return dict(sorted(differences.items()))

"""The resolved configuration of every family, recipe, experiment and task.

In the file, a command line is written as what differs from the most similar of the first ones,
those of the families: small enough to read, and exact. Comparisons are of whole configurations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from hydra.errors import HydraException

from tests.safety_net.choices import choices, choices_below, composed, flattened, plain

Configuration: TypeAlias = dict[str, Any]
"""Values by dotted name."""
ABSENT = "<absent>"
"""Stands for a name that the base has and a configuration lacks."""


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """(program, words) of every command line; a family may lack what one chooses."""
    families, datasets = choices("family"), choices("dataset")
    yield "train", []
    yield "sample", []
    yield from (("train", [f"family={family}"]) for family in families)
    recipes = [path.split("/", 1) for path in choices_below("recipe")]
    for family, name in recipes:
        if (
            family in families
        ):  # those of papers are in the experiments, other parts in what chooses them
            yield (
                "train",
                [
                    f"family={family}",
                    f"dataset={name}" if name in datasets else f"recipe={family}/{name}",
                ],
            )
    for family in families:
        yield from (
            ("train", [f"family={family}", f"debug={choice}"]) for choice in choices("debug")
        )
    yield from (
        ("sample", [f"dataset={dataset}"])
        for dataset in datasets
        if dataset in {name for _, name in recipes}
    )
    yield from (("train", [f"process={choice}"]) for choice in choices("process"))
    for group in ("target", "baseline"):
        for choice in choices(group):
            yield from (("train", [f"family={family}", f"{group}={choice}"]) for family in families)
    yield from (("train", [f"experiment={path}"]) for path in choices_below("experiment"))
    yield from (("sample", [f"task={path}"]) for path in choices_below("task"))


def configurations() -> dict[str, Configuration]:
    """The configuration of every command line that can be composed, by command line."""
    found = {}
    for program, words in command_lines():
        try:
            config = composed(program, words)
        except HydraException:  # the family has no such group
            continue
        found[" ".join([program, *words])] = dict(flattened(plain(config)))
    return found


def compressed(configurations: Mapping[str, Configuration]) -> dict[str, dict[str, Any]]:
    """The same as differences from the families' configurations, for a file."""
    bases = {name: config for name, config in configurations.items() if _is_base(name)}
    written = {}
    for name, config in configurations.items():
        if name in bases:
            written[name] = {"settings": dict(sorted(config.items()))}
            continue
        differences = {base: _difference(values, config) for base, values in bases.items()}
        base = min(differences, key=lambda one: (len(differences[one]), one))
        written[name] = {"base": base, "settings": differences[base]}
    return dict(sorted(written.items()))


def expanded(written: Mapping[str, Mapping[str, Any]]) -> dict[str, Configuration]:
    """Whole configurations from `compressed`."""
    found = {}
    for name, entry in written.items():
        values = (
            {**written[entry["base"]]["settings"], **entry["settings"]}
            if "base" in entry
            else entry["settings"]
        )
        found[name] = {key: value for key, value in values.items() if value != ABSENT}
    return found


def _is_base(name: str) -> bool:
    words = name.split()[1:]
    return all(word.startswith("family=") for word in words)


def _difference(base: Configuration, config: Configuration) -> Configuration:
    changed = {
        name: value for name, value in config.items() if name not in base or base[name] != value
    }
    return dict(sorted((changed | dict.fromkeys(base.keys() - config.keys(), ABSENT)).items()))

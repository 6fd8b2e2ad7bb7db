"""The words of a command line, before Hydra reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from blackout.errors import UserError

CONF = next(path for folder in Path(__file__).parents[1:] if (path := folder / "conf").is_dir())
"""The configurations: in a wheel inside the package, in the repository beside it."""


def completed(command: list[str]) -> list[str]:
    """A command line with what Hydra would need to be told besides.

    Arguments of Lightning's Trainer that no YAML file lists need no `+`, and a family without data no `~dataset`.
    """
    words = map(_forced, command[1:]) if Path(command[0]).stem.endswith("train") else command[1:]
    return _without_data([command[0], *_of_its_logger(list(words))])


def refuse_structure(words: Iterable[str]) -> None:
    """Refuse `..._partial_=...`: whether a component is made or passed on is no one's choice.

    Raises:
        UserError: one of the words is such.
    """
    for word in words:
        name = word.lstrip("+~").partition("=")[0]
        if name.endswith("._partial_"):
            raise UserError(f"{name}: no such option")


def asked_for(group: str) -> bool:
    """Whether the command line itself, rather than a recipe, chooses a group or sets part of it."""
    from hydra.core.hydra_config import HydraConfig  # `completed` runs before Hydra is imported

    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else ()
    return any(word.lstrip("+~").startswith(group) for word in given)


def _forced(word: str) -> str:
    """`trainer.<name>=...` added where there is no such setting yet; names that the Trainer lacks are refused later."""
    return f"++{word}" if re.match(r"trainer\.\w+[\w.]*=", word) else word


def _of_its_logger(words: list[str]) -> list[str]:
    """`logger.mode=` and its like are W&B's where that is the one logger: it had no name before there were several."""
    if "logger=wandb" not in words:
        return words
    return [re.sub(r"^(\+*~?)logger\.(?!wandb\b)", r"\1logger.wandb.", word) for word in words]


def _without_data(command: list[str]) -> list[str]:
    """A command line without the default dataset, if its family says `dataset: null` and nothing else chooses one."""
    chosen = [word.partition("=")[2] for word in command[1:] if word.startswith("family=")]
    if not chosen or any(word.lstrip("+~").startswith(("dataset", "experiment=")) for word in command[1:]):
        return command
    path = CONF / "family" / f"{chosen[-1]}.yaml"
    has_none = path.is_file() and re.search(r"^dataset: null\b", path.read_text(), re.MULTILINE)
    return [*command, "~dataset"] if has_none else command

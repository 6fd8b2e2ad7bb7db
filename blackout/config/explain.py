"""One line for a command line that Hydra refuses: what is wrong, what is allowed, what to type.

Hydra's exceptions say that composition failed. Which word is to blame is found from public
information: the parser of overrides, the choices of each group, and the keys of the configuration
that the other words compose.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from blackout.config.choices import list_choices, list_groups
from blackout.config.compose import (
    component_parameters,
    explain_import_error,
    initialized_hydra,
    search_path_overrides,
)
from blackout.errors import CommandParser, UserError, did_you_mean, refuse
from blackout.version import install_command

QUOTING_ADVICE = (
    "a value with spaces or = , ( ) [ ] { } : ~ needs quotes within quotes: "
    "'dataset.path=\"/data/my file.npy\"'"
)
COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException)
# what settings are called in other programs -> what they are called here
ALIASES = {
    "learning_rate": ("lr",),
    "steps": ("max_steps", "num_steps"),
    "iterations": ("max_steps",),
    "epochs": ("max_steps",),
    "bs": ("batch_size",),
    "gpus": ("devices",),
    "nfe": ("num_steps",),
    "n": ("num_samples",),
    "name": ("run_id",),
    "model": ("network",),
    "data": ("dataset",),
    "sigma": ("coupling",),
    "scheduler": ("lr_schedule",),
    "lr_scheduler": ("lr_schedule",),
}
# arguments of Lightning's Trainer that are set in another way here
TRAINER_REPLACEMENTS = {
    "trainer.max_epochs": "lengths are in optimiser steps: trainer.max_steps=...",
    "trainer.min_epochs": "lengths are in optimiser steps: trainer.max_steps=...",
    "trainer.fast_dev_run": "debug=fast takes a few steps of everything",
    "trainer.logger": "logger=none, or logger=[tensorboard,wandb]",
    "trainer.callbacks": "callbacks are a group: +callbacks.mine._target_=my_package.MyCallback",
}
SEARCH_PATH = "hydra.searchpath"
MAX_LISTED = 30  # choices that fit into one message
LOOKUP = re.compile(r"\$\{(\w+)\.\$\{(\w+)\}.*\}")  # ${table.${setting}}, a row of a table
SIMILARITY = 0.7  # of 1, from which a name is suggested
# groups that decide which other groups there are, and so are checked first
FIRST_GROUPS = ("family", "experiment", "recipe")


@dataclass(frozen=True)
class CommandLine:
    """The words of a command line, without Hydra's flags."""

    overrides: Sequence[str]
    folders: Sequence[str] = ()
    multirun: bool = False


# what Hydra's flag --info shows
INFO_CHOICES = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


def parse_command_line(words: Sequence[str]) -> CommandLine:
    """Divide a command line into overrides and the flags that decide how they are read.

    Raises:
        UserError: a flag lacks its value.
    """
    options, _ = _flags_parser().parse_known_intermixed_args(list(words))
    folders = [options.config_dir] if options.config_dir else []
    return CommandLine(options.overrides, folders, options.multirun)


def check_flags(words: Sequence[str]) -> None:
    """Check the flags of a command line, for which Hydra prints its usage or raises other errors.

    Raises:
        UserError: names the first flag or word that cannot be used.
    """
    options, remaining = _flags_parser().parse_known_args(list(words))
    if remaining and remaining[0].startswith("-"):
        raise UserError(f"{remaining[0]}: no such flag; --hydra-help lists them")
    if remaining:
        raise UserError(f"{remaining[0]}: settings stand together, after the flags or before them")
    refuse(
        options.experimental_rerun is not None,
        "--experimental-rerun reads a pickle, which can run any code: repeat the command instead",
    )
    refuse(
        options.resolve and not (options.cfg or options.help),
        "--resolve needs --cfg, which prints the settings",
    )


def _flags_parser() -> CommandParser:
    """Return a parser of Hydra's flags, which Hydra's own parser reads again."""
    parser = CommandParser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    for flags in (
        ("--help", "-h"),
        ("--hydra-help",),
        ("--version",),
        ("--resolve",),
        ("--run", "-r"),
        ("--multirun", "-m"),
        ("--shell-completion", "-sc"),
    ):
        parser.add_argument(*flags, action="store_true")
    for flags in (
        ("--config-dir", "-cd"),
        ("--config-path", "-cp"),
        ("--config-name", "-cn"),
        ("--experimental-rerun",),
        ("--package", "-p"),
    ):
        parser.add_argument(*flags)
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    parser.add_argument("--info", "-i", nargs="?", choices=INFO_CHOICES)
    return parser


def explain(error: Exception, program: str, words: Sequence[str]) -> str:
    """Say in one line why Hydra refuses a command line.

    Args:
        error: what Hydra raised; its first line is the answer if no word can be blamed.
        program: train or sample.
        words: of the command line, without the program.
    """
    line = parse_command_line(words)
    parser = OverridesParser.create()
    # word -> the words that it stands for, several in a sweep
    values: dict[str, list[str]] = {}
    for word in line.overrides:
        try:
            override = parser.parse_override(word)
        except HydraException:
            return f"{word} cannot be understood: {QUOTING_ADVICE}"
        if override.value_type is ValueType.GLOB_CHOICE_SWEEP:
            continue  # names choices that exist, or none
        values[word] = [word]
        if override.is_sweep_override():
            name, _, value = word.partition("=")
            if not line.multirun:
                return (
                    f"{name}={value} is a sweep, which needs -m; "
                    f"a list is {name}=[{value}], text is '{name}=\"{value}\"'"
                )
            values[word] = [f"{name}={text}" for text in override.sweep_string_iterator()]
    with initialized_hydra():
        for job in _jobs(values):
            overrides = [(word, parser.parse_override(word)) for word in job]
            paths = [word for word, override in overrides if override.key_or_group == SEARCH_PATH]
            assignments = [pair for pair in overrides if pair[1].key_or_group != SEARCH_PATH]
            if mistake := _find_mistake(
                program, assignments, [*search_path_overrides(line.folders), *paths]
            ):
                return mistake
    return f"this command line cannot be understood: {_one_line(error)}"


def _jobs(values: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield command lines with every value of a sweep once; the other words have their first."""
    first_values = {word: alternatives[0] for word, alternatives in values.items()}
    yield [*first_values.values()]
    for word, alternatives in values.items():
        for alternative in alternatives[1:]:
            yield [*(first_values | {word: alternative}).values()]


def explain_values(config: DictConfig) -> str:
    """Return a line about a setting of a composed configuration without a value; empty without."""
    for key, text in _leaves(config):
        if text == "???":
            return f"{key} must be given: {key}=..."
        try:
            OmegaConf.select(config, key)
        except InterpolationKeyError:
            lookup = LOOKUP.fullmatch(str(text))
            if lookup:
                table, setting = lookup.groups()
                rows = ", ".join(config[table])
                return f"{setting}={config[setting]}: no such choice; one of {rows}"
            group = key.split(".")[0]
            return (
                f"{key} is made from {text}, which the chosen family lacks: choose another {group}"
            )
    return ""


def _find_mistake(
    program: str, overrides: Sequence[tuple[str, Override]], search_path: Sequence[str]
) -> str:
    """Return what is wrong with one of the words; empty if none can be blamed.

    Args:
        program: train or sample.
        overrides: the words, as typed and parsed.
        search_path: overrides that add configuration folders.
    """
    group_words: list[str] = []
    settings: list[tuple[str, Override]] = []
    for word, override in sorted(
        overrides, key=lambda pair: pair[1].key_or_group not in FIRST_GROUPS
    ):
        options = _list_all_choices(override.key_or_group, program, search_path)
        if not options:
            settings.append((word, override))
            continue
        if mistake := _explain_choice(override, options):
            return mistake
        group_words.append(word)
    # Composing takes a quarter of a second: all words together, and one by one only if they fail.
    if _composition_error(program, [*group_words, *search_path]):
        for number, word in enumerate(group_words):
            earlier_words = group_words[:number]
            if error := _composition_error(program, [*earlier_words, word, *search_path]):
                return (
                    _explain_missing_recipe(word, earlier_words)
                    or _explain_foreign_group(word, error, program, earlier_words, search_path)
                    or f"{word} does not fit the other choices: {_one_line(error)}"
                )
    config = hydra.compose(program, [*group_words, *search_path])
    for _, override in settings:
        if mistake := _explain_key(override, config, program, search_path):
            return mistake
    if _composition_error(program, [*group_words, *(word for word, _ in settings), *search_path]):
        for word, _ in settings:
            if error := _composition_error(program, [*group_words, word, *search_path]):
                return f"{word}: {_one_line(error)}"
    return explain_values(config)


def _explain_foreign_group(
    word: str, error: Exception, program: str, words: Sequence[str], search_path: Sequence[str]
) -> str:
    """Return which family or program has a group that the chosen ones lack; empty if they have it.

    Args:
        word: that chooses from the group.
        error: what Hydra raises for it.
        program: train or sample.
        words: before it.
        search_path: overrides that add configuration folders.
    """
    group, _, choice = word.partition("=")
    if not isinstance(error, ConfigCompositionException) or "@" in group:
        return ""
    config = hydra.compose(program, [*words, *search_path], return_hydra_config=True)
    packaged = [name for name in config.hydra.runtime.choices if name.startswith(f"{group}@")]
    if packaged:
        names = " and ".join(packaged)
        return f"{word}: this group is {names} here, such as {packaged[0]}={choice}"
    families = [
        f"family={family}"
        for family in list_choices("family")
        if _composition_error("train", [f"family={family}", word, *search_path]) is None
    ]
    if program == "sample":
        return f"{word}: {group} is a group of train.py, not of sample.py" if families else ""
    if families:
        family = next((w for w in words if w.startswith("family=")), "family=blackout")
        owners = " or ".join(families)
        return f"{word} is not for {family}, but for {owners}: add it to the command"
    if _composition_error("sample", [word, *search_path]) is None:
        return f"{word}: {group} is a group of sample.py, not of train.py"
    return ""


def _composition_error(program: str, words: Sequence[str]) -> Exception | None:
    """Return what Hydra raises for these words; None if it composes them."""
    try:
        hydra.compose(program, list(words))
    except COMPOSITION_ERRORS as error:
        return error
    return None


def _one_line(error: Exception) -> str:
    """Return the first paragraph of an error's message, or its kind if it has none."""
    return " ".join(str(error).split("\n\n")[0].split()) or type(error).__name__


def _explain_missing_recipe(word: str, words: Sequence[str]) -> str:
    """Return which families have a recipe for a dataset, if the chosen one has none; else empty."""
    key, _, dataset = word.partition("=")
    values = dict(override.partition("=")[::2] for override in words)
    family = values.get("family", "blackout")
    recipes = list_choices("recipe")
    if (
        key != "dataset"
        or f"{family}/{dataset}" in recipes
        or {"experiment", "recipe"} & values.keys()
    ):
        return ""
    families = [name for name in list_choices("family") if f"{name}/{dataset}" in recipes]
    if families:
        return f"{word} is not for family={family}, but for family={' or family='.join(families)}"
    return f"{word}: there is no recipe for it; recipe={family}/none trains on any dataset"


def _list_all_choices(key: str, program: str, search_path: Sequence[str]) -> list[str]:
    """Return the choices of a group with those of users and plugins; none for other settings."""
    group = key.partition("@")[0]
    loader = GlobalHydra.instance().config_loader()
    hydra_choices = loader.get_group_options(
        group, config_name=program, overrides=list(search_path)
    )
    return sorted({*hydra_choices, *list_choices(group)})


def _explain_choice(override: Override, choices: Sequence[str]) -> str:
    """Return what is wrong with the choice that a word makes; empty if it exists.

    Args:
        override: the parsed word.
        choices: of its group.
    """
    group = override.key_or_group.partition("@")[0]
    if override.type is OverrideType.DEL:
        return ""
    value = override.value()
    for name in value if isinstance(value, list) else [value]:
        text = str(name)
        choices_inside = [
            choice.removeprefix(f"{text}/") for choice in choices if choice.startswith(f"{text}/")
        ]
        if choices_inside and text not in choices:
            return f"{group}={text} is a folder: add a slash and one of {', '.join(choices_inside)}"
        if text not in choices:
            extra = f": {install_command('slurm')}" if "submitit" in text else ""
            advice = f"`blackout choices {group}` says what each is"
            allowed = advice
            if len(choices) <= MAX_LISTED:
                allowed = f"one of {', '.join(choices)}; {advice}"
            suggestion = (
                _suggest_path(group, text)
                or _suggest_other_group(text)
                or did_you_mean(text, list(choices))
            )
            return f"{group}={text}: no such choice{extra}{suggestion}; {allowed}"
    return ""


def _suggest_other_group(choice: str) -> str:
    """Return a suggestion of the only group with a choice of this name; else empty."""
    groups = [group for group in list_groups() if choice in list_choices(group)]
    return f" (did you mean {groups[0]}={choice}?)" if len(groups) == 1 else ""


def _suggest_path(group: str, value: str) -> str:
    """Return how to train on a file or folder that was given as a dataset; else empty."""
    path = Path(value)
    if group != "dataset" or not path.exists():
        return ""
    choice = "image_folder" if path.is_dir() else "counts"
    return f" (did you mean dataset={choice} dataset.path={value}?)"


def _explain_key(
    override: Override, config: DictConfig, program: str, search_path: Sequence[str]
) -> str:
    """Return what is wrong with the setting that a word names; empty if it can be set like this."""
    key = override.key_or_group
    exists = _has_key(config, key)
    if override.type in (OverrideType.CHANGE, OverrideType.DEL) and not exists:
        if key in TRAINER_REPLACEMENTS:
            return f"{key}: {TRAINER_REPLACEMENTS[key]}"
        parent, _, name = key.rpartition(".")
        if problem := explain_import_error(config, parent):
            return problem
        if name in component_parameters(config, parent):
            return f"{key} is not listed in the choice's YAML: +{override.input_line} sets it"
        config_keys = list(dict.fromkeys(_all_keys(config)))
        names = config_keys if parent else config_keys + list_groups()
        similar = find_similar(key, names)
        owner, foreign_key = _find_foreign_key(key, config, program, search_path)
        if foreign_key == key and not similar.endswith(f".{name}"):
            return f"{key} is only a setting of {owner}: omit it"
        own_similarity = _similarity(key, similar)
        foreign_similarity = _similarity(key, foreign_key)
        is_nearer = foreign_similarity > own_similarity or (
            foreign_similarity == own_similarity and similar not in config_keys
        )
        if foreign_key and is_nearer and not similar.endswith(f".{name}"):
            return f"{key}: no such setting (did you mean {foreign_key}, of {owner}?)"
        allowed = "" if similar else _list_settings(config, parent)
        return f"{key}: no such setting{suggest_key(key, names)}{allowed}"
    if override.type is OverrideType.ADD and exists:
        return f"{key} is a setting already: leave out the +"
    return ""


def _list_settings(config: DictConfig, group: str) -> str:
    """Return the settings of a group, the end of a message; empty without a group."""
    part = OmegaConf.select(config, group, throw_on_resolution_failure=False) if group else None
    if not isinstance(part, DictConfig):
        return ""
    settings = [str(name) for name in part.keys() if not str(name).startswith("_")]  # noqa: SIM118
    return f"; {group} has {', '.join(settings[:MAX_LISTED])}" if settings else ""


def _similarity(key: str, name: str) -> float:
    """Return how similar a wrong key is to a name, from 0 to 1, which aliases have too."""
    last = key.lower().rpartition(".")[2]
    if name.rpartition(".")[2] in ALIASES.get(last, (last,)):
        return 1.0
    return difflib.SequenceMatcher(None, key, name).ratio() if name else 0.0


def _find_foreign_key(
    key: str, config: DictConfig, program: str, search_path: Sequence[str]
) -> tuple[str, str]:
    """Return which other families or program have a setting, or a similar one, and its name.

    Both are empty if none has.

    Args:
        key: the wrong name.
        config: in which it is wrong; other choices of its own family are no suggestions.
        program: train or sample.
        search_path: overrides that add configuration folders.
    """
    candidates: list[tuple[str, str, list[str]]] = []
    for family in list_choices("family"):
        owner = f"family={family}" if program == "train" else "train.py"
        candidates.append((owner, "train", [f"family={family}", *search_path]))
    candidates.append(("sample.py", "sample", list(search_path)))
    keys_of_owner: dict[str, list[str]] = {}
    for owner, foreign_program, words in candidates:
        if owner == f"{program}.py" or _composition_error(foreign_program, words) is not None:
            continue
        foreign_config = hydra.compose(foreign_program, words)
        family = OmegaConf.select(foreign_config, "family._target_")
        if program == "train" and family == OmegaConf.select(config, "family._target_"):
            continue
        keys_of_owner.setdefault(owner, []).extend(dict.fromkeys(_all_keys(foreign_config)))
    name = key
    if not any(key in keys for keys in keys_of_owner.values()):
        similar_keys = [find_similar(key, keys) for keys in keys_of_owner.values()]
        similar_keys = [name for name in similar_keys if name]
        if not similar_keys:
            return "", ""
        name = max(similar_keys, key=lambda name: _similarity(key, name))
    return " or ".join(owner for owner, keys in keys_of_owner.items() if name in keys), name


def _has_key(config: DictConfig, key: str) -> bool:
    parent, _, name = key.rpartition(".")
    part = OmegaConf.select(config, parent, throw_on_resolution_failure=False) if parent else config
    if isinstance(part, DictConfig):
        # `in` of a DictConfig is false for missing values
        return name in part.keys()  # noqa: SIM118
    return isinstance(part, ListConfig)


def suggest_key(key: str, names: list[str]) -> str:
    """Return a suggestion for a wrong name, the end of a message; empty without one."""
    similar = find_similar(key, names)
    return f" (did you mean {similar}?)" if similar else ""


def find_similar(key: str, names: list[str]) -> str:
    """Return a name with the same last part, or an alias of it, or a similar name; else empty."""
    names = [name for name in names if not key.startswith(f"{name}.")]  # not a group of its own
    group, _, last = key.lower().rpartition(".")
    for alias in ALIASES.get(last, (last,)):
        for name in names:
            if name.startswith(group) and name.rpartition(".")[2] == alias:
                return name
    matches = difflib.get_close_matches(key, names, n=1, cutoff=SIMILARITY)
    return matches[0] if matches else ""


def _all_keys(config: DictConfig) -> Iterator[str]:
    """Dotted names of all settings and groups."""
    for key, _ in _leaves(config):
        parts = key.split(".")
        for length in range(1, len(parts) + 1):
            yield ".".join(parts[:length])


def _leaves(config: DictConfig) -> Iterator[tuple[str, object]]:
    """Dotted name and unresolved value of every setting that is not itself a mapping."""

    def visit(part: object, prefix: str) -> Iterator[tuple[str, object]]:
        if isinstance(part, dict) and part:
            for name, value in part.items():
                yield from visit(value, f"{prefix}.{name}" if prefix else str(name))
        else:
            yield prefix, part

    yield from visit(OmegaConf.to_container(config, resolve=False), "")

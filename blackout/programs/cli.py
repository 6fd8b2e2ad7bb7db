"""Command line: one line and exit code 2 for every error that a user can mend, in misspelt settings too."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from itertools import accumulate, chain
from pathlib import Path
from typing import TypeVar

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from blackout.component import leaves
from blackout.errors import UserError, ends_in_one_line, nearest, summary
from blackout.programs import put_off_torchmetrics
from blackout.programs.settings import CONF, EVERYWHERE, PROGRAMS, home, options, sections
from blackout.programs.sweeps import failures, job, sweeping
from blackout.training.instantiate import find

_QUOTES = "a value with spaces or = , ( ) [ ] { } : ~ needs quotes within quotes: 'dataset.path=\"/data/my file.npy\"'"
_SHOWN = (bool, int, float, str, list, tuple, type(None))
"""Kinds of defaults that a command line could give."""
_OF_HYDRA = (HydraException, OmegaConfBaseException)
_GRAMMAR = r"mismatched input|token recognition error|extraneous input|[Nn]o ?[Vv]iable ?[Aa]lt"
_NO_CHOICE = r"Could not find '([^']+)'\s+Available options in '([^']+)':((?:\s+\S+)*?)(?:\s*\n\s*Config search|\Z)"


def explain(error: Exception) -> str:
    """What is wrong with a command line at which Hydra fails, in one sentence, with the nearest valid name where a name
    is wrong."""
    text, cause = str(error), str(error.__cause__ or "")
    if match := re.search(_NO_CHOICE, text):
        wrong, group = match[1].removeprefix(f"{match[2]}/"), match[2]
        beside = sections(home(match[1])) if match[1].startswith(EVERYWHERE) else ()
        choices = [name.removeprefix(f"{group}/") for name in beside] or match[3].split()
        missing = ", pip install 'blackout-diffusion[slurm]' brings it" if "submitit" in wrong else ""
        return f"{group}={wrong}: no such choice{missing}{_nearest(wrong, choices)}; one of {', '.join(choices)}"
    if match := re.search(r"In '([^']+)': Could not override '([^']+)'", text):
        (where, choice), group = match[1].split("/")[-2:], match[2].split("@")[0]
        return f"{where}={choice} chooses a {group}, which the chosen family lacks: choose another {where}, or ~{where}"
    if match := re.search(r"Could not (?:override|delete)[^']*'([^']+)'", text):
        key = match[1].split("=")[0]
        if meant := re.search(r"Did you mean to override (\S+)\?", text):
            return f"{key}: no such option of the chosen groups (did you mean {meant[1]}?)"
        keys = _default_keys(key.rpartition(".")[0])
        return f"{key}: no such option" + (" of the chosen groups" if key in keys else _nearest(key, keys))
    if match := re.search(r"Interpolation key '([^']+)' not found", text):
        reader = text.split("full_key: ")[-1].split()[0]
        return f"{reader} is made from {match[1]}, which the chosen family lacks: choose another {reader.split('.')[0]}"
    if match := re.search(r"Missing mandatory value: (\S+)", f"{text} {cause}"):
        name = (re.search(r"full_key: (\S+)", f"{text} {cause}") or match)[1]
        return f"{name} must be given: {name}=...; --help beside the other words of the command says what it is"
    if match := re.search(r"Ambiguous value for argument '([^=]+)=([^']*)'", text):
        name, value = match.groups()
        return f"{name}={value} is a sweep, which needs -m; a list is {name}=[{value}], text '{name}=\"{value}\"'"
    line = (text.splitlines() or [type(error).__name__])[0] + (f" ({cause.splitlines()[0]})" if cause else "")
    if isinstance(error, _OF_HYDRA):
        return f"{line}; {_QUOTES}" if re.search(_GRAMMAR, text) else line
    if "slurm" in line.lower():
        return f"hydra/launcher: {line}; hydra/launcher=submitit_local needs no SLURM"
    if "Config group override" in line:
        return "groups take the names of their files, not null: metrics=none, logger=none"
    return summary(error) if isinstance(error, OSError) else f"this command line cannot be understood: {line}"


_CALLED = {
    "learning_rate": ("lr",), "steps": ("max_steps", "num_steps"), "iterations": ("max_steps",), "bs": ("batch_size",),
    "epochs": ("max_steps",), "gpus": ("devices",), "nfe": ("num_steps",), "n": ("num_samples",), "name": ("run_id",),
}  # fmt: skip
"""What settings are called elsewhere, and here."""


def _nearest(word: str, names: list[str]) -> str:
    group, _, last = word.lower().rpartition(".")
    asked = _CALLED.get(last, (last,))
    near = [name for last in asked for name in names if name.startswith(group) and name.rpartition(".")[2] == last]
    return f" (did you mean {near[0]}?)" if near else nearest(word, names)


def _default_keys(where: str) -> list[str]:
    """Dotted names in the configuration of the groups the command chooses, and all arguments of `where`'s parts."""
    if (program := program_of(sys.argv)) not in PROGRAMS:
        return []
    chosen = [word for word in sys.argv[1:] if (CONF / f"{word.split('=')[0]}.yaml").is_file()]
    config = composed(program, [])
    with suppress(*_OF_HYDRA):  # another word is wrong, too
        config = composed(program, chosen)
    settings = (accumulate(name.split("."), "{}.{}".format) for name, _ in leaves(OmegaConf.to_container(config)))
    known = list(dict.fromkeys(chain(*settings)))
    parts = [name for name in known if where and f"{name}.".startswith(f"{where}.")]
    return [*known, *(f"{part}.{name}" for part in parts for name in options(config, part))]


def composed(program: str, words: list[str]) -> DictConfig:
    """The configuration of a program with these words, outside a run: for messages and help."""
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(program, words)


os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # hand composition errors to us instead of printing and exiting with 1

T = TypeVar("T")
_in_job = False  # Hydra has parsed the command line: any other kind of error from now on is a bug


@contextmanager
def one_line_errors() -> Iterator[None]:
    """`blackout.errors.ends_in_one_line` for what Hydra raises, too."""
    global _in_job
    _in_job = False
    with ends_in_one_line(continues=True):
        try:
            yield
        except Exception as error:
            if isinstance(error, UserError) or (_in_job and not isinstance(error, _OF_HYDRA)):
                raise
            raise UserError(explain(error)) from error


def task(function: Callable[..., T]) -> Callable[..., T]:
    """`one_line_errors` inside Hydra's job, before Hydra adds lines of its own."""

    @wraps(function)
    def wrapped(*args: object, **kwargs: object) -> T:
        global _in_job
        with one_line_errors():
            _in_job = True
            return job(function, *args, **kwargs) if sweeping() else function(*args, **kwargs)
        raise AssertionError("unreachable")

    return wrapped


def end_of_sweep() -> None:
    """Exit code 1 after a sweep with jobs that failed."""
    if failures:
        print(f"{len(failures)} job(s) failed: {failures[-1]}", file=sys.stderr)
        failures.clear()
        sys.exit(1)


def help_text(program: str, command: str, words: list[str]) -> str:
    """The help of a program.

    Args:
        program: train or sample.
        command: as the user calls it.
        words: the rest of the command line; of what is chosen there, the YAML and the arguments are shown.
    """
    text = (CONF / f"{program}.yaml").read_text()
    groups = sorted({path.stem for path in CONF.iterdir()} - {*PROGRAMS})
    shown = re.findall(r"^  - (?:optional |override )?(\w+):", text, re.MULTILINE)
    said, more = re.sub("^# ?", "", text.partition("defaults:\n")[0], flags=re.MULTILINE).split("\nMore:\n")
    parts = [said, "Settings, <name>=<value>:", *_settings(text)]
    if program == "train":
        family = re.findall(r"^  - family: (\w+)", text, re.MULTILINE)[0]
        parts += _settings((CONF / f"family/{family}.yaml").read_text().split("\n\n")[-1])  # after its groups
        shown += re.findall(r"- /(\w+): ", (CONF / f"recipe/{family}/none.yaml").read_text())
    parts += ["", "Groups, <group>=<choice>, and <group>.<setting>=<value>:", *_groups(shown)]
    if program == "train":
        parts += ["", "Groups of other families (family=flow, energy, shuffle, codes) and of sampling:"]
        parts += _groups([name for name in groups if name not in shown])
    for word in words:
        group, _, choice = word.lstrip("+").partition("=")
        if written := _written(group, choice):
            parts += ["", f"{group}={choice}:", textwrap.indent(written, "  ")]
            parts += _arguments(composed(program, [word]), group.replace("/", "."))
    return "\n".join([*parts, "", "More:", more.rstrip()]).replace(f"python {program}.py", command)


def _settings(text: str) -> Iterator[str]:
    """The settings of a program with their defaults and comments, a line each."""
    body = text.split("\nhydra:")[0].split("override hydra/hydra_logging: none\n")[-1]
    for line in body.splitlines():
        if match := re.match(r"( *\w+): ?(.*?)(?: *# (.*))?$", line):
            name, value, comment = (part or "" for part in match.groups())
            yield _beside(f"  {name}={value}" if value else f"  {name}:", comment)


def _beside(head: str, comment: str) -> str:
    return textwrap.fill(comment, 116, initial_indent=f"{head:<26} ", subsequent_indent=" " * 27) if comment else head


def _groups(names: list[str]) -> Iterator[str]:
    """Groups with their choices; those within groups, of parts, are left out."""
    families = {path.stem for path in (CONF / "family").iterdir()}
    for name in dict.fromkeys(names):
        choices = [choice for _, *inner, choice in (one.split("/") for one in sections(name)) if not inner]
        files = (path.relative_to(CONF / name).with_suffix("") for path in (CONF / name).rglob("*.yaml"))
        shown = sorted(str(path) for path in files if len(path.parts) == 1 or path.parts[0] in families)
        choices += [p if "@package" in (CONF / name / f"{p}.yaml").read_text() else f"{p}/..." for p in shown]
        if choices:
            yield textwrap.fill(", ".join(choices), 116, initial_indent=f"  {name:<12} ", subsequent_indent=" " * 15)


def _written(group: str, choice: str) -> str:
    """The YAML of a choice without what is not for users: addresses of components, defaults lists, packages."""
    file, of = CONF / group / f"{choice}.yaml", home(f"{group}/{choice}")
    whole = CONF / f"{of}.yaml"
    text = file.read_text() if file.is_file() else ""
    if not text and whole.is_file():
        section = re.escape(f"{group}/{choice}".removeprefix(f"{of}/"))
        found = re.search(rf"^(?:#.*\n)*{section}:.*\n(?: .*\n)*", whole.read_text(), re.MULTILINE)
        text = found[0] if found else ""
    text = re.sub(r"^( *)defaults:.*\n(?:\1  .*\n)*", "", text, flags=re.MULTILINE)
    return "\n".join(line for line in text.splitlines() if not re.match(r"\s*_\w+_:|# @package", line)).strip()


def _arguments(config: DictConfig, where: str) -> Iterator[str]:
    """The arguments that components have and their YAML leaves out, with what docstrings say of them."""
    part = OmegaConf.select(config, where)
    for name, parameter in options(config, where).items():
        if name not in part and isinstance(parameter.default, _SHOWN):
            doc = inspect.getdoc(find(part, where)) or ""
            said = re.search(rf"^ +{name}: (.*(?:\n {{8,}}\S.*)*)", doc, re.MULTILINE)
            default = parameter.default if isinstance(parameter.default, str) else json.dumps(parameter.default)
            yield _beside(f"  {where}.{name}={default}", " ".join(said[1].split()) if said else "")
    for key, inner in part.items_ex(resolve=False) if isinstance(part, DictConfig) else ():
        if isinstance(inner, DictConfig):
            yield from _arguments(config, f"{where}.{key!s}")


def program_of(command: list[str]) -> str:
    """train or sample, from the name by which it was called."""
    return Path(command[0]).stem.removeprefix("blackout-")


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
@task
def train(cfg: DictConfig) -> Path:
    """Train a model: `python train.py`, `python train.py dataset=cifar10`, `python train.py -m seed=1,2,3`."""
    put_off_torchmetrics()
    from blackout.programs.train import train

    return train(cfg)


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="sample")
@task
def sample(cfg: DictConfig) -> Path:
    """Draw samples from a trained model: `python sample.py ckpt=runs/digits/<run_id> num_samples=64`."""
    from blackout.programs.sample import sample

    return sample(cfg)


def run(main: Callable[[], object]) -> None:
    """Run one of the two on this process's command line; the process ends with its exit code."""
    with one_line_errors():
        if {"--help", "-h"} & set(sys.argv[1:]):
            name = Path(sys.argv[0]).name
            print(help_text(program_of(sys.argv), f"python {name}" if name.endswith(".py") else name, sys.argv[1:]))
            return
        # Hydra would take the comma of a condition in words for a sweep
        sys.argv[1:] = [re.sub(r"(given=)([^'\"\[{]*\w \w[^'\"]*,.*)", r"\1'\2'", word) for word in sys.argv[1:]]
        main()
        end_of_sweep()


train_command, sample_command = partial(run, train), partial(run, sample)
"""`blackout-train` and `blackout-sample` of a wheel."""

"""`--help`: the settings of a command with the comments of its YAML files, grouped, with examples."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from blackout.programs.words import CONF

_EXAMPLES = {
    "train": """\
  {command}                                        the digits, in minutes on a CPU
  {command} dataset=counts dataset.path=mine.npy   your own counts
  {command} experiment=blackout_cifar10            as the paper trains it
  {command} run_id=mine trainer.max_steps=5000     a run with a name; the same again continues it
  {command} init_from=runs/digits/mine seed=1      a new run from the weights of another
  {command} -m seed=1,2,3 optimizer=adam,muon      a sweep
  {command} logger=[tensorboard,wandb]             dashboards""",
    "sample": """\
  {command} ckpt=runs/digits/<run_id> num_samples=64
  {command} ckpt=runs/digits/<run_id> sampler=poisson sampler.num_steps=100
  {command} ckpt=runs/digits/<run_id> num_samples=1000 evaluate=true
  {command} ckpt=runs/digits/<run_id> classes=[3] sampler.guidance=2
  {command} samples=mine.npz dataset=cifar10 evaluate=true""",
}
_TAIL = """\
  {command} dataset=cifar10 --help      what a choice sets, too
  {command} --cfg job --resolve         all settings as they would be used, nothing is run
  {command} --info defaults-tree        where they come from
  {command} --config-dir mine/conf      also the groups in a folder of your own
  {command} --hydra-help                what every Hydra program can do; shell completion"""


def help_text(program: str, command: str, words: list[str]) -> str:
    """The help of a program.

    Args:
        program: train or sample.
        command: as the user calls it.
        words: the rest of the command line; of the groups chosen there, the files are shown.
    """
    text = (CONF / f"{program}.yaml").read_text()
    listed, *_ = re.split(r"^(?=\w)(?!defaults:)", text, maxsplit=1, flags=re.MULTILINE)
    own = re.findall(r"^  - (?:optional |override )?(\w+):", listed, re.MULTILINE)
    others = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name not in own)
    family = (CONF / "family" / "blackout.yaml").read_text()
    of_family = [name for name in others if f"- /{name}: " in family]
    own_family = family.split("\n\n")[-1]  # after its groups and its component
    shown = own + of_family if program == "train" else own
    parts = [text.splitlines()[0].removeprefix("# "), "", "Examples:", _EXAMPLES[program]]
    parts += ["", "Settings, <name>=<value>:", *_settings(text)]
    parts += _settings(own_family) if program == "train" else ()
    parts += ["", "Groups, <group>=<choice>, and <group>.<setting>=<value>:", *_groups(shown)]
    if program == "train":
        rest = [name for name in others if name not in shown]
        parts += ["", "Groups of other families (family=flow, energy, shuffle, codes) and of sampling:", *_groups(rest)]
    parts += _choices(words)
    return "\n".join([*parts, "", "More:", _TAIL]).replace("{command}", command)


def _choices(words: list[str]) -> Iterator[str]:
    """The files of the choices in a command line."""
    for group, choice in (word.lstrip("+").split("=", 1) for word in words if "=" in word):
        if (file := CONF / group / f"{choice}.yaml").is_file():
            yield f"\n{group}={choice}:\n{textwrap.indent(_visible(file.read_text()), '  ')}"


def _settings(text: str) -> Iterator[str]:
    """The settings of a program with their defaults and comments, a line each."""
    body = text.split("\nhydra:")[0].split("override hydra/hydra_logging: none\n")[-1]
    for line in body.splitlines():
        if match := re.match(r"( *\w+): ?(.*?)(?: *# (.*))?$", line):
            name, value, comment = (part or "" for part in match.groups())
            head = f"  {name}={value}" if value else f"  {name}:"
            if not comment:
                yield head
                continue
            yield textwrap.fill(comment, 116, initial_indent=f"{head:<26} ", subsequent_indent=" " * 27)


def _groups(names: list[str]) -> Iterator[str]:
    """Groups with their choices; those within groups, of parts, are left out."""
    for name in dict.fromkeys(names):
        choices = sorted(path.stem for path in (CONF / name).glob("*.yaml"))
        if choices:
            yield textwrap.fill(", ".join(choices), 116, initial_indent=f"  {name:<12} ", subsequent_indent=" " * 15)


def _visible(text: str) -> str:
    """A YAML file without what is not for users: addresses of components, defaults lists, packages."""
    text = re.sub(r"^defaults:\n(?:  .*\n)*", "", text, flags=re.MULTILINE)
    lines = [line for line in text.splitlines() if not re.match(r"\s*_\w+_:|# @package", line)]
    return "\n".join(lines).strip()


def asks_for_help(command: list[str]) -> bool:
    """Whether a command line asks for this help."""
    return any(word in ("--help", "-h") for word in command[1:])


def program_of(command: list[str]) -> str:
    """train or sample, from the name by which it was called."""
    return Path(command[0]).stem.removeprefix("blackout-")

"""`python train.py` and `python sample.py`: Hydra programs whose errors are one line."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig

from blackout.cli.sweeps import is_sweep_job, run_job, tables_with_failures
from blackout.config.choices import list_choices
from blackout.config.explain import COMPOSITION_ERRORS, check_flags, explain, parse_command_line
from blackout.distributed import is_first
from blackout.errors import UserError, errors_in_one_line, refuse
from blackout.files import CONF

# flags of Hydra with which the program only shows something
INFORMATION_FLAGS = frozenset(
    ["--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i", "--version", "-sc"]
)
MAX_WORD = 40  # characters of a word of the command line that a message repeats


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
def train(cfg: DictConfig) -> Path | None:
    """Train a model, as in `python train.py dataset=cifar10` or `python train.py -m seed=1,2,3`."""
    from blackout.cli.train import train as train_model

    return _run_job(train_model, cfg)


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="sample")
def sample(cfg: DictConfig) -> Path | None:
    """Draw samples from a trained model: `python sample.py ckpt=<run> num_samples=64`."""
    from blackout.cli.sample import sample as draw_samples

    return _run_job(draw_samples, cfg)


def _run_job(function: Callable[[DictConfig], Path], cfg: DictConfig) -> Path | None:
    with errors_in_one_line(continues=True):  # before Hydra adds a line of its own to an exception
        return run_job(function, cfg) if is_sweep_job() else function(cfg)
    raise AssertionError("unreachable")  # errors end the process


def run(main: Callable[[], object], program: str) -> None:
    """Run a Hydra program on this process's command line; the process ends with its exit code.

    Args:
        main: a function decorated with `hydra.main`.
        program: train or sample, the name of its configuration file.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises, rather than printing and leaving with 1
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", category=FutureWarning)  # what libraries will change
    words = sys.argv[1:]
    with errors_in_one_line(continues=not INFORMATION_FLAGS.intersection(words)):
        check_flags(words)
        _refuse_values_for_groups(words)
        _check_sweep_folder(words)
        try:
            main()
        except COMPOSITION_ERRORS as error:
            if isinstance(error.__cause__ or error.__context__, MemoryError):
                raise MemoryError("settings cannot be composed") from error
            raise UserError(explain(error, program, words)) from error
        if tables_with_failures:
            print(
                f"{len(tables_with_failures)} job(s) failed; "
                f"the reasons are in {tables_with_failures[-1]}",
                file=sys.stderr,
            )
            tables_with_failures.clear()
            sys.exit(int(is_first()))  # a launcher would end the first process, which writes tables


def _refuse_values_for_groups(words: list[str]) -> None:
    """Refuse `metrics=null` and `trainer=3`, for which Hydra raises a ValueError.

    A job might raise one too, so it could not be told from a mistake in the command line.

    Raises:
        UserError: the group, and what to type.
    """
    parser = OverridesParser.create()
    for word in parse_command_line(words).overrides:
        try:
            override = parser.parse_override(word)
        except HydraException:  # explained when Hydra itself has refused it
            continue
        except ValueError:  # a whole number of more digits than Python reads
            raise UserError(f"{word[:MAX_WORD]}...: the value is too large a number") from None
        group = override.key_or_group
        is_group = override.package is not None or (CONF / group).is_dir()
        is_value = not override.is_delete() and not override.is_sweep_override()
        if is_group and is_value and isinstance(override.value(), int | float | None):
            names = list_choices(group)
            example = "none" if "none" in names or not names else names[0]
            raise UserError(
                f"{word}: {group} takes the name of a choice, such as {group}={example}; or omit it"
            )


def _check_sweep_folder(words: list[str]) -> None:
    """Refuse a sweep of runs at an address or in `~`, which Hydra would take for a local folder.

    Raises:
        UserError: no other folder is named for the sweep's own files.
    """
    line = parse_command_line(words)
    settings = dict(word.partition("=")[::2] for word in line.overrides)
    runs = settings.get("runs_dir", "").strip("'\"")
    if not line.multirun or "hydra.sweep.dir" in settings:
        return
    refuse(
        runs.startswith("~"),
        f"runs_dir={runs}: a sweep needs the path without ~: runs_dir={os.path.expanduser(runs)}",
    )
    if "://" in runs:
        raise UserError(
            f"runs_dir={runs} is a remote store, and the table of a sweep needs a local folder: "
            "add hydra.sweep.dir=sweeps/<name>"
        )


run_train = partial(run, train, "train")
run_sample = partial(run, sample, "sample")

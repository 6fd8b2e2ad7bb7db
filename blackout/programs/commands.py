"""The commands: `train.py` and `sample.py` in the repository, `blackout-train` and `blackout-sample` of a wheel."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import hydra
from omegaconf import DictConfig

from blackout.programs.cli import end_of_sweep, one_line_errors, task
from blackout.programs.help import asks_for_help, help_text, program_of
from blackout.programs.words import CONF


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
@task
def train(cfg: DictConfig) -> Path:
    """Train a model: `python train.py`, `python train.py dataset=cifar10`, `python train.py -m seed=1,2,3`."""
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
    if asks_for_help(sys.argv):
        name = Path(sys.argv[0]).name
        print(help_text(program_of(sys.argv), f"python {name}" if name.endswith(".py") else name, sys.argv[1:]))
        return
    with one_line_errors():
        main()
        end_of_sweep()


def train_command() -> None:
    """`blackout-train`."""
    run(train)


def sample_command() -> None:
    """`blackout-sample`."""
    run(sample)

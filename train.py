"""Train a model: `python train.py`, `python train.py dataset=cifar10`, `python train.py -m seed=1,2,3`."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from blackout.programs.cli import end_of_sweep, one_line_errors, task


@hydra.main(version_base="1.3", config_path=str(Path(__file__).parent / "conf"), config_name="train")
@task
def main(cfg: DictConfig) -> Path:
    from blackout.programs.train import train

    return train(cfg)


if __name__ == "__main__":
    with one_line_errors():
        main()
        end_of_sweep()

"""Draw samples from a trained model: `python sample.py ckpt=runs/digits/<run_id> num_samples=64`."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from blackout.programs.cli import end_of_sweep, one_line_errors, task


@hydra.main(version_base="1.3", config_path=str(Path(__file__).parent / "conf"), config_name="sample")
@task
def main(cfg: DictConfig) -> Path:
    from blackout.programs.sample import sample

    return sample(cfg)


if __name__ == "__main__":
    with one_line_errors():
        main()
        end_of_sweep()

"""Draw samples from a trained model: `python sample.py ckpt=runs/digits/<run_id> num_samples=64`."""

from blackout.programs.cli import run
from blackout.programs.cli import sample as main

if __name__ == "__main__":
    run(main)

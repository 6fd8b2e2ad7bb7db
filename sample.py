"""Draw samples from a trained model: `python sample.py ckpt=<run> num_samples=64`."""

from blackout.cli.programs import run_sample

if __name__ == "__main__":
    run_sample()

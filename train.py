"""Train a model: `python train.py`, `python train.py dataset=cifar10`, `python train.py -m seed=1,2,3`."""

from blackout.cli.programs import run_train

if __name__ == "__main__":
    run_train()

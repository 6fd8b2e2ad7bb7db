"""Train a model, as in `python train.py dataset=cifar10` or `python train.py -m seed=1,2,3`."""

from blackout.cli.programs import run_train

if __name__ == "__main__":
    run_train()

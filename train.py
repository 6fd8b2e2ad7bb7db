"""Train a model: `python train.py`, `python train.py dataset=cifar10`, `python train.py -m seed=1,2,3`."""

from blackout.programs.cli import run
from blackout.programs.cli import train as main

if __name__ == "__main__":
    run(main)

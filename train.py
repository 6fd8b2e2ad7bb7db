"""Train a model: `python train.py`, `python train.py dataset=cifar10`, `python train.py -m seed=1,2,3`."""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the imports without a traceback; `run` takes it back

from blackout.programs.cli import run
from blackout.programs.cli import train as main

if __name__ == "__main__":
    run(main)

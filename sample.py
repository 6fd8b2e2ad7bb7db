"""Draw samples from a trained model: `python sample.py ckpt=runs/digits/<run_id> num_samples=64`."""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the imports without a traceback; `run` takes it back

from blackout.programs.cli import run
from blackout.programs.cli import sample as main

if __name__ == "__main__":
    run(main)

"""Programs started by fork, which need not import torch again.

The parent must not have trained anything, since torch's autograd does not survive a fork.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(
    program: str, arguments: list[str], output: Path, before: Callable[[], object] = lambda: None
) -> int:
    """Run `python program.py arguments` in a fork with its own process group.

    Args:
        program: train or sample.
        arguments: its command line.
        output: file for its output.
        before: called first in the fork.

    Returns:
        The process id.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        code = _run(program, arguments, before)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(child: int, seconds: float = 120) -> int:
    """Return the exit code of a fork, negative for a signal.

    Raises:
        TimeoutError: if it takes longer than `seconds`; it is killed then.
    """
    import time

    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            kill(child)
            os.waitpid(child, 0)
            raise TimeoutError(f"still running after {seconds} s")
        time.sleep(0.01)


def kill(child: int) -> None:
    """Send SIGKILL to a fork and its process group."""
    os.killpg(child, signal.SIGKILL)


def _run(program: str, arguments: list[str], before: Callable[[], object]) -> int:
    sys.path.insert(0, str(ROOT))
    # Lightning starts further processes with `python argv[0]`, not `python -m`
    sys.modules["__main__"].__spec__ = None
    sys.argv = [str(ROOT / f"{program}.py"), *arguments]
    programs = importlib.import_module("blackout.cli.programs")
    before()
    try:
        getattr(programs, f"run_{program}")()
    except SystemExit as error:
        return int(error.code or 0)
    return 0


def preload() -> None:
    """Import everything the programs need, once."""
    sys.path.insert(0, str(ROOT))
    for name in (
        "train",
        "sample",
        "blackout.cli.train",
        "blackout.cli.sample",
        "blackout.cli.score",
        "blackout.diffusion",
        "blackout.flows.energies",
        "blackout.permutations.shuffle",
        "blackout.permutations.coded",
        "blackout.posterior.draw",
        "blackout.evaluation",
        "blackout.random.counts",
        "matplotlib.backends.backend_agg",
        "sklearn.datasets",
        "torch.optim",
        "torch._dynamo",
        "hydra._internal.core_plugins",
    ):
        importlib.import_module(name)
    importlib.import_module("blackout.random.numba_draws")
    gc.collect()
    gc.freeze()  # garbage collection in forks skips inherited objects
    # At exit they are collected as usual. Otherwise nanobind, with which Triton is bound to Python,
    # reports its objects as leaked.
    atexit.register(gc.unfreeze)

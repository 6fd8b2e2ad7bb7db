"""How a run leaves when a signal asks it to: preemption by a scheduler, a launcher that ends a group, Ctrl-C.

A signal only sets a flag, and training stops at the next boundary, where everything can be saved. Lightning's own
handlers save in the middle of a step, or not at all, and only under SLURM.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from blackout.distributed import is_first, world_size
from blackout.errors import Preempted

REQUEUE = 75
"""Exit code of a run that was asked to leave and can be started again (EX_TEMPFAIL of sysexits.h)."""
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


class Signals:
    """SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and Ctrl-C.

    While `listening`, a signal sets a flag that the training loop reads where it can stop; otherwise it ends the
    program at once with the same exit code, since every file there is written whole or not at all.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._listening = False
        self._before: dict[int, Any] = {}
        self._group: Any = None

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Handle the signals inside; restore the earlier handlers afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.received = None
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.install()
        try:
            yield
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def install(self) -> None:
        """Install the handlers, in place of Lightning's too: those save in the middle of a step, or not at all."""
        if self._before and threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._handle)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, the caller promises to call `agreed` often."""
        self._listening = True
        try:
            yield
        finally:
            self._listening, self._group = False, None

    def agreed(self) -> int | None:
        """The signal that any process has received; all processes must call it together, and get the same answer.

        The number is reduced over a second process group, of CPU tensors, so that no process waits for its accelerator.
        This group needs PyTorch's gloo backend, which its packages for Linux and macOS have, and a network between the
        machines; it is made by all processes together at the first call.
        """
        number = self.received or 0
        if world_size() > 1:
            if self._group is None:
                self._group = dist.new_group(backend="gloo")
            flag = torch.tensor(number)
            dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group)
            number = int(flag)
        return number or None

    def leave(self, number: int, step: int) -> None:
        """End the run, saved at this step: by the handler that was there before (a launcher's), or with an exit code.

        Raises:
            Preempted: always, unless the earlier handler ends the process.
        """
        earlier = self._before.get(number)
        if number != signal.SIGINT and callable(earlier) and is_first():
            earlier(number, None)
        raise Preempted(f"stopped by signal {number} and saved at step {step}: the same command goes on", _code(number))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = self.received is not None
        self.received = number
        if not self._listening or (again and number == signal.SIGINT):  # Lightning ends a KeyboardInterrupt by itself
            where = "within" if self._listening else "outside"
            raise Preempted(f"stopped {where} training: the same command goes on", _code(number))


signals = Signals()
"""A process has one set of signal handlers."""


def _code(number: int) -> int:
    if not is_first():  # if one of the others failed, a launcher would kill the first process, which saves
        return 0
    return 130 if number == signal.SIGINT else REQUEUE

"""Stopping a run on signals: preemption by a scheduler or launcher, and Ctrl-C.

A signal only sets a flag, and training stops at the next boundary between steps, where everything
can be saved. Lightning's own handlers save in the middle of a step, or not at all, and only under
SLURM.
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

REQUEUE_CODE = 75  # exit code of a run that can be started again (EX_TEMPFAIL of sysexits.h)
INTERRUPT_CODE = 130  # exit code after Ctrl-C, as shells have it
HANDLED_SIGNALS = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGINT,
)


class Signals:
    """Signal handlers that stop training at a step boundary, for preemption and Ctrl-C.

    They handle SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGINT.

    While `listening`, a signal sets a flag that the training loop reads where it can stop.
    Otherwise it ends the program at once with the same exit code, which is safe because checkpoints
    and outputs are written completely or not at all.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._is_listening = False
        self._earlier_handlers: dict[int, Any] = {}
        self._group: Any = None

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Handle the signals within the block; restore the earlier handlers afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.received = None
        self._earlier_handlers = {number: signal.getsignal(number) for number in HANDLED_SIGNALS}
        self.install()
        try:
            yield
        finally:
            for number, handler in self._earlier_handlers.items():
                signal.signal(number, handler)

    def install(self) -> None:
        """Install the handlers, also in place of those that Lightning has installed."""
        is_main_thread = threading.current_thread() is threading.main_thread()
        if self._earlier_handlers and is_main_thread:
            for number in HANDLED_SIGNALS:
                signal.signal(number, self._handle)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Let signals only set a flag within the block, which calls `agreed` every few steps."""
        self._is_listening = True
        try:
            yield
        finally:
            self._is_listening = False
            self._group = None

    def join_group(self) -> None:
        """Create the process group that `agreed` uses, if there is none, on all processes together.

        A process learns at once that another of its group has ended; one that waits for the others
        to create a group waits for half an hour. The group needs PyTorch's gloo backend, which its
        packages for Linux and macOS have.
        """
        if self._group is None and world_size() > 1:
            self._group = dist.new_group(backend="gloo")

    def agreed(self) -> int | None:
        """Return the number of a signal that any process has received; None if none has.

        All processes must call it together, and receive the same answer. The number is reduced over
        a second process group, of CPU tensors, so that no process waits for its accelerator.
        """
        number = self.received or 0
        if world_size() > 1:
            self.join_group()
            flag = torch.tensor(number)
            dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group)
            number = int(flag)
        return number or None

    def leave(self, number: int, step: int) -> None:
        """End the run after it was saved: call the earlier handler, or raise `Preempted`.

        Args:
            number: of the signal.
            step: at which the run was saved, for the message.

        Raises:
            Preempted: always, unless the earlier handler (of a launcher) ends the process.
        """
        earlier_handler = self._earlier_handlers.get(number)
        if number != signal.SIGINT and callable(earlier_handler) and is_first():
            earlier_handler(number, None)
        raise Preempted(
            f"stopped by signal {number} and saved at step {step}: the same command continues",
            _exit_code(number),
        )

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_repeated = self.received is not None
        self.received = number
        # A second Ctrl-C stops at once. Lightning would catch a KeyboardInterrupt.
        if not self._is_listening or (is_repeated and number == signal.SIGINT):
            place = "during" if self._is_listening else "outside"
            raise Preempted(
                f"stopped {place} training: the same command continues", _exit_code(number)
            )


# the handlers of this process, of which there can only be one set
signals = Signals()


def _exit_code(number: int) -> int:
    # If one of the other processes failed, a launcher would kill the first one, which saves.
    if not is_first():
        return 0
    return INTERRUPT_CODE if number == signal.SIGINT else REQUEUE_CODE

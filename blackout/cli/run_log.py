"""train.log: what a run prints, next to its other files."""

from __future__ import annotations

import io
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO

from blackout.cli.provenance import command_line
from blackout.distributed import is_first
from blackout.errors import Preempted, WarningFormatter

FILE = "train.log"
CONTROL_CHARACTERS = ("\x1b", "\r")  # of progress bars, which redraw their line


class Tee(io.TextIOBase):
    """A stream that also writes to a log, except what a progress bar draws.

    Args:
        stream: of the program.
        log: an open file.
    """

    def __init__(self, stream: TextIO, log: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._log = log

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the stream."""
        return self._stream.encoding

    @property
    def closed(self) -> bool:
        """Whether the stream is closed; libraries with a reference to this one check it at exit."""
        return self._stream.closed

    def fileno(self) -> int:
        """Return the descriptor of the stream."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Write to the stream and to the log."""
        if not any(character in text for character in CONTROL_CHARACTERS):
            self._log.write(text)
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush the stream and the log."""
        self._log.flush()
        self._stream.flush()


@contextmanager
def run_log(run: Path) -> Iterator[None]:
    """Append what is printed, warnings, and the error that ends the run to its train.log.

    Args:
        run: the run directory.
    """
    if not is_first() or sys.stdout is None:
        yield
        return
    warnings_logger = logging.getLogger("py.warnings")
    with (run / FILE).open("a", encoding="utf-8") as log:
        log.write(f"# {time.strftime('%Y-%m-%d %H:%M:%S')} {command_line()}\n")
        handler = logging.StreamHandler(log)
        handler.setFormatter(WarningFormatter())
        warnings_logger.addHandler(handler)
        try:
            with redirect_stdout(Tee(sys.stdout, log)):
                yield
        except Preempted as end:
            log.write(f"{end}\n")
            raise
        except BaseException:
            log.write(traceback.format_exc())
            raise
        finally:
            warnings_logger.removeHandler(handler)

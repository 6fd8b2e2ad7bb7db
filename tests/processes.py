"""The programs in separate processes, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
SECONDS = 600  # time limit of a program


class Process(subprocess.Popen):
    """`python <program>.py <arguments>` or `python -c <code>`, with captured output."""

    def __init__(
        self, program: str, arguments: Sequence[object], cwd: Path = ROOT, **environment: str
    ) -> None:
        command = [*_start(program), *map(str, arguments)]
        self._files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  (closed with this)
        super().__init__(
            [sys.executable, *command],
            cwd=cwd,
            env={**os.environ, **ENVIRONMENT, **environment},
            stdin=subprocess.DEVNULL,
            stdout=self._files[0],
            stderr=self._files[1],
            start_new_session=True,
        )

    def outcome(self) -> subprocess.CompletedProcess[str]:
        """Wait for the end and return the exit code and the output."""
        try:
            code = self.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read().decode())
        return subprocess.CompletedProcess(self.args, code, *texts)


def run(
    program: str, *arguments: object, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return Process(program, arguments, cwd, **environment).outcome()


def run_distributed(
    program: str,
    *arguments: object,
    processes: int = 2,
    launcher_options: Sequence[str] = (),
    cwd: Path = ROOT,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run a program in several processes, with `torchrun`."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.run(
        [sys.executable, *launcher, *launcher_options, *_start(program), *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def _start(program: str) -> list[str]:
    """Return the arguments that start a program: `train`, `-c`, or a path of a test module."""
    if program == "-c":
        return ["-c"]
    return ["-m", program.replace("/", ".")] if "/" in program else [str(ROOT / f"{program}.py")]

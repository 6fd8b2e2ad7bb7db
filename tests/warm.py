"""The programs in processes of their own, without the seconds that a fresh interpreter needs to import torch.

A server has everything imported and has done nothing else; a program is a fork of it that becomes `python train.py
<arguments>`: the same file run as `__main__`, with its own arguments, folder, environment and output, ended by the same
signals. The processes that pytest-xdist tests in are forks of it too, so that what all of them import is imported once
and is in memory once. It ends with the tests, whose processor time holds it.
Whether a fresh interpreter does the same is for the tests that start one; each program has some.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
WHERE = "BLACKOUT_TESTS_SERVER"
"""The environment variable with the server's socket."""
_set_by_imports: dict[str, str] = {}
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}  # a fork would wait for threads that it lacks


class Process:
    """A program that runs, or `-c` and code; `pid` is for signals. As `subprocess.Popen`, as far as tests need it."""

    def __init__(self, program: str, arguments: Sequence[object], cwd: Path = ROOT, **environment: str) -> None:
        self._files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  (closed with this)
        words = [program if program == "-c" else str(ROOT / f"{program}.py"), *map(str, arguments)]
        with open(os.devnull, "rb") as nothing:
            files = [file.fileno() for file in (nothing, *self._files)]
            self._server = _asked(words, str(cwd), {**os.environ, **ENVIRONMENT, **environment}, files)
        self.pid, self.returncode = _number(self._server), None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._server], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, seconds: float = 300) -> int:
        """The exit code at the end; a program that takes longer is killed, and raises TimeoutError."""
        if self.returncode is None:
            self._server.settimeout(seconds)
            try:
                self.returncode = _number(self._server)
            except TimeoutError:
                self.send_signal(signal.SIGKILL)
                raise
            self._server.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """To the program alone, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def outcome(self) -> subprocess.CompletedProcess[str]:
        """What it said and how it ended."""
        code, told = self.wait(), []
        for file in self._files:
            file.seek(0)
            told.append(file.read().decode())
        return subprocess.CompletedProcess([], code, *told)


def run(program: str, *arguments: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python <program>.py <arguments>`, to its end."""
    return Process(program, arguments, cwd, **environment).outcome()


def together(program: str, *arguments: object, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """`torchrun --nproc-per-node=<processes> <program>.py <arguments>`: what all of them said, and the worst end."""
    from torch import distributed as dist  # here, because the server begins before it is known who needs torch

    # As torchrun does, the meeting point is held by who starts them: it lives until the last of them has ended.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    shared |= {"TORCHELASTIC_RUN_ID": "tests", "GROUP_RANK": "0"}
    shared |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    started = [Process(program, arguments, **shared, **rank) for rank in ranks]
    while None in (codes := [one.poll() for one in started]) and not any(codes):
        time.sleep(0.02)
    for one in started if any(codes) else ():  # the others would wait for the one that failed
        one.send_signal(signal.SIGKILL)
    done = [one.outcome() for one in started]
    del store
    code = next((one.returncode for one in done if one.returncode), 0)
    return subprocess.CompletedProcess([], code, "".join(one.stdout for one in done), "".join(o.stderr for o in done))


@contextlib.contextmanager
def serving(at_once: bool = False) -> Iterator[None]:
    """A server for this process and those it starts, which imports what it needs at once, or when it is first asked."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(where := str(Path(folder) / "socket"))
        listener.listen(64)
        command = [sys.executable, "-m", "tests.warm", str(listener.fileno()), *["at once"] * at_once]
        os.environ[WHERE] = where
        server = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **ENVIRONMENT}, pass_fds=[listener.fileno()])
        try:
            yield
        finally:
            server.terminate()
            server.wait()
            del os.environ[WHERE]


def python() -> str:
    """A command that does `python -u -c <code>` in a fork of the server: xdist's for the processes that test."""
    # plugins are found by who hands out tests; pytest would warn of those that the server has imported
    alone = ["env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", "PYTEST_PLUGINS=xdist.plugin", sys.executable, "-I", "-S"]
    return shlex.join([*alone, str(Path(__file__).resolve())])


def _asked(argv: list[str], cwd: str, environment: Mapping[str, str], files: Sequence[int]) -> socket.socket:
    """The connection to a server that has been asked for a process: it tells its number, and in the end its code."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(os.environ[WHERE])
    message = json.dumps({"argv": argv, "cwd": cwd, "environment": dict(environment)}).encode()
    socket.send_fds(server, [len(message).to_bytes(4, "big")], files)
    server.sendall(message)
    return server


def _number(server: socket.socket) -> int:
    return int.from_bytes(_exactly(server, 4), "big", signed=True)


def serve(listener: socket.socket, at_once: bool) -> None:
    """Answer requests until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if ready := at_once:
        _import_everything()
    while True:
        waiting, _, _ = select.select([listener], [], [], 1)
        if waiting:
            client, _ = listener.accept()
            if not ready:
                _import_everything()
                ready = True
            if not os.fork():
                listener.close()
                os._exit(_answer(client))
            client.close()
        with contextlib.suppress(ChildProcessError):  # so that the system adds their processor time to this process's
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _answer(client: socket.socket) -> int:
    size, descriptors, _, _ = socket.recv_fds(client, 4, 3)
    request = json.loads(_exactly(client, int.from_bytes(size, "big")))
    child = os.fork()
    if not child:
        client.close()
        _become(request["argv"], request["cwd"], request["environment"], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    client.sendall(child.to_bytes(4, "big", signed=True))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):  # whoever asked has gone
        client.sendall(code.to_bytes(4, "big", signed=True))
    return 0


def _become(argv: list[str], cwd: str, environment: Mapping[str, str], descriptors: Sequence[int]) -> None:
    """Be `python argv`, a file or `-c <code>`, and end as it does."""
    from lightning_fabric.utilities import rank_zero

    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update({**_set_by_imports, **environment})
        rank_zero.rank_zero_only.rank = rank_zero._get_rank() or 0  # Lightning reads it once, when it is imported
        sys.argv = argv
        sys.path.insert(0, str(ROOT))
        if argv[0] == "-c":
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(argv[1], vars(main))
        else:
            runpy.run_path(argv[0], run_name="__main__")
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
            sys.stderr.flush()
        if argv[0] == "-c":  # where torch's compiler counts in hundreds of lines what it has not freed
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        atexit._run_exitfuncs()
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (part := connection.recv(size - len(found))):
            raise ConnectionError("the server of the tests has ended")
        found += part
    return found


def _import_everything() -> None:
    before = dict(os.environ)
    from tests import compositions
    from tests.soak import forks

    compositions.remember()
    # by tests, and what is compiled in a fresh clone
    for name in (
        "blackout.flows.numba_sweeps", "hypothesis.strategies", "networkx", "sklearn.ensemble",
        "sklearn.linear_model", "sklearn.model_selection",
        "tensorboard.backend.event_processing.event_accumulator", "blackout.laws.claims", "blackout.demo",
    ):  # fmt: skip
        importlib.import_module(name)
    _import_wandb()
    forks.preload()
    from blackout.programs import cli

    _set_by_imports.update({name: value for name, value in os.environ.items() if name not in before})
    for program in ("train", "sample"):  # its settings are composed already in every fork
        cli.composed(program, [])


def _import_wandb() -> None:
    """It makes folders when it is imported, which the first fork to end would remove; the server's own has them."""
    tempfile.tempdir = str(Path(os.environ[WHERE]).parent)
    import wandb.sdk.launch  # in every run that it logs: as long as all the rest of it
    from wandb.sdk.data_types import _private

    tempfile.tempdir = None
    for folder in (_private.MEDIA_TMP, wandb.Artifact._TMP_DIR):
        atexit.unregister(folder.cleanup)
        folder._finalizer.detach()  # type: ignore[attr-defined]
        folder.cleanup = lambda: None  # type: ignore[method-assign]


if __name__ == "__main__":
    if "-c" in sys.argv:
        connection = _asked(sys.argv[-2:], os.getcwd(), os.environ, [0, 1, 2])
        _number(connection)
        for inherited in (0, 1):  # the fork has them
            os.close(inherited)
        sys.exit(_number(connection))
    serve(socket.socket(fileno=int(sys.argv[1])), "at once" in sys.argv)

"""One thread per process: these tensors are tiny, and threads of two processes on few cores stall each other."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from typing import TYPE_CHECKING, Any

os.environ["OMP_NUM_THREADS"] = "1"

import pytest

from tests import warm

if TYPE_CHECKING:
    from blackout.data import CountData


def pytest_configure(config: pytest.Config) -> None:
    """The marks, and one server of warm processes for all that run tests."""
    deep = "takes long, or looks at what rarely breaks: `make test-deep` runs it, `make test` does not"
    config.addinivalue_line("markers", f"deep: {deep}")
    config.addinivalue_line("markers", "drawn: the figures of the programs are drawn, which elsewhere are blank")
    if warm.WHERE not in os.environ:
        stack = contextlib.ExitStack()
        stack.enter_context(warm.serving())
        config.add_cleanup(stack.close)
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):  # not who hands out tests only
        import torch

        from tests import compositions

        compositions.remember()
        torch.set_num_threads(1)
        gc.disable()  # while hundreds of thousands of objects are imported that stay


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """The processes that test are forks of the server."""
    for spec in specs:
        spec.python = warm.python()


@pytest.hookimpl(tryfirst=True)
def pytest_warning_recorded(warning_message: Any) -> None:
    """Warnings are told by what they say: for their classes, who hands out tests would have to import torch."""
    warning_message.message, warning_message.category = UserWarning(str(warning_message.message)), UserWarning


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test of a file, what its tensors had goes back to the system."""
    if nextitem is None or nextitem.path != item.path:
        ctypes.CDLL(None).malloc_trim(0)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported is not looked through again by collections of garbage, of which there are then enough."""
    gc.freeze()
    gc.collect()
    gc.enable()


@pytest.fixture
def numbered() -> CountData:
    """23 training and 9 held-out images [1, 2, 3]; image k is filled with k, except that its left column is 30."""
    import torch

    from blackout.data import CountData

    train = torch.arange(23).view(-1, 1, 1, 1).expand(23, 1, 2, 3).clone()
    test = torch.arange(9).view(-1, 1, 1, 1).expand(9, 1, 2, 3).clone()
    train[..., 0] = 30
    return CountData("numbered", train, test, 30, torch.arange(23) % 3, torch.arange(9) % 3)

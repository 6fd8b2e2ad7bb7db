"""One thread per process unless OMP_NUM_THREADS says otherwise.

These tensors are tiny, and threads of two processes on few cores stall each other.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from _pytest.assertion.rewrite import (
    PYC_TAIL,
    _read_pyc,
    _rewrite_test,
    _write_pyc,
    assertstate_key,
    get_cache_dir,
    try_makedirs,
)

from tests import warm

if TYPE_CHECKING:
    from blackout.data import CountData


def pytest_configure(config: pytest.Config) -> None:
    """The marks, and one server of warm processes for all that run tests."""
    deep = "takes long, or looks at what rarely breaks: `make test-deep` runs it, `make test` does not"
    config.addinivalue_line("markers", f"deep: {deep}")
    config.addinivalue_line("markers", "drawn: the figures of the programs are drawn, which elsewhere are blank")
    hands_out = bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")
    if warm.WHERE not in os.environ:
        stack = contextlib.ExitStack()
        stack.enter_context(warm.serving(at_once=hands_out))
        config.add_cleanup(stack.close)
    if not hands_out:
        import torch

        from tests import compositions

        compositions.remember()
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        gc.disable()  # while hundreds of thousands of objects are imported that stay
    elif assertstate_key in config.stash:
        rewrite(config)


def rewrite(config: pytest.Config) -> None:
    """Assertions that say what they compared are written once, not in every process that tests, while those import."""
    for file in Path(__file__).parent.glob("**/test_*.py"):
        compiled = get_cache_dir(file) / f"{file.stem}{PYC_TAIL}"
        if try_makedirs(compiled.parent) and _read_pyc(file, compiled) is None:
            known_by, code = _rewrite_test(file, config)
            _write_pyc(config.stash[assertstate_key], code, known_by, compiled)


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
    gc.set_threshold(5_000)
    gc.enable()


@pytest.fixture
def numbered() -> CountData:
    """23 training, 7 validation and 9 test images [1, 2, 3].

    Training and test image k is filled with k, validation image k with k + 20; the left column of training images is
    30.
    """
    import torch

    from blackout.data import CountData

    train = torch.arange(23).view(-1, 1, 1, 1).expand(23, 1, 2, 3).clone()
    test = torch.arange(9).view(-1, 1, 1, 1).expand(9, 1, 2, 3).clone()
    train[..., 0] = 30
    val = torch.arange(20, 27).view(-1, 1, 1, 1).expand(7, 1, 2, 3).clone()
    labels = [torch.arange(size) % 3 for size in (23, 7, 9)]
    return CountData("numbered", train, test, 30, labels[0], labels[2], val=val, val_labels=labels[1])

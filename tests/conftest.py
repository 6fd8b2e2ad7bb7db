"""One thread per process: these tensors are tiny, and threads of two processes on few cores stall each other."""

import contextlib
import os

os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

from blackout.data import CountData
from tests import compositions, warm

compositions.remember()
torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    """The marks, and one server of warm processes for all that run tests."""
    deep = "takes long, or looks at what rarely breaks: `make test-deep` runs it, `make test` does not"
    config.addinivalue_line("markers", f"deep: {deep}")
    config.addinivalue_line("markers", "drawn: the figures of the programs are drawn, which elsewhere are blank")
    if warm.WHERE not in os.environ:
        stack = contextlib.ExitStack()
        stack.enter_context(warm.serving())
        config.add_cleanup(stack.close)


@pytest.fixture
def numbered() -> CountData:
    """23 training and 9 held-out images [1, 2, 3]; image k is filled with k, except that its left column is 30."""
    train = torch.arange(23).view(-1, 1, 1, 1).expand(23, 1, 2, 3).clone()
    test = torch.arange(9).view(-1, 1, 1, 1).expand(9, 1, 2, 3).clone()
    train[..., 0] = 30
    return CountData("numbered", train, test, 30, torch.arange(23) % 3, torch.arange(9) % 3)

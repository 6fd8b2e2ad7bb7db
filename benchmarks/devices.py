"""A fake accelerator: fake tensors have shape, dtype and device, but refuse to return values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

CUDA = torch.device("cuda:0")
META = torch.device("meta")
COPIES = ("_to_copy", "copy_")


class FakeWithGradients(FakeTensorMode):
    """Fake tensors with gradients.

    PyTorch takes the fake GPU for a meta device, since its gradient engine has no queue for a
    missing GPU. Its autocast, which also depends on the device, then does nothing.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and args[0].device == CUDA:
            return META
        if kwargs and kwargs.get("device") == META:
            kwargs = {**kwargs, "device": CUDA}
        return super().__torch_dispatch__(func, types, args, kwargs or {})


@contextmanager
def fake_cuda(bfloat16: bool = False, gradients: bool = False) -> Iterator[None]:
    """Create tensors on a fake GPU, optionally in its autocast or with backward passes."""
    mode = FakeWithGradients if gradients else FakeTensorMode
    enabled = torch.is_autocast_enabled("cuda")
    dtype = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", bfloat16)  # torch.autocast looks for a GPU
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        with mode(allow_non_fake_inputs=True), CUDA:
            yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", enabled)
        torch.set_autocast_dtype("cuda", dtype)

"""An accelerator for tests without one: fake tensors know shape, dtype and device, and refuse to tell their values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA, META = torch.device("cuda:0"), torch.device("meta")
COPIES = ("_to_copy", "copy_")


class FakeWithGradients(FakeTensorMode):
    """PyTorch's own code takes the fake GPU for a meta device: its engine of gradients has no queue for a missing GPU.

    Its autocast, which looks at the device too, does nothing then.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and args[0].device == CUDA:
            return META
        if kwargs and kwargs.get("device") == META:
            kwargs = {**kwargs, "device": CUDA}
        return super().__torch_dispatch__(func, types, args, kwargs or {})


@contextmanager
def fake_cuda(bfloat16: bool = False, gradients: bool = False) -> Iterator[None]:
    """Tensors are made on a fake GPU unless they name a device, in its autocast or with backward passes if wanted."""
    mode = FakeWithGradients if gradients else FakeTensorMode
    enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", bfloat16)  # torch.autocast looks for a GPU
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        with mode(allow_non_fake_inputs=True), CUDA:
            yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", enabled)
        torch.set_autocast_dtype("cuda", dtype)


class Watch(TorchDispatchMode):
    """Notes what kernels are called with and return; `refuses` copies between host and device that are waited for.

    Anything else that would wait (a value, a selection by a mask) fails on fake tensors by itself.
    """

    def __init__(self, refuses: bool = True) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...], Any]] = []
        self.refuses = refuses

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.calls.append((name, args, out))
        if self.refuses and name in COPIES and not (kwargs or {}).get("non_blocking"):
            devices = {x.device.type for x in tree_leaves((args, out)) if isinstance(x, Tensor)}
            assert len(devices) == 1, f"{name} between {devices}"
        return out

    @property
    def kernels(self) -> Counter[str]:
        return Counter(name for name, _, _ in self.calls)

    def dtypes(self, name: str) -> Counter[torch.dtype]:
        """What kernels of that name returned first."""
        return Counter(tree_leaves(out)[0].dtype for called, _, out in self.calls if called == name)

"""A recorder of the operations of a step on the fake accelerator of `benchmarks.devices`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.devices import COPIES


class Watch(TorchDispatchMode):
    """Records the arguments and results of kernels.

    With `refuses`, blocking copies between host and device fail. Other operations that would wait,
    such as reading a value or selecting by a mask, fail on fake tensors by themselves.
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
        """Number of calls of every kernel."""
        return Counter(name for name, _, _ in self.calls)

    def dtypes(self, name: str) -> Counter[torch.dtype]:
        """Return the dtypes of the first results of a kernel."""
        return Counter(tree_leaves(out)[0].dtype for kernel, _, out in self.calls if kernel == name)

"""The protocol of extractors, and the one that wraps any module."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from blackout.errors import UserError

Device = torch.device | str


class Features(NamedTuple):
    """Features [B, F] and, where the network classifies, logits [B, K]; both float32."""

    features: Tensor
    logits: Tensor | None


class Extractor(Protocol):
    """A fixed network from 8-bit RGB images to features.

    Attributes:
        name: short name, part of every score's, as in `fd_digits`.
        canonical: True for the network by which FID and KID are defined; only its scores have these names.
        num_features: F.
        num_classes: K, or None when the network gives no logits.
        identity: SHA-256 of the network with its weights; features with different identities never mix.
        resize: how images are resized to the network's input, in words.
    """

    @property
    def name(self) -> str: ...
    @property
    def canonical(self) -> bool: ...
    @property
    def num_features(self) -> int: ...
    @property
    def num_classes(self) -> int | None: ...
    @property
    def identity(self) -> str: ...
    @property
    def resize(self) -> str: ...

    def __call__(self, images: Tensor) -> Features:
        """Features of uint8 images [B, 3, H, W], on the extractor's device, without gradients."""

    def to(self, device: Device) -> Self:
        """Move to a device; returns itself."""


class ModuleExtractor:
    """Any `nn.Module` that takes uint8 images [B, 3, H, W] and returns features, or (features, logits).

    The module scales and resizes its input itself. It is put in eval mode, frozen, and run in full float32 whatever
    mixed precision or TF32 setting the training uses, so that scores do not depend on these.

    Args:
        module: the network.
        name: short name for the scores (letters, digits and _).
        num_features: F, the width of its features.
        num_classes: K, the width of its logits; None when it returns features alone.
        resize: how the module resizes, in words.

    Raises:
        UserError: a name with other characters, or `inception`.
    """

    canonical = False

    def __init__(
        self,
        module: nn.Module,
        name: str,
        num_features: int,
        num_classes: int | None = None,
        resize: str = "by the module",
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_]+", name) or (name == "inception" and not self.canonical):
            raise UserError(
                f"metrics.extractor.name={name!r}: use letters, digits and _, but not 'inception', FID's own"
            )
        self.module = module.eval()
        for parameter in module.parameters():  # a scripted module has no requires_grad_ of its own
            parameter.requires_grad_(False)
        self.name, self.num_features, self.num_classes, self.resize = name, num_features, num_classes, resize
        self.device = torch.device("cpu")
        self._identity: str | None = None

    @property
    def identity(self) -> str:
        """SHA-256 (hex) of the module's class and state."""
        if self._identity is None:
            self._identity = state_hash(self.module)
        return self._identity

    def to(self, device: Device) -> Self:
        """Move the module to a device; returns itself."""
        self.device = torch.device(device)
        self.module.to(self.device)
        return self

    def __call__(self, images: Tensor) -> Features:
        """Features of uint8 images [B, 3, H, W].

        Raises:
            UserError: the module returns something else than was declared.
        """
        with torch.no_grad(), full_float32(self.device):
            output = self.module(images.to(self.device))
        features, logits = output if isinstance(output, tuple | list) else (output, None)
        self._check("features", features, len(images), self.num_features)
        if self.num_classes is None:
            return Features(features.float(), None)
        self._check("logits", logits, len(images), self.num_classes)
        return Features(features.float(), logits.float())

    def _check(self, what: str, value: object, batch: int, width: int) -> None:
        if not isinstance(value, Tensor) or value.shape != (batch, width):
            got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"extractor {self.name}: the {what} should be [{batch}, {width}], but are {got}")


def state_hash(module: nn.Module) -> str:
    """SHA-256 (hex) of a module's class name and of the names, dtypes, shapes and bytes of its state."""
    digest = hashlib.sha256(f"{type(module).__module__}.{type(module).__qualname__}\n".encode())
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def full_float32(device: Device) -> Iterator[None]:
    """No autocast and no TF32 inside: both would change features by about 0.1 %."""
    cudnn: Any = torch.backends.cudnn  # its parts conv and rnn are made at run time
    settings = (cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul)
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = "ieee"
        with torch.autocast(torch.device(device).type, enabled=False):
            yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value

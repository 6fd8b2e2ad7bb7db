"""TorchScript files as extractors."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

import torch

from blackout.errors import UserError
from blackout.evaluation.extractors.base import ModuleExtractor


class ScriptExtractor(ModuleExtractor):
    """A TorchScript file that maps uint8 images [B, 3, H, W] to features, or to (features, logits).

    Such a file is a program: scoring with it runs it. Use files you trust.

    Args:
        path: file written by `torch.jit.save`.
        num_features: F, the width of its features.
        num_classes: K, the width of its logits; None when it returns features alone.
        name: short name for the scores; by default the file's.

    Raises:
        UserError: there is no such file, or it is not TorchScript.
    """

    def __init__(
        self, path: str | Path, num_features: int, num_classes: int | None = None, name: str | None = None
    ) -> None:
        path = Path(path)
        if not path.is_file():
            raise UserError(f"metrics.extractor.path={path}: there is no such file")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                module = torch.jit.load(str(path), map_location="cpu")
        except (RuntimeError, ValueError) as error:
            raise UserError(f"metrics.extractor.path={path} is not a TorchScript file") from error
        super().__init__(module, name or path.stem.replace("-", "_"), num_features, num_classes, "by the script")
        with path.open("rb") as file:
            self._identity = hashlib.file_digest(file, "sha256").hexdigest()

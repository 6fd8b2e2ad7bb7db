"""A callback that remembers, in the checkpoint, which samples every step of a run has seen."""

from __future__ import annotations

import hashlib
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback


class OrderHash(Callback):
    """A chain of hashes over the indices of all batches trained on; a batch left out or served twice changes it."""

    def __init__(self) -> None:
        self._chain = ""

    def state_dict(self) -> dict[str, Any]:
        return {"chain": self._chain}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._chain = state_dict["chain"]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        link = f"{self._chain} {batch['batch']} {batch['index'].tolist()}"
        self._chain = hashlib.sha256(link.encode()).hexdigest()

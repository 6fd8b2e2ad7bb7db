"""Data, weights and measurements for the cases of the safety net."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn

SPLIT_SIZES = {"train": 48, "val": 16, "test": 16}
NUM_LABELS = 3
WEIGHT_SEED = 5
NUM_STATES = 13  # of processes with a matrix: counts 0, ..., 12


# --- data and weights


def formula(number: int, shape: Sequence[int], max_count: int) -> Tensor:
    """Return irregular counts [number, *shape] from a formula, the same on every machine."""
    i = torch.arange(number)[:, None]
    j = torch.arange(math.prod(shape))
    values = (i * i + 3 * i * j + 5 * j * j) % (2 * max_count + 3)
    return (values // 2).clamp(max=max_count).view(number, *shape)


def counts(
    shape: Sequence[int] = (6,), max_count: int | None = None, labels: bool | None = None, **_: Any
) -> Any:
    """Build a dataset of counts up to 12, or up to `max_count`.

    Its training samples are the same whether or not a dataset has validation samples.
    """
    from blackout.data import CountData

    max_count = 12 if max_count is None else max_count
    sizes = list(SPLIT_SIZES.values())
    parts: dict[str, Tensor] = {}
    for name, x in zip(
        SPLIT_SIZES, formula(sum(sizes), shape, max_count).split(sizes), strict=True
    ):
        parts[name] = x
        if labels:
            parts[f"{name}_labels"] = torch.arange(len(x)) % NUM_LABELS
    parameters = inspect.signature(CountData).parameters
    arguments = {name: part for name, part in parts.items() if name in parameters}
    return CountData("formula", max_count=max_count, **arguments)


class FixedWeights(Callback):
    """Replaces all weights by fixed ones, before the first step and before the export.

    Args:
        file: for JSON with the loss of the first step.
    """

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace the initial weights."""
        fix_weights(pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any
    ) -> None:
        """Write the loss of the step."""
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        self._file.write_text(json.dumps({"loss": float(loss).hex()}))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace the trained weights."""
        fix_weights(pl_module)


@torch.no_grad()
def fix_weights(module: nn.Module) -> None:
    """Draw all weights from a fixed seed, in the order of the parameters; none are zero."""
    generator = torch.Generator().manual_seed(WEIGHT_SEED)
    for name, parameter in module.named_parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.ndim > 1:
            values /= math.sqrt(parameter[0].numel())
        else:
            values *= 0.1
            if name.endswith("weight"):  # the scale of a norm
                values += 1
        parameter.copy_(values)


# --- files


def write_files(folder: Path) -> dict[str, str]:
    """Write the files that choices need; return their paths by the name in braces in a case."""
    spins = np.cos(np.arange(36.0)).reshape(6, 6)
    order = torch.stack(
        [(torch.arange(5) * step + shift) % 5 for shift in range(5) for step in (1, 2, 3, 4)]
    )
    points = formula(8 * 6, (2,), 97).view(8, 6, 2).double() / 97
    arrays: dict[str, Any] = {
        "generator.npy": _generator(),
        "chain.npy": np.eye(NUM_STATES) + 0.1 * _generator(),
        "couplings.npz": {"J": 0.2 * (spins + spins.T), "h": 0.1 * np.sin(np.arange(6.0))},
        "energy.npz": {
            "weight_0": spins,
            "bias_0": np.zeros(6),
            "weight_1": np.cos(np.arange(6.0))[None],
            "bias_1": np.zeros(1),
        },
        "plane.npz": {
            "weight_0": np.cos(np.arange(128.0)).reshape(4, 32),
            "bias_0": np.zeros(4),
            "weight_1": np.ones((1, 4)),
            "bias_1": np.zeros(1),
        },
        "items.npz": {"items": formula(40, (5, 3), 60).numpy() / 7.0},
        "lists.npz": {"items": formula(6, (5, 3), 60).numpy() / 7.0},
        "pieces.npz": {"items": formula(6, (4, 1, 4, 4), 16).numpy()},
        "points.npz": {"items": points.numpy()},
        "orders.npy": order.numpy(),
        "mask.npy": (np.arange(16) % 3 > 0).reshape(1, 4, 4),
        "matrix.npy": formula(5, (16,), 2).numpy(),
        "known.npz": {"x0": np.arange(6), "mask": np.arange(6) % 2 == 0},
    }
    paths = {}
    for name, content in arrays.items():
        file = folder / name
        if isinstance(content, dict):
            np.savez(file, **content)
        else:
            np.save(file, content)
        paths[file.stem] = str(file)
    instances = folder / "qubo"
    instances.mkdir()
    for number in range(1, 5):
        _write_qubo(instances / f"{number}.coo", number)
    paths["qubo"] = str(instances)
    return paths


def _write_qubo(file: Path, number: int) -> None:
    """Write an instance of quadratic unconstrained binary optimisation with five variables."""
    lines = ["# vartype=BINARY"]
    for i in range(5):
        for j in range(i, 5):
            lines.append(f"{i} {j} {math.cos(number * (i + 2 * j)):.3f}")
    file.write_text("\n".join(lines) + "\n")


def _generator() -> Any:
    """Return a generator matrix with jumps on a circle, and rare jumps to all states."""
    identity = np.eye(NUM_STATES)
    neighbours = np.roll(identity, 1, axis=1) + np.roll(identity, -1, axis=1)
    rates = neighbours + 1 / NUM_STATES
    return rates - np.diag(rates.sum(1))


# --- measurements


def brightness(x: Tensor) -> Tensor:
    """Return a reward: the mean count of every sample, [n, ...] to [n]."""
    return x.flatten(1).mean(1)


def halves(x: Tensor) -> Tensor:
    """Return a measurement: the sums of the two halves of a sample, [n, ...] to [n, 2]."""
    return x.flatten(1).unflatten(1, (2, -1)).sum(2)


class Digit(nn.Module):
    """A classifier with three labels and fixed weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, 3] of counts [n, ...]."""
        flat = x.flatten(1).double()
        return torch.stack([flat.mean(1), flat[:, ::2].mean(1), flat[:, 1::2].mean(1)], 1)

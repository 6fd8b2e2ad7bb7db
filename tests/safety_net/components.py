"""Parts that cases name on the command line: data from a formula, weights, measurements."""

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

SIZES = {"train": 48, "val": 16, "test": 16}  # samples of every split
SEED = 5  # of the weights


def formula(number: int, shape: Sequence[int], max_count: int) -> Tensor:
    """Counts [number, *shape] that look irregular and are the same on every machine."""
    i = torch.arange(number)[:, None]
    j = torch.arange(math.prod(shape))
    values = (i * i + 3 * i * j + 5 * j * j) % (2 * max_count + 3)
    return (values // 2).clamp(max=max_count).view(number, *shape)


def counts(shape: Sequence[int] = (6,), max_count: int = 12, labels: bool = False, **_: Any) -> Any:
    """A dataset of counts whose training samples do not depend on how many splits there are."""
    from blackout.data import CountData

    whole = formula(sum(SIZES.values()), shape, max_count)
    parts = dict(zip(SIZES, whole.split(list(SIZES.values())), strict=True))
    parts |= (
        {f"{name}_labels": torch.arange(len(part)) % 3 for name, part in list(parts.items())}
        if labels
        else {}
    )
    known = inspect.signature(CountData).parameters
    return CountData(
        "formula",
        max_count=max_count,
        **{name: part for name, part in parts.items() if name in known},
    )


class FixedWeights(Callback):
    """Replaces all weights by ones from a fixed seed, before the first step and for the export.

    Args:
        file: where the loss of the first step is written.
    """

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first step."""
        fix_weights(pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any
    ) -> None:
        """After the only step."""
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        self._file.write_text(json.dumps({"loss": float(loss).hex()}))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the model is exported."""
        fix_weights(pl_module)


@torch.no_grad()
def fix_weights(module: nn.Module) -> None:
    """Weights of order 1 / sqrt(inputs), in the order of the parameters; none are zero."""
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in module.named_parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.ndim > 1:
            values /= math.sqrt(parameter[0].numel())
        else:
            values = 0.1 * values + float(
                name.endswith("weight")
            )  # scales of norms are about 1, biases about 0
        parameter.copy_(values)


def write_files(folder: Path) -> dict[str, str]:
    """Files that choices need, by the name in braces in a case."""
    spins = np.cos(np.arange(36.0)).reshape(6, 6)
    order = torch.stack(
        [(torch.arange(5) * step + shift) % 5 for shift in range(5) for step in (1, 2, 3, 4)]
    )
    points = formula(8 * 6, (2,), 97).view(8, 6, 2).double() / 97
    arrays: dict[str, Any] = {
        "generator.npy": _generator(13),
        "chain.npy": np.eye(13) + 0.1 * _generator(13),
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
    for name, content in arrays.items():
        if isinstance(content, dict):
            np.savez(folder / name, **content)
        else:
            np.save(folder / name, content)
    models = folder / "qubo"
    models.mkdir()
    for number in range(1, 5):
        entries = (
            f"{i} {j} {math.cos(number * (i + 2 * j)):.3f}" for i in range(5) for j in range(i, 5)
        )
        (models / f"{number}.coo").write_text("\n".join(["# vartype=BINARY", *entries]) + "\n")
    return {**{Path(name).stem: str(folder / name) for name in arrays}, "qubo": str(models)}


def _generator(states: int) -> Any:
    """A generator matrix: to any state at rate 1, and to the two neighbours on a circle."""
    jumps = (
        np.roll(np.eye(states), 1, 1)
        + np.roll(np.eye(states), -1, 1)
        + np.full((states, states), 1 / states)
    )
    return jumps - np.diag(jumps.sum(1))


def brightness(x: Tensor) -> Tensor:
    """A reward: the mean count of every sample, [n, ...] to [n]."""
    return x.flatten(1).mean(1)


def halves(x: Tensor) -> Tensor:
    """A measurement: sums of the two halves of a sample, [n, ...] to [n, 2]."""
    return x.flatten(1).unflatten(1, (2, -1)).sum(2)


class Digit(nn.Module):
    """A classifier with three labels and fixed weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits [n, 3] of counts [n, ...]."""
        flat = x.flatten(1).double()
        return torch.stack([flat.mean(1), flat[:, ::2].mean(1), flat[:, 1::2].mean(1)], 1)

"""Test data change only the final scores.

Weights, checkpoint, sharpness and curves depend on training and validation data alone.
"""

import csv
import json
import re

import numpy as np
import pytest
import torch

from blackout import load_model
from tests.cli.conftest import run  # noqa: F401  (a fixture)

SMALL = (
    "network.width=16",
    "network.depth=1",
    "network.heads=2",
    "batch_size=128",
    "trainer.max_steps=16",
    "trainer.val_check_interval=4",
    "trainer.limit_val_batches=1.0",
    "trainer.log_every_n_steps=1",
    "trainer.precision=32-true",
    "optimizer.lr=0.05",
    "callbacks.progress=null",
    "callbacks.samples=null",
    "callbacks.checkpoints.restore_best=true",
    "run_id=a",
)


def write_splits(path, test):
    """Write a file with fixed training and validation orders and these test orders."""
    path.parent.mkdir()
    generator = torch.Generator().manual_seed(0)
    orders = torch.rand(52, 4, generator=generator).argsort(1)
    np.savez(path, train=orders[:40].numpy(), val=orders[40:].numpy(), test=test.numpy())


@pytest.mark.deep
@pytest.mark.parametrize("family, dataset", [("codes", "permutations"), ("shuffle", "items")])
def test_test_data_change_only_the_final_scores(run, tmp_path, family, dataset):  # noqa: F811
    test_orders = {
        "plain": torch.rand(30, 4, generator=torch.Generator().manual_seed(1)).argsort(1),
        "other": torch.arange(4).expand(25, 4),
    }
    values = []
    curves = []
    models = []
    for name, test in test_orders.items():
        path = tmp_path / name / "orders.npz"
        write_splits(path, test)
        options = (f"family={family}", f"dataset={dataset}", f"dataset.path={path}", *SMALL)
        outcome = run("train", *options, f"runs_dir={tmp_path / name}")
        assert outcome.code == 0, outcome.err
        folder = tmp_path / name / "orders" / "a"
        values.append(json.loads((folder / "metrics.json").read_text())["values"])
        models.append(folder / "model")
        with (folder / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        curves.append(
            [
                {key: x for key, x in row.items() if not re.search("second|test", key)}
                for row in rows
            ]
        )
    assert values[0]["test/nll_bits"] != values[1]["test/nll_bits"]
    assert values[0]["val/nll_bits"] == values[1]["val/nll_bits"] and curves[0] == curves[1]
    weights = [(model / "model.safetensors").read_bytes() for model in models]
    assert weights[0] == weights[1]
    assert load_model(models[0]).sharpness == load_model(models[1]).sharpness

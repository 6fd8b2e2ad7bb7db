"""Networks of one process at equal CPU time: `python -m benchmarks.networks --data_dir DATA`.

Every network learns binarised MNIST (32x32, counts 0 and 1) from the same seed for the same CPU
time. It is evaluated by its bound on the bits per dimension of test images. The baseline is
independent pixels with their training frequencies.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch

from benchmarks.measure import arguments, report
from blackout import from_data
from blackout.data import CountData, binarized_mnist
from blackout.diffusion import (
    Absorbing,
    LevelBridge,
    LevelHead,
    RateLoss,
    Sampler,
    Schedule,
    Uniform,
)

BODIES: dict[str, Any] = {
    "U-Net": {
        "_target_": "blackout.networks.UNet",
        "multipliers": [1, 2, 2],
        "attention_resolutions": [8],
    },
    "transformer": {"_target_": "blackout.networks.Transformer"},
}
PROCESSES: dict[str, Any] = {"uniform": Uniform, "absorbing": Absorbing}


class Until(pl.Callback):
    """Stops training after some seconds of CPU time."""

    def __init__(self, seconds: float) -> None:
        self.ends = time.process_time() + seconds

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        trainer.should_stop = time.process_time() > self.ends


def independent_pixels(data: CountData) -> float:
    """Return the bits per dimension of test images under the training frequencies of pixels."""
    assert isinstance(data.train, torch.Tensor) and isinstance(data.test, torch.Tensor)
    share = (data.train.double().sum(0) + 0.5) / (len(data.train) + 1)
    ones = data.test.double()
    nats = -(ones * share.log() + (1 - ones) * (1 - share).log())
    return float(nats.mean()) / math.log(2)


def learned(body: Any, process: Any, data: CountData, seconds: float, seed: int) -> dict[str, Any]:
    """Train a body of one kind and return its row."""
    inputs = {"_target_": "blackout.networks.LevelInputs"}
    body = {**body, "outputs": None}  # the head says how many
    network = {"_target_": "blackout.networks.CountNetwork", "body": body, "inputs": inputs}
    model = from_data(
        data,
        network,
        process=process,
        head=LevelHead,
        loss=RateLoss,
        schedule=Schedule,
        sampler=Sampler(LevelBridge()),
        seed=seed,
        batch_size=32,
        ema_decay=0.99,
        lr=1e-3,
    )
    output_options = (
        "logger",
        "enable_checkpointing",
        "enable_progress_bar",
        "enable_model_summary",
    )
    quiet: Any = dict.fromkeys(output_options, False)
    trainer = pl.Trainer(
        max_epochs=-1, accelerator="cpu", callbacks=[Until(seconds)], limit_val_batches=0, **quiet
    )
    trainer.fit(model)
    [scores] = pl.Trainer(accelerator="cpu", **quiet).test(model, verbose=False)
    parameters = sum(
        parameter.numel() for parameter in model.parameters() if parameter.requires_grad
    )
    return {
        "steps": trainer.global_step,
        "parameters": parameters,
        "bits/dim": scores["test/bits_per_dim"],
    }


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--data_dir", default="data")
    parser.add_argument("--processes", nargs="+", choices=PROCESSES, default=list(PROCESSES))
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="of processor time for each network"
    )
    parser.add_argument("--held_out", type=int, default=1000, help="images of the test set")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(device="cpu", threads=1)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    data = binarized_mnist(options.data_dir, validation=0)
    held_out = data.test[: 10 if options.quick else options.held_out]
    data = replace(data, test=held_out, train_labels=None, test_labels=None)
    seconds = 0.1 if options.quick else options.seconds
    alone = {
        "process": "none",
        "network": "independent pixels",
        "steps": 0,
        "parameters": data.train[0].numel(),
    }
    rows: list[dict[str, Any]] = [alone | {"bits/dim": independent_pixels(data)}]
    for name in options.processes:
        for kind, body in BODIES.items():
            results = learned(body, PROCESSES[name], data, seconds, options.seed)
            rows.append({"process": name, "network": kind, **results})
            print(rows[-1], flush=True)
    report(f"{seconds:g} CPU s each", rows, options)


if __name__ == "__main__":
    main()

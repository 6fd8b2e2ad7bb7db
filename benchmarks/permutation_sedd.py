"""One memorised permutation, by shuffles and by SEDD.

    python -m benchmarks.permutation_sedd --length 20 --seeds 3

Table 5 of [Zhang 2025]. SEDD reads the permutation as a sequence of tokens, with uniform noise and
score entropy [Lou 2024], in a transformer. Shuffles move the tokens and can only return
permutations. Both are trained for equal CPU time by the package's recipes, with the paper's number
of samples.

`--scale paper` trains SEDD alone, in the published size: 7 layers, 8 heads, width 512 (25 million
parameters), 30,000 steps in batches of 512, or of 128 from 200 tokens on. The shuffles are then
experiment=symmetric/table5_n100.
"""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from benchmarks.measure import arguments, report
from benchmarks.networks import Until
from blackout import from_data
from blackout.data import CountData
from blackout.diffusion import LevelBridge, LevelHead, RateLoss, Sampler, Schedule, Uniform
from blackout.permutations.datasets import one_permutation
from blackout.permutations.metrics import rearrange

# Of the one permutation, of which epochs are made.
_COPIES = 4096
LONG = 200  # tokens from which the published batches are smaller
PAPER_STEPS = 30_000  # appendix G.1
PAPER_BODY = {"width": 512, "depth": 7, "heads": 8, "dropout": 0.1, "conditioning": 128}
PAPER_TRAINING = {"ema_decay": 0.9999, "lr": 3e-4}  # of SEDD, as the paper does not give them


def sedd(order: Tensor, body: dict[str, Any], **training: Any) -> Any:
    """Sequences of tokens under uniform noise, as `experiment=sgdd/prior_mnist`.

    Args:
        order: tokens, int64 [n].
        body: sizes of the transformer.
        training: of `from_data`.
    """
    data = CountData("one", order.repeat(_COPIES, 1), order.repeat(16, 1), len(order) - 1)
    inputs, transformer = (
        {"_target_": f"blackout.networks.{name}"} for name in ("LevelInputs", "Transformer")
    )
    described = transformer | {"outputs": None} | body
    network = {"_target_": "blackout.networks.CountNetwork", "inputs": inputs, "body": described}
    return from_data(
        data, network, process=Uniform, head=LevelHead, loss=RateLoss, schedule=Schedule,
        sampler=Sampler(LevelBridge(), num_steps=64), **training,
    )  # fmt: skip


def score_samples(samples: Tensor, order: Tensor) -> dict[str, float]:
    """Return the fractions of correct samples, of correct tokens, and of permutations."""
    is_correct = samples == order
    valid = samples.sort(1).values == order.sort().values
    shares = {
        "accuracy %": is_correct.all(1),
        "correct %": is_correct,
        "permutations %": valid.all(1),
    }
    return {name: 100 * float(share.double().mean()) for name, share in shares.items()}


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--length", type=int, default=20, help="tokens; the paper: 100 and 200")
    parser.add_argument("--scale", choices=("cpu", "paper"), default="cpu")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of processor time for each training"
    )
    parser.add_argument("--samples", type=int, default=2560)
    parser.add_argument("--seeds", type=int, default=1)
    parser.set_defaults(threads=1)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    seconds, number = (0.1, 8) if options.quick else (options.seconds, options.samples)
    is_paper = options.scale == "paper" and not options.quick
    models = ("SEDD",) if options.scale == "paper" else ("shuffles", "SEDD")
    body, training = (
        (PAPER_BODY, PAPER_TRAINING)
        if is_paper
        else ({}, {"batch_size": 64, "ema_decay": 0.99, "lr": 1e-3})
    )
    if is_paper:
        training = training | {"batch_size": 512 if options.length < LONG else 128}
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        puzzles = one_permutation(options.length, number, seed)
        order = puzzles.batch("test", torch.arange(1))["items"][0].long()
        for name in models:
            if name == "shuffles":
                model = from_data(puzzles, family="shuffle", seed=seed)
            else:
                model = sedd(order, body, **training)
            output_options = (
                "logger",
                "enable_checkpointing",
                "enable_progress_bar",
                "enable_model_summary",
            )
            quiet: Any = dict.fromkeys(output_options, False)
            accelerator = "gpu" if options.device.startswith("cuda") else "cpu"
            length: dict[str, Any] = (
                {"max_steps": PAPER_STEPS} if is_paper else {"callbacks": [Until(seconds)]}
            )
            trainer = pl.Trainer(max_epochs=-1, accelerator=accelerator, **length, **quiet)
            trainer.fit(model)
            batches = [batch for _, batch in model.batches(torch.arange(number), seed)]
            lists = [
                rearrange(batch["items"], batch["samples"])
                if "items" in batch
                else batch["samples"]
                for batch in batches
            ]
            samples = torch.cat(lists).long().cpu().view(number, -1)
            weights = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
            rows.append(
                {
                    "seed": seed,
                    "model": name,
                    "steps": trainer.global_step,
                    "weights": weights,
                    **score_samples(samples, order),
                }
            )
            print(rows[-1], flush=True)
    trained = f"{PAPER_STEPS:,} steps" if is_paper else f"{seconds:g} CPU s each"
    report(f"one permutation of {options.length}, {trained}", rows, options)


if __name__ == "__main__":
    main()

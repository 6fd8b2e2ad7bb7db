"""One memorised permutation, by shuffles and by SEDD.

    python -m benchmarks.permutation_sedd --length 20 --seeds 3

Table 5 of [Zhang 2025]. SEDD reads the permutation as a sequence of tokens, with uniform noise and
score entropy [Lou 2024], in a transformer. Shuffles move the tokens and can only return
permutations. Both are trained for equal CPU time by the package's recipes, with the paper's number
of samples.
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


def sedd(order: Tensor) -> Any:
    """Return the settings of sequences of tokens, a small `experiment=sgdd/prior_mnist`."""
    data = CountData("one", order.repeat(_COPIES, 1), order.repeat(16, 1), len(order) - 1)
    inputs, body = (
        {"_target_": f"blackout.networks.{name}"} for name in ("LevelInputs", "Transformer")
    )
    network = {
        "_target_": "blackout.networks.CountNetwork",
        "inputs": inputs,
        "body": body | {"outputs": None},
    }
    return from_data(
        data,
        network,
        process=Uniform,
        head=LevelHead,
        loss=RateLoss,
        schedule=Schedule,
        sampler=Sampler(LevelBridge(), num_steps=64),
        batch_size=64,
        ema_decay=0.99,
        lr=1e-3,
    )


def judged(found: Tensor, order: Tensor) -> dict[str, float]:
    """Return the fractions of correct samples, of correct tokens, and of permutations."""
    right = found == order
    valid = found.sort(1).values == order.sort().values
    shares = {"accuracy %": right.all(1), "correct %": right, "permutations %": valid.all(1)}
    return {name: 100 * float(share.double().mean()) for name, share in shares.items()}


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--length", type=int, default=20, help="tokens; the paper: 100 and 200")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of processor time for each training"
    )
    parser.add_argument("--samples", type=int, default=2560)
    parser.add_argument("--seeds", type=int, default=1)
    parser.set_defaults(device="cpu", threads=1)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    seconds, number = (0.1, 8) if options.quick else (options.seconds, options.samples)
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        puzzles = one_permutation(options.length, number, seed)
        order = puzzles.batch("test", torch.arange(1))["items"][0].long()
        for name in ("shuffles", "SEDD"):
            model = (
                from_data(puzzles, family="shuffle", seed=seed)
                if name == "shuffles"
                else sedd(order)
            )
            shown = (
                "logger",
                "enable_checkpointing",
                "enable_progress_bar",
                "enable_model_summary",
            )
            quiet: Any = dict.fromkeys(shown, False)
            trainer = pl.Trainer(
                max_epochs=-1, accelerator="cpu", callbacks=[Until(seconds)], **quiet
            )
            trainer.fit(model)
            drawn = [one for _, one in model.batches(torch.arange(number), seed)]
            lists = [
                rearrange(one["items"], one["samples"]) if "items" in one else one["samples"]
                for one in drawn
            ]
            found = torch.cat(lists).long().cpu().view(number, -1)
            weights = sum(one.numel() for one in model.parameters() if one.requires_grad)
            rows.append(
                {
                    "seed": seed,
                    "model": name,
                    "steps": trainer.global_step,
                    "weights": weights,
                    **judged(found, order),
                }
            )
            print(rows[-1], flush=True)
    report(f"one permutation of {options.length}, {seconds:g} CPU s each", rows, options)


if __name__ == "__main__":
    main()

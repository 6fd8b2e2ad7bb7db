"""One jigsaw, encoder, transformer and budget, all with labels: `python -m benchmarks.permutations
fair`.

The methods are codes with masked and autoregressive training in 1, 2 and n passes; Plackett-Luce
and its generalisation as reverse steps of riffle shuffles, over the complete schedule and in one
step; n softmaxes with an optimal assignment; and Gumbel-Sinkhorn. No such comparison has been
published (see [Severo 2025, figure 5]).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Size, Tensor, nn

from benchmarks.measure import report
from blackout.config.descriptions import fill_statistics
from blackout.config.instantiate import instantiate
from blackout.permutations.coded import CodeModel, CodeTransformer
from blackout.permutations.coded.data import data_from_puzzles
from blackout.permutations.coded.decoding import Passes
from blackout.permutations.coded.draw import CodeDraw
from blackout.permutations.datasets import Puzzles, jigsaw_cifar10, jigsaw_digits, jigsaw_mnist
from blackout.permutations.distributions import GeneralizedPlackettLuce, Matching, PlackettLuce
from blackout.permutations.forward_process import ForwardProcess, denoising_schedule
from blackout.permutations.group import compose, is_permutation
from blackout.permutations.metrics import rearrange
from blackout.permutations.shuffles import Riffle

CODES = ("inline", "lehmer", "fisher_yates", "insertion")
# (items as given [B, n, ...], solution [B, n]) -> a scalar.
Loss = Callable[[Tensor, Tensor], Tensor]
# Items as given -> (solutions [B, n], which were permutations before any repair, bool [B]).
Solver = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Scale:
    """Sizes: puzzle, transformer, and seconds of CPU (or GPU) time per method."""

    puzzles: Callable[..., Puzzles]
    width: int
    depth: int
    batch: int
    seconds: float
    lr: float


SCALES = {
    "quick": Scale(partial(jigsaw_digits, pieces=2, num_test=50), 16, 1, 16, 0.3, 2e-3),
    "cpu": Scale(partial(jigsaw_mnist, pieces=3, download=False), 96, 3, 128, 60.0, 1e-3),
    "paper": Scale(partial(jigsaw_cifar10, pieces=3, download=False), 256, 7, 1024, 3600.0, 3e-4),
}


@dataclass
class Method:
    """A network with its loss, and its solvers with their network evaluations."""

    network: nn.Module
    loss: Loss
    solvers: dict[str, tuple[int, Solver]]


def methods(
    source: Puzzles | None, scale: Scale, device: torch.device
) -> Iterator[tuple[str, Callable[[], Method]]]:
    """Return every row of the table; methods are built in turn, and without puzzles only named."""
    source = cast(Puzzles, source)
    for objective in ("masked", "autoregressive"):
        for code in CODES:
            yield f"{code}, {objective}", partial(coded, source, scale, device, code, objective)
    for distribution in (GeneralizedPlackettLuce, PlackettLuce):
        for complete_schedule in (True, False):
            steps = "schedule" if complete_schedule else "one step"
            name = f"{distribution.__name__} shuffle, {steps}"
            yield name, partial(shuffled, source, scale, device, distribution, complete_schedule)
    yield "softmaxes + assignment", partial(matched, source, scale, device, 0)
    yield "Gumbel-Sinkhorn", partial(matched, source, scale, device, 10)


def transformer(
    source: Puzzles, scale: Scale, causal: bool = False, times: bool = False
) -> CodeTransformer:
    """Return the network that all methods share."""
    encoder = instantiate(
        fill_statistics(source.facts["encoder"], source.facts, "encoder"), "encoder"
    )
    n = source.facts["num_items"]
    conditions = 1 if times else None
    return CodeTransformer(n, conditions, encoder, causal, width=scale.width, depth=scale.depth)


def coded(source: Puzzles, scale: Scale, device: torch.device, code: Any, objective: Any) -> Method:
    """Return factorised codes; masked networks are decoded greedily in 1, 2 and n passes."""
    model = CodeModel(
        transformer(source, scale, objective == "autoregressive"), code, objective, Passes()
    ).to(device)
    n = model.length
    number = [0]

    def loss(items: Tensor, solution: Tensor) -> Tensor:
        number[0] += 1
        position = torch.arange(len(items), device=items.device)
        return model.training_step(
            {"x": solution, "items": items, "position": position, "batch_number": number[0]}
        )

    def solve(passes: int, items: Tensor) -> tuple[Tensor, Tensor]:
        causal = objective == "autoregressive"
        passes_sampler = Passes(passes, "left_to_right" if causal else "confidence", True)
        model.config = {"data": {"item_shape": list(items.shape[2:])}}
        draw = CodeDraw(model, passes_sampler, contexts={"items": items})
        ((_, samples),) = draw.batches(torch.arange(len(items)), 0, len(items))
        return samples["samples"], samples.get("valid", torch.ones(len(items), dtype=torch.bool))

    all_passes = (n,) if objective == "autoregressive" else tuple(dict.fromkeys((1, 2, n)))
    return Method(model.network, loss, {f"{k} passes": (k, partial(solve, k)) for k in all_passes})


def shuffled(
    source: Puzzles, scale: Scale, device: torch.device, distribution: Any, complete_schedule: bool
) -> Method:
    """Return reverse steps of riffle shuffles, from items in the order X_t to the previous time."""
    n = source.facts["num_items"]
    schedule = (
        denoising_schedule(n)
        if complete_schedule
        else [denoising_schedule(n)[0], denoising_schedule(n)[-1]]
    )
    network = transformer(source, scale, times=True).to(device)

    def predict_distribution(items: Tensor, step: Tensor) -> Any:
        masked = torch.full(items.shape[:2], n, device=items.device)
        scores = network(masked, {"items": items, "condition": step.float().unsqueeze(1)})
        return distribution(
            scores.transpose(1, 2) if distribution is GeneralizedPlackettLuce else scores[..., 0]
        )

    def loss(items: Tensor, solution: Tensor) -> Tensor:
        sorted_items = rearrange(items, solution)
        states, back = ForwardProcess(Riffle(), schedule).sample_walks(n, len(items), 1, None)
        step = torch.randint(len(schedule) - 1, (len(items),))
        rows = torch.arange(len(items))
        state, target = (pi[rows, 0, step].to(items.device) for pi in (states, back))
        return (
            -predict_distribution(rearrange(sorted_items, state), step.to(items.device))
            .log_prob(target)
            .mean()
        )

    def solve(items: Tensor) -> tuple[Tensor, Tensor]:
        order = torch.arange(n, device=items.device).expand(len(items), n)
        for step in reversed(range(len(schedule) - 1)):
            steps = torch.full((len(items),), step, device=items.device)
            order = compose(order, predict_distribution(rearrange(items, order), steps).mode)
        return order, torch.ones(len(items), dtype=torch.bool)

    return Method(network, loss, {f"{len(schedule) - 1} steps": (len(schedule) - 1, solve)})


def matched(source: Puzzles, scale: Scale, device: torch.device, sweeps: int) -> Method:
    """Return a score for every item and place, optionally normalised by Sinkhorn iterations.

    References: Mena et al. 2018.
    """
    n = source.facts["num_items"]
    network = transformer(source, scale).to(device)

    def predict_distribution(items: Tensor) -> Matching:
        scores = network(torch.full(items.shape[:2], n, device=items.device), {"items": items})
        return Matching(scores.transpose(1, 2), sweeps)

    def loss(items: Tensor, solution: Tensor) -> Tensor:
        distribution = predict_distribution(items)
        return (
            -(Matching(distribution.perturbed_scores(Size()), sweeps) if sweeps else distribution)
            .log_prob(solution)
            .mean()
        )

    def solve(items: Tensor) -> tuple[Tensor, Tensor]:
        distribution = predict_distribution(items)
        return distribution.mode, is_permutation(distribution.scores.argmax(-1)).cpu()

    return Method(network, loss, {"1 pass": (1, solve)})


def clock(device: torch.device) -> float:
    """Return CPU seconds, or wall-clock seconds on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def train(method: Method, data: Any, scale: Scale, device: torch.device) -> int:
    """Train for the budget, with the learning rate falling to zero, and return the number of
    steps."""
    optimizer = torch.optim.AdamW(method.network.parameters(), lr=scale.lr, weight_decay=0.01)
    start = clock(device)
    steps = 0
    while (spent := clock(device) - start) < scale.seconds:
        remaining = 1 - spent / scale.seconds
        optimizer.param_groups[0]["lr"] = scale.lr * min(1.0, (steps + 1) / 100, 2 * remaining)
        batch = data.batch("train", torch.arange(steps * scale.batch, (steps + 1) * scale.batch))
        loss = method.loss(batch["items"].to(device), batch["x"].to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(method.network.parameters(), 1.0)
        optimizer.step()
        steps += 1
    return steps


def fair(options: argparse.Namespace) -> None:
    """Train and evaluate every method, and print the table."""
    scale = SCALES["quick" if options.quick else options.scale]
    if options.show:
        for name, _ in methods(None, scale, torch.device(options.device)):
            print(f'python -m benchmarks.permutations fair --scale {options.scale} --only "{name}"')
        return
    places: dict[str, Any] = {} if options.quick else {"data_dir": options.data_dir}
    places |= {} if options.pieces is None else {"pieces": options.pieces}
    source = scale.puzzles(**places)
    device = torch.device(options.device)
    scale = (
        scale if options.seconds is None else Scale(**{**vars(scale), "seconds": options.seconds})
    )
    data = data_from_puzzles(source)
    rows = list[dict[str, Any]]()
    test = {
        name: values.to(device)
        for name, values in data.batch("test", torch.arange(source.num_test)).items()
    }
    for name, begin in methods(source, scale, device):
        if options.only and options.only not in name:
            continue
        torch.manual_seed(0)
        method = begin()
        method.network.train()
        steps = train(method, data, scale, device)
        method.network.eval()
        for method_name, (evaluations, solve) in method.solvers.items():
            start = clock(device)
            with torch.no_grad():
                solution, valid = solve(test["items"])
            seconds = clock(device) - start
            is_correct = (solution == test["x"]).float()
            rows.append(
                {
                    "method": f"{name}, {method_name}",
                    "solved %": 100 * float(is_correct.all(1).float().mean()),
                    "correct %": 100 * float(is_correct.mean()),
                    "invalid %": 100 * float((~valid).float().mean()),
                    "evaluations": evaluations,
                    "ms per puzzle": 1000 * seconds / len(is_correct),
                    "training steps": steps,
                }
            )
            print(rows[-1], flush=True)
    report(f"{source}; {scale.seconds:g} s of training each", rows, options)

"""The whole law of a model's lists at every scheduled time, by enumeration: for lists of up to five items."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from blackout.files import replacing
from blackout.permutations.distributions.matching import Matching
from blackout.permutations.group import all_permutations, compose, number
from blackout.permutations.metrics import arranged
from blackout.permutations.plots import lists
from blackout.permutations.shuffle.decoding import Sample
from blackout.permutations.shuffle.reverse import Denoiser, whole
from blackout.random import SampleStreams

MOST_ITEMS = 5
"""Up to here all orders are gone through."""


def laws(denoiser: Denoiser, times: Sequence[int], start: Tensor | None = None) -> Tensor:
    """The laws of the order at t_k, ..., t_1 and 0 that the reverse steps lead to, float64 [k + 1, b, m!].

    Args:
        denoiser: of b lists.
        times: t_1, ..., t_k.
        start: float64 [m!], the law at t_k in lexicographic order; None is uniform.
    """
    every, b = all_permutations(denoiser.free).to(denoiser.features.device), len(denoiser.features)
    size = len(every)
    start = torch.full((size,), 1 / size, dtype=torch.float64) if start is None else start
    found = [start.to(every.device).expand(b, size)]
    moved = number(compose(every.unsqueeze(1), every.unsqueeze(0))).flatten()
    for t in reversed(times):
        step = denoiser(every.expand(b, *every.shape), t)
        probability = torch.stack([step.log_prob(sigma.expand(b, size, -1)).double().exp() for sigma in every], -1)
        mass = (found[-1].unsqueeze(-1) * probability).flatten(1)
        found.append(torch.zeros_like(found[-1]).index_add(1, moved, mass))
    return torch.stack(found)


def draw_laws(denoiser: Denoiser, times: Sequence[int], kind: str, truth: Tensor, path: Path) -> bool:
    """A picture of the laws of one list, from uniform to the model's answer, over a list drawn at every time.

    Args:
        denoiser: of one list, with its items.
        kind: of items, see `blackout.permutations.datasets.Puzzles`.
        truth: int64 [1, n], the right order, which is marked.

    Returns:
        Whether there is one: lists are short enough, and steps have a law.
    """
    if denoiser.free > MOST_ITEMS or isinstance(denoiser(truth.new_zeros(1, 0, denoiser.free), times[0]), Matching):
        return False
    states: list[Tensor] = []
    Sample()(
        denoiser, times, SampleStreams(0, torch.zeros(1, dtype=torch.int64)), lambda _, order: states.append(order)
    )
    assert denoiser.items is not None
    drawn = [lists(kind, arranged(denoiser.items, whole(state, denoiser.first_fixed)), 1) for state in states]
    from matplotlib.figure import Figure  # only here: importing it takes a second

    every, found = whole(all_permutations(denoiser.free), denoiser.first_fixed), laws(denoiser, times)[:, 0].cpu()
    figure = Figure(figsize=(2.2 * len(found), 3.6), layout="constrained")
    rows = figure.subplots(2, len(found), sharey="row", squeeze=False)
    colours = ["tab:green" if bool(right) else "tab:blue" for right in (every == truth.cpu()).all(1)]
    for column, (t, law) in enumerate(zip([*reversed(times), 0], found.tolist(), strict=True)):
        rows[0, column].bar(range(len(law)), law, color=colours)
        rows[0, column].set(title=f"t = {t}", ylim=(0, 1), xlabel=f"the {len(law)} orders", xticks=[])
        rows[1, column].axis("off")
        if (picture := drawn[column]) is not None:
            rows[1, column].imshow(picture)
    with replacing(path) as part:
        figure.savefig(part, format="png", dpi=110)
    return True

"""The exact distribution of a list at every scheduled time.

    python -m benchmarks.permutation_distributions <run> --out shuffle_distributions.png

The list is the first held-out one of a shuffle diffusion of up to five items.

References: Zhang et al. 2025, figure 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from blackout.permutations.distributions import Matching
from blackout.permutations.group import all_permutations, compose, inverse, lexicographic_rank
from blackout.permutations.metrics import rearrange
from blackout.permutations.plots import plot_lists
from blackout.permutations.shuffle import ShuffleDiffusion
from blackout.permutations.shuffle.decoding import Denoiser, Sample, prepend_first
from blackout.pictures import save_picture
from blackout.random import SampleStreams
from blackout.training.loading import load_model
from blackout.training.model import evaluating

MOST_ITEMS = 5
# Up to here all orders are gone through.
_ORDERS = 24


def exact_marginals(
    denoiser: Denoiser, times: Sequence[int], start: Tensor | None = None
) -> Tensor:
    """Return the distributions of the order at t_k, ..., t_1 and 0 under the reverse steps.

    They are float64 [k + 1, b, m!], summed over all lists.

    Args:
        denoiser: of b lists.
        times: t_1, ..., t_k.
        start: float64 [m!], the distribution at t_k in lexicographic order; None is uniform.

    References: Zhang et al. 2025, eq. 11.
    """
    permutations = all_permutations(denoiser.num_free).to(denoiser.features.device)
    b = len(denoiser.features)
    size = len(permutations)
    start = torch.full((size,), 1 / size, dtype=torch.float64) if start is None else start
    marginals = [start.to(permutations.device).expand(b, size)]
    next_rank = lexicographic_rank(
        compose(permutations.unsqueeze(1), permutations.unsqueeze(0))
    ).flatten()
    for t in reversed(times):
        step = denoiser(permutations.expand(b, *permutations.shape), t)
        probability = torch.stack(
            [step.log_prob(sigma.expand(b, size, -1)).double().exp() for sigma in permutations], -1
        )
        mass = (marginals[-1].unsqueeze(-1) * probability).flatten(1)
        marginals.append(torch.zeros_like(marginals[-1]).index_add(1, next_rank, mass))
    return torch.stack(marginals)


def plot_distributions(
    denoiser: Denoiser, times: Sequence[int], kind: str, truth: Tensor, path: Path
) -> None:
    """Return a figure of the distributions of one list, from uniform to the model's answer.

    Below is a sampled list at every time. There is none for long lists, or steps without
    probabilities.

    Args:
        denoiser: of one list, with its items.
        times: as in `exact_marginals`.
        kind: of items, see `blackout.permutations.datasets.Puzzles`.
        truth: int64 [1, n], the right order, which is marked.

    References: Zhang et al. 2025, figure 1.
    """
    distribution = denoiser(truth.new_zeros(1, 0, denoiser.num_free), times[0])
    if denoiser.num_free > MOST_ITEMS or isinstance(distribution, Matching):
        return
    states = list[Tensor]()
    items = denoiser.items
    fixed = denoiser.first_fixed
    assert items is not None
    streams = SampleStreams(0, torch.zeros(1, dtype=torch.int64))
    Sample()(denoiser, times, streams, lambda _, order: states.append(order))
    from matplotlib.figure import Figure

    permutations = prepend_first(all_permutations(denoiser.num_free), fixed)
    marginals = exact_marginals(denoiser, times)[:, 0].cpu()
    # bars that can be told apart
    likeliest = marginals[-1].topk(min(_ORDERS, len(permutations))).indices.sort().values
    label = (
        f"the {len(permutations)} orders"
        if len(likeliest) == len(permutations)
        else f"the {len(likeliest)} likeliest orders"
    )
    permutations = permutations[likeliest]
    marginals = marginals[:, likeliest]
    figure = Figure(figsize=(2.2 * len(marginals), 3.6), layout="constrained")
    rows = figure.subplots(2, len(marginals), sharey="row", squeeze=False)
    colours = [
        "tab:green" if bool(is_true_order) else "tab:blue"
        for is_true_order in (permutations == truth.cpu()).all(1)
    ]
    for column, (t, distribution) in enumerate(
        zip([*reversed(times), 0], marginals.tolist(), strict=True)
    ):
        rows[0, column].bar(range(len(distribution)), distribution, color=colours)
        rows[0, column].set(title=f"t = {t}", ylim=(0, 1), xlabel=label, xticks=[])
        rows[1, column].axis("off")
        if (
            picture := plot_lists(kind, rearrange(items, prepend_first(states[column], fixed)), 1)
        ) is not None:
            rows[1, column].imshow(picture)
    save_picture(figure, path, dpi=110)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="run directory, .ckpt file or exported model")
    parser.add_argument("--out", type=Path, default=Path("shuffle_distributions.png"))
    options = parser.parse_args(argv)
    model = load_model(options.model)
    assert isinstance(model, ShuffleDiffusion)
    batch = model.require_source().batch("test", torch.arange(1))
    with torch.no_grad(), evaluating(model.averaged):
        denoiser = model.denoiser(rearrange(batch["items"], batch["puzzle_order"]))
        plot_distributions(
            denoiser,
            model.shuffle.times,
            model.data["kind"],
            inverse(batch["puzzle_order"]),
            options.out,
        )


if __name__ == "__main__":
    main()

"""A transformer on sets of items, which says how to rearrange them, and the lists that it has read, place by place.

Items are read by encoders (`item_encoders.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import ensure
from blackout.networks.layers import (
    Dropout,
    LayerNorm,
    TimeEmbedding,
    check_sizes,
    dense,
    full_precision,
    sinusoids,
)


@component("network")
class SetTransformer(nn.Module):
    """Scores for rearranging a list of n items after t shuffles [Zhang 2025, section 3.3, appendix B].

    Items are encoded once; `scores` reads their features in any order. With `places`, n further tokens stand for the
    places of the new list: place i attends to all items and to the places before it, items to items alone, and the
    score of item j for place i is the product of their features. Without, every item gets one score; with `swap` one
    more token gives one score of the whole list, behind the others.

    Args:
        encoder: items [B, n, ...] -> [B, n, features], with an attribute `features`.
        num_items: n.
        places: whether there is a row of scores for every place.
        swap: whether there is one score of the whole list besides.
        prefix: whether the scores for a place depend on the items at the places before it (`pointers`), by whose
            features the tokens of places then differ: a pointer network [Vinyals 2015].
        width: features of a token, a multiple of `heads` and even.
        depth: layers.
        heads: of attention.
        expansion: hidden features of the perceptrons over `width`.
        dropout: probability.
        norm_first: normalise before attention and perceptron rather than after, as published.
        scale: of the products of features; None for 1 / sqrt(width), published is 1.

    Raises:
        ValueError: sizes or probabilities out of range.
    """

    def __init__(
        self, encoder: nn.Module, num_items: int, places: bool = True, swap: bool = False, prefix: bool = False,
        width: int = 96, depth: int = 3, heads: int = 4, expansion: int = 2, dropout: float = 0.0,
        norm_first: bool = True, scale: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_sizes("set transformer", num_items=num_items, heads=heads, expansion=expansion)
        check_sizes("set transformer", 0, depth=depth)
        check_sizes("set transformer", 4, width=width)
        if width % heads or width % 2:
            raise ValueError(f"the width of the set transformer must be even and a multiple of heads, not {width}")
        self.num_items, self.width = num_items, width
        self.extra = num_items if places else int(swap)
        self.scale = width**-0.5 if scale is None else scale
        self.encoder, self.into = encoder, dense(int(encoder.features), width)  # type: ignore[arg-type]
        self.time, self.dropout = TimeEmbedding(width, width), Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, heads, expansion, dropout, norm_first) for _ in range(depth))
        self.norm = LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.chosen = dense(width, width) if prefix else None
        self.head = None if places else _perceptron(width, expansion)
        self.swap_head = dense(width, 1) if swap and not places else None
        tokens = num_items + self.extra
        self.positions = nn.Buffer(sinusoids(torch.arange(tokens), width).float(), persistent=False)
        self.seen = nn.Buffer(visible(num_items, self.extra), persistent=False)

    def forward(self, items: Tensor, t: Tensor) -> Tensor:
        """Scores of items [B, n, ...] as they lie after t [B] shuffles."""
        return self.scores(self.encode(items), t)

    def encode(self, items: Tensor) -> Tensor:
        """Features of items [B, n, ...], float [B, n, width]: to be rearranged at will."""
        return self.into(self.encoder(items))

    def scores(self, features: Tensor, t: Tensor) -> Tensor:
        """Scores of items with these features, in this order [Zhang 2025, appendix B].

        Args:
            features: [B, n, width].
            t: number of shuffles, [B].

        Returns:
            float32 [B, n, n], a row for every place; [B, n] without places; [B, n + 1] with `swap`.
        """
        n = self.num_items
        x = torch.cat([features, features.new_zeros(len(features), self.extra, self.width)], 1)
        x = self.dropout(x + self.positions) + self.time(t.float()).unsqueeze(1)
        for layer in self.layers:
            x = layer(x, self.seen)
        with full_precision(x):
            x = self.norm(x.float())
            if self.head is None:
                return self.scale * x[:, n:] @ x[:, :n].transpose(1, 2)
            each = self.head(x[:, :n]).squeeze(-1)
            return each if self.swap_head is None else torch.cat([each, self.swap_head(x[:, n])], 1)

    def pointers(self, features: Tensor, t: Tensor) -> Pointers:
        """Scores that depend on what is at the places before, of items [B, n, width] after t [B] shuffles."""
        return Pointers(self, features, t)


class Pointers:
    """Lists that a `SetTransformer` with `prefix` has read: it keeps the keys and values of their items.

    [Vinyals 2015]; that all places are read in one pass is ours (tests/permutations/test_shuffle.py).

    Args:
        network: that reads.
        features: of N lists, [N, n, width].
        t: number of shuffles, [N].
    """

    def __init__(self, network: SetTransformer, features: Tensor, t: Tensor) -> None:
        if network.chosen is None:
            raise ValueError("scores that depend on places before need a network made with prefix=True")
        self.network, self.time, self.chosen = network, network.time(t.float()).unsqueeze(1), network.chosen(features)
        n, self.kept = network.num_items, list[list[Tensor]]()
        x = network.dropout(features + network.positions[:n]) + self.time
        for layer in network.layers:
            self.kept.append([])
            x = layer(x, None, self.kept[-1])
        with full_precision(x):
            self.items = network.norm(x.float())

    def all(self, orders: Tensor) -> Tensor:
        """Of orders int64 [L, N, n] the scores for every place given the places before, in one pass, [L, N, n, n].

        [Vinyals 2015], see the class.
        """
        size, n = len(orders), orders.shape[-1]
        kept = [[one.repeat_interleave(size, 0) for one in pair] for pair in self.kept]
        before = torch.ones(n, n, dtype=torch.bool, device=orders.device).tril()
        seen = torch.cat([torch.ones_like(before), before], 1)
        rows = torch.arange(orders.shape[1], device=orders.device).view(-1, 1, 1)
        x = F.pad(self.chosen[rows, orders.transpose(0, 1)[..., :-1]], (0, 0, 1, 0)) + self.network.positions[n:]
        x = (self.network.dropout(x) + self.time.unsqueeze(1)).flatten(0, 1)
        return self._scores(x, seen, kept).unflatten(0, (-1, size)).transpose(0, 1)

    def rows(self) -> Callable[[Tensor | None, Tensor | None], Tensor]:
        """The same place by place, see `blackout.permutations.distributions`: a token for each prefix.

        Rows of scores, [N, prefixes, n], as in the class.
        """
        kept, (size, n) = [list(pair) for pair in self.kept], self.items.shape[:2]
        place, rows = 0, torch.arange(size, device=self.items.device).unsqueeze(-1)

        def row(parent: Tensor | None, item: Tensor | None) -> Tensor:
            """Scores [N, prefixes, n] for the next place, given the prefix and item that each one follows; as in the
            class.
            """
            nonlocal place
            x = torch.zeros_like(self.chosen[:, :1])
            if parent is not None and item is not None:
                x = self.chosen[rows, item]
                for pair in kept:
                    pair[:] = [one.unflatten(0, (size, -1))[rows, parent].flatten(0, 1) for one in pair]
            token = (x + self.network.positions[n + place] + self.time).flatten(0, 1).unsqueeze(1)
            place += 1
            return self._scores(token, None, kept).view(size, -1, n)

        return row

    def _scores(self, x: Tensor, seen: Tensor | None, kept: list[list[Tensor]]) -> Tensor:
        """Of tokens of places [M, m, width], those of a list side by side: [M, m, n], products as in
        `SetTransformer.scores`.
        """
        for layer, pair in zip(self.network.layers, kept, strict=True):
            x = layer(x, seen, pair)
        with full_precision(x):
            x = self.network.norm(x.float())
            items = self.items.repeat_interleave(len(x) // len(self.items), 0)
            return self.network.scale * x @ items.transpose(1, 2)


class Layer(nn.Module):
    """Attention among the tokens that see each other, and a perceptron [Vaswani 2017, section 3.1]."""

    linear: Callable[[int, int], nn.Module] = staticmethod(dense)
    activation: Callable[[], nn.Module] = nn.ReLU

    def __init__(self, width: int, heads: int, expansion: int, dropout: float, norm_first: bool) -> None:
        super().__init__()
        ensure(0 <= dropout < 1, f"dropout must be in [0, 1), not {dropout}")
        self.heads, self.norm_first = heads, norm_first
        self.norm0, self.norm1 = LayerNorm(width), LayerNorm(width)
        self.qkv, self.out, self.dropout = self.linear(width, 3 * width), self.linear(width, width), Dropout(dropout)
        into, out = self.linear(width, expansion * width), self.linear(expansion * width, width)
        self.perceptron = nn.Sequential(into, self.activation(), out)

    def forward(self, x: Tensor, seen: Tensor | None, kept: list[Tensor] | None = None) -> Tensor:
        """Tokens [B, m, width] -> the same [Vaswani 2017, section 3.1].

        Args:
            seen: bool [m, columns], which columns a row may look at; None for all.
            kept: keys and values [B, heads, k, d] of earlier tokens, the first columns, or nothing; then with these.
        """
        if self.norm_first:
            x = x + self.dropout(self.attend(self.norm0(x), seen, kept))
            return x + self.dropout(self.perceptron(self.norm1(x)))
        x = self.norm0(x + self.dropout(self.attend(x, seen, kept)))
        return self.norm1(x + self.dropout(self.perceptron(x)))

    def attend(self, x: Tensor, seen: Tensor | None, kept: list[Tensor] | None = None) -> Tensor:
        """Softmax attention of tokens [B, m, width], [B, m, width] [Vaswani 2017, eq. 1]; arguments as of `forward`."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if kept is not None:
            k, v = (torch.cat([old, new], 2) for old, new in zip(kept, (k, v), strict=True)) if kept else (k, v)
            kept[:] = [k, v]
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2))


def visible(items: int, extra: int) -> Tensor:
    """Who sees whom, bool [items + extra] squared: items see items; an extra token all items and the extras before.

    [Zhang 2025, appendix B].
    """
    seen = torch.zeros(items + extra, items + extra, dtype=torch.bool)
    seen[:, :items] = True
    seen[items:, items:] = torch.ones(extra, extra, dtype=torch.bool).tril(-1)
    return seen


def _perceptron(width: int, expansion: int) -> nn.Sequential:
    """A score of tokens [..., width], [..., 1], by two layers [Zhang 2025, appendix B]."""
    return nn.Sequential(dense(width, expansion * width), nn.ReLU(), dense(expansion * width, 1))

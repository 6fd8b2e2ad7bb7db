"""A transformer on a list of items that says how to rearrange it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.networks.layers import TimeEmbedding, check_sizes, dense, sinusoids
from blackout.networks.precision import LayerNorm, full_precision


@component("network")
class SetTransformer(nn.Module):
    """Scores for rearranging a list of n items after t shuffles (Zhang et al., ICLR 2025, section 3.3, appendix B).

    Items are encoded once; `scores` reads their features in any order. With `places`, n further tokens stand for the
    places of the new list: place i attends to all items and to the places before it, items to items alone, and the
    score of item j for place i is the product of their features. Without, every item gets one score; with `swap` one
    more token gives one score of the whole list, behind the others.

    Args:
        encoder: items [B, n, ...] -> [B, n, features], with an attribute `features`.
        num_items: n.
        places: whether there is a row of scores for every place.
        swap: whether there is one score of the whole list besides.
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
        self,
        encoder: nn.Module,
        num_items: int,
        places: bool = True,
        swap: bool = False,
        width: int = 96,
        depth: int = 3,
        heads: int = 4,
        expansion: int = 2,
        dropout: float = 0.0,
        norm_first: bool = True,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        check_sizes("set transformer", num_items=num_items, heads=heads, expansion=expansion)
        check_sizes("set transformer", 0, depth=depth)
        check_sizes("set transformer", 4, width=width)
        if width % heads or width % 2:
            raise ValueError(f"the width of the set transformer must be even and a multiple of heads, not {width}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), not {dropout}")
        self.num_items, self.width = num_items, width
        self.extra = num_items if places else int(swap)
        self.scale = width**-0.5 if scale is None else scale
        self.encoder, self.into = encoder, dense(int(encoder.features), width)  # type: ignore[arg-type]
        self.time, self.dropout = TimeEmbedding(width, width), nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, heads, expansion, dropout, norm_first) for _ in range(depth))
        self.norm = LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.head = None if places else _perceptron(width, expansion)
        self.swap_head = dense(width, 1) if swap and not places else None
        tokens = num_items + self.extra
        self.positions: Tensor
        self.seen: Tensor
        self.register_buffer("positions", sinusoids(torch.arange(tokens), width).float(), persistent=False)
        self.register_buffer("seen", visible(num_items, self.extra), persistent=False)

    def forward(self, items: Tensor, t: Tensor) -> Tensor:
        """Scores of items [B, n, ...] as they lie after t [B] shuffles."""
        return self.scores(self.encode(items), t)

    def encode(self, items: Tensor) -> Tensor:
        """Features of items [B, n, ...], float [B, n, width]: to be rearranged at will."""
        return self.into(self.encoder(items))

    def scores(self, features: Tensor, t: Tensor) -> Tensor:
        """Scores of items with these features, in this order.

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


class Layer(nn.Module):
    """Attention among the tokens that see each other, and a perceptron."""

    def __init__(self, width: int, heads: int, expansion: int, dropout: float, norm_first: bool) -> None:
        super().__init__()
        self.heads, self.norm_first = heads, norm_first
        self.norm0, self.norm1 = LayerNorm(width), LayerNorm(width)
        self.qkv, self.out = dense(width, 3 * width), dense(width, width)
        self.perceptron, self.dropout = _perceptron(width, expansion, width), nn.Dropout(dropout)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """Tokens [B, m, width] -> the same; seen: bool [m, m], which columns a row may look at."""
        if self.norm_first:
            x = x + self.dropout(self.attend(self.norm0(x), seen))
            return x + self.dropout(self.perceptron(self.norm1(x)))
        x = self.norm0(x + self.dropout(self.attend(x, seen)))
        return self.norm1(x + self.dropout(self.perceptron(x)))

    def attend(self, x: Tensor, seen: Tensor) -> Tensor:
        """Softmax attention, [B, m, width]."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(mixed.transpose(1, 2).flatten(2))


def visible(items: int, extra: int) -> Tensor:
    """Who sees whom, bool [items + extra] squared: items see items; an extra token all items and the extras before."""
    seen = torch.zeros(items + extra, items + extra, dtype=torch.bool)
    seen[:, :items] = True
    seen[items:, items:] = torch.ones(extra, extra, dtype=torch.bool).tril(-1)
    return seen


def _perceptron(width: int, expansion: int, outputs: int = 1) -> nn.Sequential:
    return nn.Sequential(dense(width, expansion * width), nn.ReLU(), dense(expansion * width, outputs))

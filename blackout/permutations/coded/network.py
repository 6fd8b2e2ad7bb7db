"""The transformer on codes: one token per digit, and logits of every digit's values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.networks.precision import LayerNorm

Context = Mapping[str, Tensor]
"""`items` [B, n] or [B, n, ...], `condition` [B, d], by name, where the model has them."""


@component("network")
class CodeTransformer(nn.Module):
    """(codes int64 [B, n], n where masked; context) -> logits [B, n, n]. Pre-norm, after [Severo 2025,
    appendix E].

    Items, where there are any, come in one of two ways. "prefix", the paper's: n rows of items before the n of digits.
    "fused": each digit's row also holds its item, which says something where digit i is about item i
    (`CodeModel.aligned`). A masked model then has n rows only; a causal one has the item rows before them in any case,
    since a digit may look at every item but at no later digit.

    Args:
        num_items: n.
        num_conditions: numbers that the whole permutation depends on; None where there are none.
        encoder: of items [B, n, ...] -> [B, n, encoder.features]; None where there are none.
        causal: logits of digit i depend on digits before i only, for an autoregressive model.
        context: how items come in.
        width: of the rows, a multiple of `heads`.
        depth: layers.
        heads: of attention.
        dropout: on what each layer adds.

    Raises:
        ValueError: sizes below 1, or a width that is no multiple of `heads`.
    """

    def __init__(
        self,
        num_items: int,
        num_conditions: int | None = None,
        encoder: nn.Module | None = None,
        causal: bool = False,
        context: Literal["fused", "prefix"] = "fused",
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if min(num_items, width, depth, heads) < 1 or width % heads:
            raise ValueError(f"width {width} must be a positive multiple of heads {heads}, and depth {depth} positive")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), not {dropout}")
        self.num_items, self.causal = num_items, causal
        self.fused = encoder is not None and context == "fused"
        prefix = encoder is not None and (context == "prefix" or causal)
        # a value means another thing in every place, so each place has embeddings of its own
        self.digits = _embedding(num_items * (num_items + 1), width)
        self.places = _embedding(num_items, width)
        self.items: nn.Module | None = None
        if encoder is not None:
            if not isinstance(features := getattr(encoder, "features", None), int):
                raise ValueError(f"the encoder {type(encoder).__name__} does not say how many `features` it gives")
            self.items = nn.Sequential(encoder, nn.Linear(features, width))
        self.item_places = _embedding(num_items, width) if prefix else None
        self.condition: nn.Module | None = None
        if num_conditions is not None:
            self.condition = nn.Sequential(nn.Linear(num_conditions, width), nn.GELU(), nn.Linear(width, width))
        self.layers = nn.ModuleList([_Layer(width, heads, dropout) for _ in range(depth)])
        self.norm, self.head = LayerNorm(width), nn.Linear(width, num_items)
        nn.init.zeros_(self.head.bias)
        nn.init.normal_(self.head.weight, std=0.02)
        # which row may attend to which; digits never inform items
        attends = torch.ones(num_items, num_items, dtype=torch.bool)
        if causal:
            attends = attends.tril()
        if prefix:
            items = torch.ones(2 * num_items, num_items, dtype=torch.bool)
            attends = torch.cat([items, torch.cat([torch.zeros_like(attends), attends])], 1)
        self.register_buffer("_attends", attends if causal or prefix else None, persistent=False)

    def forward(self, codes: Tensor, context: Context | None = None) -> Tensor:
        n = self.num_items
        if self.causal:  # row i holds digit i - 1; the first a mask
            codes = torch.cat([torch.full_like(codes[:, :1], n), codes[:, :-1]], 1)
        place = torch.arange(n, device=codes.device)
        rows = self.digits(codes + place * (n + 1)) + self.places(place)
        if self.items is not None:
            items = self.items(_given(context, "items"))
            rows = rows + items if self.fused else rows
            if self.item_places is not None:
                rows = torch.cat([items + self.item_places(place), rows], 1)
        if self.condition is not None:
            rows = rows + self.condition(_given(context, "condition")).unsqueeze(1)
        for layer in self.layers:
            rows = layer(rows, self._attends)
        logits: Tensor = self.head(self.norm(rows[:, -n:]))
        return logits


class _Layer(nn.Module):
    """Attention and a perceptron, each added to what its norm saw."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, attends: Tensor | None) -> Tensor:
        """x [B, rows, width]; `attends` bool [rows, rows] or None for all."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=attends).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.mix(mixed))
        x = x + self.dropout(self.mlp(self.norm2(x)))
        return x


def _embedding(number: int, width: int) -> nn.Embedding:
    table = nn.Embedding(number, width)
    nn.init.normal_(table.weight, std=0.5)
    return table


def _given(context: Context | None, name: str) -> Tensor:
    if context is None or name not in context:
        raise ValueError(f"this network needs {name} beside the codes")
    return context[name]

"""The transformer that predicts the digits of codes.

References: Severo et al. 2025, appendix E.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from blackout.component import component
from blackout.networks.layers import LayerNorm
from blackout.networks.set_transformer import TransformerLayer
from blackout.permutations.coded.denoiser import Context


@component("network")
class CodeTransformer(nn.Module):
    """A pre-norm transformer that predicts the digits of codes from the digits that are known.

    It maps codes int64 [B, n], with n at masked digits, and their context to logits [B, n, n].

    Items enter in one of two ways. "prefix", as in the paper: n rows of items before the n rows of
    digits. "fused": the row of each digit also holds its item, which helps if digit i is about item
    i (`CodeModel.aligned`). A masked model then has n rows only. A causal one has the rows of items
    in any case, since a digit may attend to every item but to no later digit.

    Args:
        num_items: n.
        num_conditions: size of the condition of the whole permutation; None for none.
        encoder: of items, [B, n, ...] -> [B, n, encoder.features]; None for none.
        causal: whether logits of digit i depend on earlier digits only, for an autoregressive
            model.
        context: how items enter.
        width: of the rows, a multiple of `heads`.
        depth: number of layers.
        heads: attention heads.
        dropout: rate on the output of each layer's attention and feed-forward part.

    Raises:
        ValueError: sizes below 1, or a width that is no multiple of `heads`.

    References: Severo et al. 2025, appendix E.
    """

    def __init__(  # noqa: PLR0913 - built from YAML
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
            raise ValueError(
                f"num_items={num_items}, depth={depth}, and heads={heads} must be at least 1, and "
                f"width={width} a multiple of heads"
            )
        self.num_items = num_items
        self.causal = causal
        self.fused = encoder is not None and context == "fused"
        prefix = encoder is not None and (context == "prefix" or causal)
        # a value means something else at every position, so each position has its own embeddings
        self.digits = _embedding(num_items * (num_items + 1), width)
        self.places = _embedding(num_items, width)
        self.items: nn.Module | None = None
        if encoder is not None:
            features = getattr(encoder, "features", None)
            if not isinstance(features, int):
                raise ValueError(
                    f"the encoder {type(encoder).__name__} must have the attribute `features`, "
                    "the number of its outputs"
                )
            self.items = nn.Sequential(encoder, nn.Linear(features, width))
        self.item_places = _embedding(num_items, width) if prefix else None
        self.condition: nn.Module | None = None
        if num_conditions is not None:
            self.condition = nn.Sequential(
                nn.Linear(num_conditions, width), nn.GELU(), nn.Linear(width, width)
            )
        self.layers = nn.ModuleList(
            [_Layer(width, heads, 4, dropout, norm_first=True) for _ in range(depth)]
        )
        self.norm = LayerNorm(width)
        self.head = nn.Linear(width, num_items)
        nn.init.zeros_(self.head.bias)
        nn.init.normal_(self.head.weight, std=0.02)
        mask: Tensor | None = None
        if causal or prefix:
            mask = _attention_mask(num_items, causal=causal, prefix=prefix)
        self.register_buffer("_attends", mask, persistent=False)

    def forward(self, codes: Tensor, context: Context) -> Tensor:
        """Return logits [B, n, n] of codes int64 [B, n] with their context."""
        n = self.num_items
        if self.causal:
            # row i holds digit i - 1, and the first row a mask
            codes = torch.cat([torch.full_like(codes[:, :1], n), codes[:, :-1]], 1)
        position = torch.arange(n, device=codes.device)
        rows = self.digits(codes + position * (n + 1)) + self.places(position)
        if self.items is not None:
            items = self.items(context["items"])
            rows = rows + items if self.fused else rows
            if self.item_places is not None:
                rows = torch.cat([items + self.item_places(position), rows], 1)
        if self.condition is not None:
            rows = rows + self.condition(context["condition"]).unsqueeze(1)
        for layer in self.layers:
            rows = layer(rows, self._attends)
        return self.head(self.norm(rows[:, -n:]))


def _attention_mask(n: int, *, causal: bool, prefix: bool) -> Tensor:
    """Return which row (first index) may attend to which, bool [rows, rows].

    With a prefix all rows attend to the n rows of items, which attend to no digit.
    """
    digits = torch.ones(n, n, dtype=torch.bool).tril(0 if causal else n)
    if not prefix:
        return digits
    items = torch.ones(2 * n, n, dtype=torch.bool)
    return torch.cat([items, torch.cat([torch.zeros_like(digits), digits])], 1)


class _Layer(TransformerLayer):
    """A pre-norm layer with GELU and PyTorch's default initialisation."""

    linear = nn.Linear
    activation = nn.GELU


def _embedding(num_embeddings: int, width: int) -> nn.Embedding:
    """Return an embedding [num_embeddings, width] with normal entries of standard deviation 1/2."""
    table = nn.Embedding(num_embeddings, width)
    nn.init.normal_(table.weight, std=0.5)
    return table

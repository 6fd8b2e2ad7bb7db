"""Transformer on sets of items that scores how to rearrange them, and its pointer decoder.

Items are encoded by one of the encoders in `item_encoders.py`.

References: Zhang et al. 2025, section 3.3 and appendix B; Vinyals et al. 2015.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import ensure
from blackout.networks.dropout import Dropout
from blackout.networks.layers import (
    LayerNorm,
    TimeEmbedding,
    check_sizes,
    dense,
    full_precision,
    sinusoids,
)

# Keys and values of one layer, [B, heads, tokens, d] each; empty before the first call
KVCache: TypeAlias = list[Tensor]


@component("network")
class SetTransformer(nn.Module):
    """Scores for rearranging a list of n items after t shuffles.

    Items are encoded once; `scores` reads their features in any order. With `places`, n further
    tokens stand for the places of the new list. Place i attends to all items and to the places
    before it; items attend to items only. The score of item j for place i is the dot product of
    their features. Without `places`, every item gets one score, and with `swap` one more token
    gives a score of the whole list, after the others.

    Args:
        encoder: maps items [B, n, ...] to [B, n, features] and has an attribute `features`.
        num_items: n.
        places: whether there is a row of scores for every place.
        swap: whether there is also one score of the whole list.
        prefix: whether the scores for a place depend on the items at the places before it
            (`pointers`), as in a pointer network.
        width: features of a token, a multiple of `heads` and even.
        depth: number of layers.
        heads: of attention.
        expansion: hidden features of the MLPs divided by `width`.
        dropout: probability, in [0, 1).
        norm_first: normalise before attention and MLP rather than after; the paper's is after.
        scale: of the dot products; None for 1 / sqrt(width). The paper's is 1.

    Raises:
        ValueError: a size or the probability is out of range.

    Example:
        >>> from blackout.networks import TokenEncoder
        >>> network = SetTransformer(TokenEncoder(5, features=8), num_items=5, width=16, depth=1)
        >>> network(torch.tensor([[3, 1, 4, 0, 2]]), torch.tensor([2])).shape  # [B, place, item]
        torch.Size([1, 5, 5])

    References: Zhang et al. 2025, section 3.3 and appendix B; Vinyals et al. 2015.
    """

    def __init__(  # noqa: PLR0913 - built from YAML
        self,
        encoder: nn.Module,
        num_items: int,
        places: bool = True,
        swap: bool = False,
        prefix: bool = False,
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
            raise ValueError(
                "the width of the set transformer must be even and a multiple of heads, "
                f"not width={width} and heads={heads}"
            )
        self.num_items = num_items
        self.width = width
        self.num_extra = num_items if places else int(swap)  # tokens besides the items
        self.scale = width**-0.5 if scale is None else scale

        self.encoder = encoder
        self.projection = dense(int(encoder.features), width)  # type: ignore[arg-type]
        self.time = TimeEmbedding(width, width)
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(
            TransformerLayer(width, heads, expansion, dropout, norm_first) for _ in range(depth)
        )
        self.norm = LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.prefix_projection = dense(width, width) if prefix else None
        self.head = None if places else _score_mlp(width, expansion)
        self.swap_head = dense(width, 1) if swap and not places else None

        positions = sinusoids(torch.arange(num_items + self.num_extra), width).float()
        self.positions = nn.Buffer(positions, persistent=False)
        mask = attention_mask(num_items, self.num_extra)
        self.attention_mask = nn.Buffer(mask, persistent=False)

    def forward(self, items: Tensor, t: Tensor) -> Tensor:
        """Return the scores of items [B, n, ...] after t [B] shuffles, see `scores`."""
        return self.scores(self.encode(items), t)

    def encode(self, items: Tensor) -> Tensor:
        """Encode items [B, n, ...]; returns features [B, n, width], which may be rearranged."""
        return self.projection(self.encoder(items))

    def scores(self, features: Tensor, t: Tensor) -> Tensor:
        """Return the scores of items with these features, in this order.

        Args:
            features: [B, n, width].
            t: number of shuffles, [B].

        Returns:
            float32: [B, n, n], a row for every place; [B, n] without `places`; [B, n + 1] with
            `swap`.

        References: Zhang et al. 2025, appendix B.
        """
        n = self.num_items
        extra_tokens = features.new_zeros(len(features), self.num_extra, self.width)
        x = torch.cat([features, extra_tokens], 1)
        x = self.dropout(x + self.positions) + self.time(t.float()).unsqueeze(1)
        for layer in self.layers:
            x = layer(x, self.attention_mask)
        with full_precision(x):
            x = self.norm(x.float())
            if self.head is None:
                return self.scale * x[:, n:] @ x[:, :n].transpose(1, 2)
            item_scores = self.head(x[:, :n]).squeeze(-1)
            if self.swap_head is None:
                return item_scores
            return torch.cat([item_scores, self.swap_head(x[:, n])], 1)

    def pointers(self, features: Tensor, t: Tensor) -> Pointers:
        """Return the decoder of items [B, n, width] after t [B] shuffles, with cached keys."""
        return Pointers(self, features, t)


class Pointers:
    """Pointer decoder of a `SetTransformer` with `prefix`, with cached keys and values of items.

    The scores for a place depend on the items at the places before it. All places of given orders
    can be scored in one pass.

    Args:
        network: a network with `prefix`.
        features: of N lists, [N, n, width].
        t: number of shuffles, [N].

    Raises:
        ValueError: a network without `prefix`.

    References: Vinyals et al. 2015; one pass is this project's, checked in
    tests/permutations/test_shuffle_diffusion.py.
    """

    def __init__(self, network: SetTransformer, features: Tensor, t: Tensor) -> None:
        if network.prefix_projection is None:
            raise ValueError(
                "scores that depend on the places before need a network with prefix=True"
            )
        self.network = network
        self.time = network.time(t.float()).unsqueeze(1)
        self.prefix_features = network.prefix_projection(features)
        self.caches: list[KVCache] = []
        x = network.dropout(features + network.positions[: network.num_items]) + self.time
        for layer in network.layers:
            cache: KVCache = []
            x = layer(x, None, cache)
            self.caches.append(cache)
        with full_precision(x):
            self.items = network.norm(x.float())

    def score_orders(self, orders: Tensor) -> Tensor:
        """Score every place of orders given the places before it, in one pass.

        Args:
            orders: int64 [L, N, n], L orders of each list.

        Returns:
            [L, N, n, n].
        """
        num_orders, num_lists, n = orders.shape
        caches = [
            [values.repeat_interleave(num_orders, 0) for values in cache] for cache in self.caches
        ]
        causal_mask = torch.ones(n, n, dtype=torch.bool, device=orders.device).tril()
        mask = torch.cat([torch.ones_like(causal_mask), causal_mask], 1)

        # The token of a place starts from the item at the place before it; the first from zeros.
        rows = torch.arange(num_lists, device=orders.device).view(-1, 1, 1)
        previous = self.prefix_features[rows, orders.transpose(0, 1)[..., :-1]]
        x = F.pad(previous, (0, 0, 1, 0)) + self.network.positions[n:]
        x = (self.network.dropout(x) + self.time.unsqueeze(1)).flatten(0, 1)
        scores = self._scores(x, mask, caches)
        return scores.unflatten(0, (-1, num_orders)).transpose(0, 1)

    def next_scores(self) -> Callable[[Tensor | None, Tensor | None], Tensor]:
        """Return a function that scores the places one by one, for a set of prefixes.

        See `blackout.permutations.distributions` for its arguments.
        """
        caches = [list(cache) for cache in self.caches]
        num_lists, n = self.items.shape[:2]
        rows = torch.arange(num_lists, device=self.items.device).unsqueeze(-1)
        place = 0

        def score(parent: Tensor | None, item: Tensor | None) -> Tensor:
            """Score the next place, given the prefix and the item that each prefix extends.

            Args:
                parent: number of the prefix, int64 [N, prefixes]; None at the first place.
                item: that is appended to it, int64 [N, prefixes]; None at the first place.

            Returns:
                [N, prefixes, n].
            """
            nonlocal place
            x = torch.zeros_like(self.prefix_features[:, :1])
            if parent is not None and item is not None:
                x = self.prefix_features[rows, item]
                for cache in caches:
                    cache[:] = [
                        values.unflatten(0, (num_lists, -1))[rows, parent].flatten(0, 1)
                        for values in cache
                    ]
            token = (x + self.network.positions[n + place] + self.time).flatten(0, 1).unsqueeze(1)
            place += 1
            return self._scores(token, None, caches).view(num_lists, -1, n)

        return score

    def _scores(self, x: Tensor, mask: Tensor | None, caches: list[KVCache]) -> Tensor:
        """Score tokens of places [M, m, width], with M a multiple of the lists; [M, m, n]."""
        for layer, cache in zip(self.network.layers, caches, strict=True):
            x = layer(x, mask, cache)
        with full_precision(x):
            x = self.network.norm(x.float())
            items = self.items.repeat_interleave(len(x) // len(self.items), 0)
            return self.network.scale * x @ items.transpose(1, 2)


class TransformerLayer(nn.Module):
    """Masked multi-head attention and an MLP.

    Args:
        width: features of a token.
        heads: of attention.
        expansion: hidden features of the MLP divided by `width`.
        dropout: probability, in [0, 1).
        norm_first: normalise before attention and MLP rather than after.

    Raises:
        ValueError: the probability is out of range.

    References: Vaswani et al. 2017, section 3.1.
    """

    # Subclasses may choose another initialisation and activation
    linear: Callable[[int, int], nn.Module] = staticmethod(dense)
    activation: Callable[[], nn.Module] = nn.ReLU

    def __init__(
        self, width: int, heads: int, expansion: int, dropout: float, norm_first: bool
    ) -> None:
        super().__init__()
        ensure(0 <= dropout < 1, f"dropout must be in [0, 1), not {dropout}")
        self.heads = heads
        self.norm_first = norm_first
        self.norm0 = LayerNorm(width)
        self.norm1 = LayerNorm(width)
        self.qkv = self.linear(width, 3 * width)
        self.out = self.linear(width, width)
        self.dropout = Dropout(dropout)
        hidden = self.linear(width, expansion * width)
        out = self.linear(expansion * width, width)
        self.perceptron = nn.Sequential(hidden, self.activation(), out)

    def forward(self, x: Tensor, mask: Tensor | None, cache: KVCache | None = None) -> Tensor:
        """Transform tokens [B, m, width]; returns the same shape.

        Args:
            x: [B, m, width].
            mask: bool [m, columns], True where a token may attend; None for everywhere.
            cache: keys and values of earlier tokens, which are the first columns; those of these
                tokens are appended.
        """
        if self.norm_first:
            x = x + self.dropout(self.attend(self.norm0(x), mask, cache))
            return x + self.dropout(self.perceptron(self.norm1(x)))
        x = self.norm0(x + self.dropout(self.attend(x, mask, cache)))
        return self.norm1(x + self.dropout(self.perceptron(x)))

    def attend(self, x: Tensor, mask: Tensor | None, cache: KVCache | None = None) -> Tensor:
        """Apply softmax attention to tokens [B, m, width]; arguments as of `forward`.

        References: Vaswani et al. 2017, eq. 1.
        """
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache:
            k = torch.cat([cache[0], k], 2)
            v = torch.cat([cache[1], v], 2)
        if cache is not None:
            cache[:] = [k, v]
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(h.transpose(1, 2).flatten(2))


def attention_mask(num_items: int, num_extra: int) -> Tensor:
    """Return the attention mask: which row may attend to which column, bool [n, n].

    Items attend to items; an extra token to all items and to the extra tokens before it.

    References: Zhang et al. 2025, appendix B.
    """
    num_tokens = num_items + num_extra
    mask = torch.zeros(num_tokens, num_tokens, dtype=torch.bool)
    mask[:, :num_items] = True
    mask[num_items:, num_items:] = torch.ones(num_extra, num_extra, dtype=torch.bool).tril(-1)
    return mask


def _score_mlp(width: int, expansion: int) -> nn.Sequential:
    """Make a two-layer MLP that scores tokens, [..., width] -> [..., 1]."""
    return nn.Sequential(dense(width, expansion * width), nn.ReLU(), dense(expansion * width, 1))

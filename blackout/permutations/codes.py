"""Codes of permutations whose digits are free: every choice of digits within their supports is one permutation.

A permutation x of n items becomes n integers c; digit i may be any value of its support, whatever the others are, and
each of the n! choices is reached. So independent digits make a distribution over permutations. Definitions are 0-based:

    Lehmer       c_i = #{j > i: x_j < x_i}           0 .. n - 1 - i   sum: inversions
    Insertion    c_k = #{j < k: p_j < p_k}, p = x^-1 0 .. k           k minus the left Lehmer digit of the inverse
    FisherYates  draws of a shuffle by swaps         0 .. n - 1 - i   zeros: cycles
    Inline       x itself                            0 .. n - 1       not free: the counter-example

[Severo 2025, sections 3.1-3.2, appendix D]. Work is done with the places first and in the narrowest integers, where one
step compares or moves a whole batch at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from blackout.errors import ensure
from blackout.permutations.group import (
    compose,
    count_smaller_after,
    from_positions_first,
    inverse,
    is_permutation,
    to_positions_first,
)


class Code(ABC):
    """A one-to-one map between permutations int64 [..., n] and digits int64 [..., n], used by its class methods.

    With a `reference` order of items, [n] or broadcastable, what is coded is the permutation that takes the reference
    to the order given: reference[x].
    """

    @classmethod
    def encode(cls, x: Tensor, reference: Tensor | None = None) -> Tensor:
        """Digits int64 [..., n] of permutations x, or of orders x relative to a reference.

        Raises:
            ValueError: x is no permutation.
        """
        ensure(bool(is_permutation(x).all()), f"only permutations of 0..{x.shape[-1] - 1} have a code")
        return cls._encode(x if reference is None else compose(inverse(reference), x))

    @classmethod
    def decode(cls, code: Tensor, reference: Tensor | None = None) -> Tensor:
        """The permutations int64 [..., n] that digits stand for, or the orders, given a reference.

        Raises:
            ValueError: a digit outside its support, or no integers.
        """
        cls._check(code)
        x = cls._decode(code)
        return x if reference is None else compose(reference, x)

    @classmethod
    def support(cls, n: int, device: torch.device | str = "cpu") -> Tensor:
        """Whether digit i may be v, bool [n, n]: [Severo 2025, section 4.2]."""
        return torch.arange(n, device=device) <= cls._largest(n, device).unsqueeze(-1)

    @classmethod
    def _check(cls, code: Tensor) -> None:
        ensure(not code.dtype.is_floating_point, f"digits must be integers, not {code.dtype}")
        if code.numel():
            largest = cls._largest(n := code.shape[-1], code.device)
            least, most = code.reshape(-1, n).aminmax(dim=0)
            if bool((outside := (least < 0) | (most > largest)).any()):
                i = int(outside.nonzero()[0])
                value = int(least[i] if least[i] < 0 else most[i])
                raise ValueError(f"digit {i} of a {cls.__name__} code must be 0..{int(largest[i])}, not {value}")

    @staticmethod
    def _largest(n: int, device: torch.device | str) -> Tensor:
        """The largest value of every digit, int64 [n]: n - 1 - i unless a code says otherwise."""
        return torch.arange(n - 1, -1, -1, device=device)

    @staticmethod
    @abstractmethod
    def _encode(x: Tensor) -> Tensor: ...

    @staticmethod
    @abstractmethod
    def _decode(code: Tensor) -> Tensor: ...


def from_lehmer_digits(code: Tensor) -> Tensor:
    """Return permutations [..., n] of digits [..., n]: entry i is the c_i-th smallest value not used before.

    References: Severo 2025, appendix D.1.
    """
    y = to_positions_first(code)
    for i in reversed(range(len(y) - 1)):
        later = y[i + 1 :]
        later += (later >= y[i]).view(torch.uint8)
    return from_positions_first(y, code)


class Lehmer(Code):
    """How many smaller values follow: x_i is the c_i-th smallest value not used before [Severo 2025, eq. 1]."""

    _encode = staticmethod(count_smaller_after)

    @staticmethod
    def _decode(code: Tensor) -> Tensor:
        return from_lehmer_digits(code)


class Insertion(Code):
    """Item k goes in at place c_k of the list of items 0..k-1: r digits are the order of the first r items.

    [Severo 2025, section 3.2]; by theorem 4.3, eq. 6, how many smaller values come before each of the inverse.
    """

    @staticmethod
    def _largest(n: int, device: torch.device | str) -> Tensor:
        """k, int64 [n]: see the head of this file."""
        return torch.arange(n, device=device)

    @staticmethod
    def _encode(x: Tensor) -> Tensor:
        """#{j < k: p_j < p_k}, p = x^-1, of x [..., n]: digits of that shape [Severo 2025, eq. 6]."""
        return count_smaller_after(inverse(x).flip(-1)).flip(-1)

    @staticmethod
    def _decode(code: Tensor) -> Tensor:
        """Digits [..., n] -> permutations of that shape, by theorem 4.3 [Severo 2025, eq. 6]."""
        return inverse(from_lehmer_digits(code.flip(-1)).flip(-1))


class FisherYates(Code):
    """From 0, 1, 2, ... swap entry i with entry i + c_i, i rising. A single cycle iff no digit but the last is 0.

    [Severo 2025, section 3.1, appendix D.2], [Sattolo 1986].
    """

    @staticmethod
    def _encode(x: Tensor) -> Tensor:
        """The draws that lead to x [..., n], digits of that shape: swap after swap, with the place of every value.

        [Severo 2025, appendix D.2].
        """
        values = x.reshape(-1, x.shape[-1]).T.contiguous()
        deck = torch.arange(len(values), device=x.device).unsqueeze(-1).repeat(1, values.shape[1])
        first, place, swaps = deck.clone(), deck.clone(), deck.clone()
        for i in range(len(values) - 1):
            j, displaced = swaps[i : i + 1], deck[i : i + 1].clone()
            torch.gather(place, 0, values[i : i + 1], out=j)
            deck.scatter_(0, j, displaced)  # entry i itself is never asked for again
            place.scatter_(0, displaced, j)
        return swaps.sub_(first).T.reshape(x.shape).contiguous()

    @staticmethod
    def _decode(code: Tensor) -> Tensor:
        """Digits [..., n] -> permutations of that shape, swap after swap [Severo 2025, appendix D.2]."""
        n = code.shape[-1]
        swaps = code.reshape(-1, n).T.cpu().long()
        size = swaps.shape[1]
        # numpy takes and puts single rows in a third of torch's time; places count through the whole deck, row by row
        rows = torch.add(torch.arange(n).unsqueeze(-1), swaps).contiguous()
        places = rows.mul_(size).add_(torch.arange(size)).numpy()
        deck = np.repeat(np.arange(n, dtype=np.int16 if n <= 2**15 else np.int32)[:, None], size, 1)
        flat, drawn = deck.reshape(-1), np.empty_like(deck)
        for own, place, taken in zip(deck, places, drawn, strict=True):
            flat.take(place, out=taken, mode="clip")  # which needs no buffer; all places are there
            flat[place] = own
        return from_positions_first(torch.from_numpy(drawn), code).to(code.device)


class Inline(Code):
    """The permutation itself, value by value [Severo 2025, section 3.1].

    Its supports are not free: most choices of digits repeat a value.
    """

    @staticmethod
    def _largest(n: int, device: torch.device | str) -> Tensor:
        """n - 1, int64 [n]: see the class."""
        return torch.full((n,), n - 1, device=device)

    @staticmethod
    def _encode(x: Tensor) -> Tensor:
        """x [..., n] itself."""
        return x.clone()

    @staticmethod
    def _decode(code: Tensor) -> Tensor:
        """The digits [..., n] as they are, permutation or not."""
        return code.long().clone()

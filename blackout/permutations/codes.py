"""Factorised codes of permutations: every choice of digits within their supports is a permutation.

A permutation x of n items becomes n integers c. Digit i may have any value of its support, whatever
the other digits are, and each of the n! choices occurs once. So independent digits define a
distribution on permutations. Definitions are 0-based:

    code         digits                                 support          property
    Lehmer       c_i = #{j > i: x_j < x_i}              0 .. n - 1 - i   their sum counts inversions
    Insertion    c_k = #{j < k: p_j < p_k}, p = x^-1    0 .. k           positions of insertion
    FisherYates  draws of a shuffle by swaps            0 .. n - 1 - i   each 0 closes a cycle
    Inline       x itself                               0 .. n - 1       not factorised

Computations have the positions first and use the narrowest integers, so that one step compares or
moves a whole batch.

Example:
    >>> import torch
    >>> Lehmer.encode(torch.tensor([2, 0, 1])).tolist()
    [2, 0, 0]
    >>> Lehmer.decode(torch.tensor([2, 0, 0])).tolist()
    [2, 0, 1]

References: Severo et al. 2025, sections 3.1 and 3.2, appendix D.
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
from blackout.representation import format_arguments


class Code(ABC):
    """A bijection between permutations int64 [..., n] and digits int64 [..., n], as class methods.

    With a `reference` order of items, [n] or broadcastable, the permutation x is encoded for which
    reference[x] is the order.
    """

    __repr__ = format_arguments

    @classmethod
    def encode(cls, x: Tensor, reference: Tensor | None = None) -> Tensor:
        """Return the digits of permutations x, int64 [..., n].

        With a reference, x are orders, and the digits are relative to this reference order.

        Raises:
            ValueError: x is no permutation.
        """
        ensure(
            bool(is_permutation(x).all()),
            f"only permutations of 0..{x.shape[-1] - 1} have a code",
        )
        return cls._encode(x if reference is None else compose(inverse(reference), x))

    @classmethod
    def decode(cls, code: Tensor, reference: Tensor | None = None) -> Tensor:
        """Return the permutations of digits, or the orders relative to a reference, int64 [..., n].

        Raises:
            ValueError: a digit outside its support, or no integers.
        """
        cls._check(code)
        x = cls._decode(code)
        return x if reference is None else compose(reference, x)

    @classmethod
    def support(cls, n: int, device: torch.device | str = "cpu") -> Tensor:
        """Return whether digit i may have the value v, bool [n, n].

        References: Severo et al. 2025, section 4.2.
        """
        return torch.arange(n, device=device) <= cls._max_digits(n, device).unsqueeze(-1)

    @classmethod
    def _check(cls, code: Tensor) -> None:
        """Refuse digits outside their supports."""
        ensure(not code.dtype.is_floating_point, f"digits must be integers, not {code.dtype}")
        if not code.numel():
            return
        n = code.shape[-1]
        limits = cls._max_digits(n, code.device)
        smallest, largest = code.reshape(-1, n).aminmax(dim=0)
        is_outside = (smallest < 0) | (largest > limits)
        if bool(is_outside.any()):
            i = int(is_outside.nonzero()[0])
            value = int(smallest[i] if smallest[i] < 0 else largest[i])
            raise ValueError(
                f"digit {i} of a {cls.__name__} code must be 0..{int(limits[i])}, not {value}"
            )

    @staticmethod
    def _max_digits(n: int, device: torch.device | str) -> Tensor:
        """Return the largest value of every digit, int64 [n].

        It is n - 1 - i for digit i, unless a code says otherwise.
        """
        return torch.arange(n - 1, -1, -1, device=device)

    @staticmethod
    @abstractmethod
    def _encode(x: Tensor) -> Tensor:
        """Return the digits of permutations [..., n]."""

    @staticmethod
    @abstractmethod
    def _decode(code: Tensor) -> Tensor:
        """Return the permutations of digits [..., n]."""


def decode_lehmer(code: Tensor) -> Tensor:
    """Return the permutations of Lehmer digits c, int64 [..., n].

    Entry i is the c_i-th smallest value that is not used yet.

    References: Severo et al. 2025, appendix D.1.
    """
    y = to_positions_first(code)
    for i in reversed(range(len(y) - 1)):
        later = y[i + 1 :]
        later += (later >= y[i]).view(torch.uint8)
    return from_positions_first(y, code)


class Lehmer(Code):
    """The Lehmer code: digit i counts the smaller entries after x_i.

    References: Severo et al. 2025, eq. 1.
    """

    _encode = staticmethod(count_smaller_after)
    _decode = staticmethod(decode_lehmer)


class Insertion(Code):
    """The insertion code: item k is inserted at position c_k of the list of items 0..k-1.

    The first r digits are the order of the first r items. Digit k counts the smaller entries before
    entry k of the inverse.

    References: Severo et al. 2025, section 3.2; theorem 4.3, eq. 6.
    """

    @staticmethod
    def _max_digits(n: int, device: torch.device | str) -> Tensor:
        """Return k for digit k, int64 [n]."""
        return torch.arange(n, device=device)

    @staticmethod
    def _encode(x: Tensor) -> Tensor:
        """Return #{j < k: p_j < p_k} with p = x^-1, [..., n]."""
        return count_smaller_after(inverse(x).flip(-1)).flip(-1)

    @staticmethod
    def _decode(code: Tensor) -> Tensor:
        """Return the permutations of digits [..., n]."""
        return inverse(decode_lehmer(code.flip(-1)).flip(-1))


class FisherYates(Code):
    """The draws of a Fisher-Yates shuffle.

    From 0, 1, 2, ..., entry i changes places with entry i + c_i, for rising i. A permutation is a
    single cycle if and only if no digit but the last is 0.

    References: Severo et al. 2025, section 3.1 and appendix D.2; Sattolo 1986.
    """

    @staticmethod
    def _encode(x: Tensor) -> Tensor:
        """Return the draws that lead to x [..., n].

        They are found swap by swap, with a table of the positions of the values.
        """
        values = x.reshape(-1, x.shape[-1]).T.contiguous()
        n, size = values.shape
        identity = torch.arange(n, device=x.device).unsqueeze(-1).repeat(1, size)
        deck = identity.clone()
        position_of = identity.clone()
        swaps = identity.clone()
        for i in range(n - 1):
            j = swaps[i : i + 1]
            displaced = deck[i : i + 1].clone()
            torch.gather(position_of, 0, values[i : i + 1], out=j)
            deck.scatter_(0, j, displaced)  # entry i of the deck is not needed again
            position_of.scatter_(0, displaced, j)
        return swaps.sub_(identity).T.reshape(x.shape).contiguous()

    @staticmethod
    def _decode(code: Tensor) -> Tensor:
        """Return the permutations of digits [..., n], swap by swap.

        NumPy takes and puts single rows in a third of torch's time.
        """
        n = code.shape[-1]
        swaps = code.reshape(-1, n).T.cpu().long()
        size = swaps.shape[1]
        # indices of the swapped entries in the flattened deck [n, size]
        targets = torch.add(torch.arange(n).unsqueeze(-1), swaps).contiguous()
        indices = targets.mul_(size).add_(torch.arange(size)).numpy()
        dtype = np.int16 if n <= 2**15 else np.int32
        deck = np.repeat(np.arange(n, dtype=dtype)[:, None], size, 1)
        flat_deck = deck.reshape(-1)  # a view
        x = np.empty_like(deck)
        for deck_row, index, x_row in zip(deck, indices, x, strict=True):
            # mode="clip" needs no buffer; all indices are valid
            flat_deck.take(index, out=x_row, mode="clip")
            flat_deck[index] = deck_row
        return from_positions_first(torch.from_numpy(x), code).to(code.device)


class Inline(Code):
    """The permutation itself, value by value.

    It is not factorised: most choices of digits repeat a value.

    References: Severo et al. 2025, section 3.1.
    """

    @staticmethod
    def _max_digits(n: int, device: torch.device | str) -> Tensor:
        """Return n - 1 for every digit, int64 [n]."""
        return torch.full((n,), n - 1, device=device)

    @staticmethod
    def _encode(x: Tensor) -> Tensor:
        """Return a copy of x [..., n]."""
        return x.clone()

    @staticmethod
    def _decode(code: Tensor) -> Tensor:
        """Return a copy of the digits [..., n], whether they are a permutation or not."""
        return code.long().clone()


CODES: dict[str, type[Code]] = {
    "lehmer": Lehmer,
    "fisher_yates": FisherYates,
    "insertion": Insertion,
    "inline": Inline,
}

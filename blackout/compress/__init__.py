"""Lossless compression of counts with a trained model: a likelihood bound that nobody can fake."""

from blackout.compress.bits_back import Coder, decoded, encoded

__all__ = ["Coder", "decoded", "encoded"]

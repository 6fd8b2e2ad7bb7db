"""Lossless compression of counts with a trained model: a likelihood bound that nobody can fake."""

from blackout.compress.chain import decoded, encoded
from blackout.compress.coder import Coder

__all__ = ["Coder", "decoded", "encoded"]

"""Lossless compression of counts with a model of pure death: an entropy coder, bits back, files."""

from blackout.diffusion.compression.files import Codec, EncodingReport

__all__ = ["Codec", "EncodingReport"]

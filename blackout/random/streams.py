"""Counter-based random numbers: those of sample k are a function of (seed, k, step) alone.

The numbers of a stateful generator depend on how many were drawn before. Here each uniform is a
hash of its address (seed, sample, step, draw, attempt) instead. A sample's numbers can therefore be
computed again alone, in another batch or on another device.

The hash is SplitMix64. Its 64-bit key is folded from the address, one number at a time, as
`fold_in` of JAX does. A second key, a function of the first, is added between the two
multiplications of the hash. Draws whose counters overlap therefore do not share a shifted piece of
one sequence. Addresses have 64 bits: among n draws, two share an address with a probability of
about n^2 / 2^65.

References: Steele et al. 2014 (SplitMix64); Salmon et al. 2011 (counter-based generators).
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

from blackout.representation import format_arguments

GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # increment of SplitMix64: 2^64 / golden ratio
FIRST_MULTIPLIER = 0xBF58476D1CE4E5B9  # of SplitMix64's finaliser
SECOND_MULTIPLIER = 0x94D049BB133111EB
SECOND_KEY = 0xD1B54A32D192ED03  # folded into the first key of a draw to make the second
PARTICLES_KEY = 0x2545F4914F6CDD1D  # separates the streams of particles from the steps of a sample
FOLDED_KEY = 0x1E37AA5C6B0F4D29  # separates the streams of `fold_in` from the steps of a sample

INVERSION_LIMIT = 10.0  # mean below which counts are drawn by sequential search (Hoermann 1993)
SEARCH_LIMIT = 64  # P(Poisson(10) > 64) < 1e-29, far below the 2^-52 spacing of the uniforms

CHUNK_ELEMENTS = 24_576  # elements hashed together on a CPU, so that they stay in its cache
MASK_64 = (1 << 64) - 1
MASK_63 = (1 << 63) - 1


def signed(value: int) -> int:
    """Return the int64 with the bits of an unsigned 64-bit integer; torch has no full uint64."""
    value &= MASK_64
    return value - (1 << 64) if value >> 63 else value


def mix_integer(z: int) -> int:
    """Apply SplitMix64's finaliser, a bijection, to an unsigned 64-bit Python integer."""
    z = (z ^ (z >> 30)) * FIRST_MULTIPLIER & MASK_64
    z = (z ^ (z >> 27)) * SECOND_MULTIPLIER & MASK_64
    return z ^ (z >> 31)


def mix_(z: Tensor) -> Tensor:
    """Apply SplitMix64's finaliser to int64 of any shape, in place."""
    xor_shift_(z, 30).mul_(signed(FIRST_MULTIPLIER))
    xor_shift_(z, 27).mul_(signed(SECOND_MULTIPLIER))
    return xor_shift_(z, 31)


def xor_shift_(z: Tensor, bits: int) -> Tensor:
    """Compute z ^= z >> bits with a logical shift, in place; int64 of any shape."""
    mask = (1 << (64 - bits)) - 1  # torch's shift copies the sign
    return z.bitwise_xor_((z >> bits).bitwise_and_(mask))


def hash_to_uniform_(z: Tensor, second_key: Tensor) -> Tensor:
    """Hash addresses, int64 [b, E], to float64 uniforms in (0, 1) with 52 bits, [b, E].

    The addresses are overwritten. This is SplitMix64's finaliser with arithmetic shifts, which save
    one pass each. Two addresses may then give the same number, as with any random function; the
    sign bit is lost, and 63 bits remain.
    """
    shifted = z >> 30
    z.bitwise_xor_(shifted).mul_(signed(FIRST_MULTIPLIER)).add_(second_key)
    torch.bitwise_right_shift(z, 27, out=shifted)
    z.bitwise_xor_(shifted).mul_(signed(SECOND_MULTIPLIER))
    torch.bitwise_right_shift(z, 31, out=shifted)
    z.bitwise_xor_(shifted).bitwise_right_shift_(11)
    return z.to(torch.float64).add_(0.5).mul_(2.0**-52)


def fold_in(keys: Tensor, data: int) -> Tensor:
    """Derive new keys, int64 [B], from keys [B] and an integer.

    For a fixed integer this is a bijection of the keys; different integers give unrelated keys.
    """
    return mix_(keys + signed((data + 1) * GOLDEN_GAMMA))


def fold_seed(seed: int, *values: int) -> int:
    """Derive a seed in [0, 2^63), for `torch.Generator.manual_seed`, from a seed and integers.

    Example:
        >>> fold_seed(0, 1) == fold_seed(0, 1)
        True
        >>> fold_seed(0, 1) == fold_seed(0, 2)
        False
    """
    key = seed & MASK_64
    for value in values:
        key = mix_integer((key + (value + 1) * GOLDEN_GAMMA) & MASK_64)
    return key & MASK_63


def words(seed: int, first: Tensor, size: int) -> Tensor:
    """Return rows of consecutive words of SplitMix64's sequence for a seed.

    Args:
        seed: of the sequence.
        first: number of the first word of each part, int64 [n].
        size: words in a part.

    Returns:
        int64 [n, size].
    """
    number = first[:, None] + torch.arange(size)
    return mix_(number.mul_(signed(GOLDEN_GAMMA)).add_(seed))


class Draw:
    """Uniform random numbers for one draw of all elements of a batch.

    A rejection method may take several attempts, each with uniforms of its own.

    Args:
        keys: int64 [B], one for each sample of the batch.
    """

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys

    def select(self, rows: slice | Tensor) -> Draw:
        """Return the same draw for some of the samples, a slice or int64 [b]."""
        return Draw(self.keys[rows])

    def uniform(self, shape: tuple[int, ...], attempt: int = 0) -> Tensor:
        """Return float64 uniforms in (0, 1) with 52 bits.

        Args:
            shape: [B, ...] of the draw, where B is the number of samples.
            attempt: number of the attempt; each gives new uniforms for all elements.
        """
        first_keys = fold_in(self.keys, attempt)
        second_keys = fold_in(first_keys, SECOND_KEY)
        num_samples = len(first_keys)
        num_elements = math.prod(shape[1:])
        counter = torch.arange(num_elements, device=first_keys.device).mul_(signed(GOLDEN_GAMMA))
        chunk_rows = max(1, CHUNK_ELEMENTS // max(1, num_elements))

        if num_samples <= chunk_rows or first_keys.device.type != "cpu":
            addresses = first_keys[:, None] + counter
            return hash_to_uniform_(addresses, second_keys[:, None]).view(shape)

        uniforms = torch.empty(num_samples, num_elements, dtype=torch.float64)
        for start in range(0, num_samples, chunk_rows):
            rows = slice(start, start + chunk_rows)
            addresses = first_keys[rows, None] + counter
            uniforms[rows] = hash_to_uniform_(addresses, second_keys[rows, None])
        return uniforms.view(shape)


class GeneratorDraw(Draw):
    """Uniform random numbers in [0, 1) from a torch generator: each call returns its next ones."""

    def __init__(self, generator: torch.Generator | None, device: torch.device) -> None:
        self._generator = generator
        self._device = device

    def uniform(self, shape: tuple[int, ...], attempt: int = 0) -> Tensor:
        """Return the generator's next float64 uniforms of a shape; `attempt` is not needed."""
        return torch.rand(
            shape,
            generator=self._generator,
            dtype=torch.float64,
            device=self._device,
        )


class StepStreams:
    """Random numbers of a batch of samples within one step; draws are numbered 1, 2, ...

    Args:
        keys: int64 [B], one for each sample of the batch.
    """

    __repr__ = format_arguments

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys
        self._num_draws = 0

    def next_draw(self) -> Draw:
        """Return the next draw of all samples; each sample must make equally many draws."""
        self._num_draws += 1
        return Draw(fold_in(self.keys, self._num_draws))


class SampleStreams:
    """Random numbers of a batch of samples, each a function of the seed and the sample's index.

    Args:
        seed: any integer.
        indices: int64 [B], the number k of each sample; random numbers are made on its device.

    Raises:
        ValueError: indices of another dtype or shape.

    Example:
        >>> batch = SampleStreams(seed=0, indices=torch.arange(10))
        >>> alone = SampleStreams(seed=0, indices=torch.tensor([4]))
        >>> uniforms = batch.step(3).next_draw().uniform((10, 2))
        >>> torch.equal(uniforms[4:5], alone.step(3).next_draw().uniform((1, 2)))
        True
    """

    __repr__ = format_arguments

    def __init__(self, seed: int, indices: Tensor) -> None:
        if indices.ndim != 1 or indices.dtype != torch.int64:
            shape = tuple(indices.shape)
            raise ValueError(
                f"indices must be an int64 vector, not {indices.dtype} of shape {shape}",
            )
        self._keys = mix_((indices + 1).mul_(signed(GOLDEN_GAMMA)).add_(signed(seed)))

    def step(self, number: int) -> StepStreams:
        """Return the random numbers for one step of a sampler or of training."""
        return StepStreams(fold_in(self._keys, number))

    def fold_in(self, data: int) -> SampleStreams:
        """Return independent streams for one iteration of an outer loop; calls may be nested.

        They are a function of (seed, sample, data) and share no number with these streams.
        """
        return self._from_keys(fold_in(fold_in(self._keys, FOLDED_KEY), data))

    def select(self, rows: Tensor) -> SampleStreams:
        """Return the streams of some of the samples, int64 [b] or a mask, bool [B]."""
        return self._from_keys(self._keys[rows])

    def particles(self, num_particles: int) -> SampleStreams:
        """Return streams for P particles of every sample, [B * P], sample after sample.

        Particle p of sample k is a function of (seed, k, p), whatever the number of particles.
        """
        keys = fold_in(self._keys, PARTICLES_KEY)
        particle_keys = [fold_in(keys, particle) for particle in range(num_particles)]
        return self._from_keys(torch.stack(particle_keys, dim=1).flatten())

    @staticmethod
    def _from_keys(keys: Tensor) -> SampleStreams:
        streams = object.__new__(SampleStreams)
        streams._keys = keys
        return streams


RandomSource: TypeAlias = torch.Generator | StepStreams | None  # None: torch's global generator


def can_read_values(x: Tensor) -> bool:
    """Return whether the host can read the values of x without waiting for a device.

    If not, the code path must not depend on the values.
    """
    return x.device.type == "cpu"


def next_draw(generator: RandomSource, device: torch.device) -> Draw:
    """Return the uniforms for the next draw, from streams or from a torch generator on `device`."""
    if isinstance(generator, StepStreams):
        return generator.next_draw()
    return GeneratorDraw(generator, device)


def uniform(shape: tuple[int, ...], generator: RandomSource, device: torch.device) -> Tensor:
    """Draw float64 uniforms of shape [B, ...] in [0, 1), or from streams in (0, 1).

    Example:
        >>> step = SampleStreams(0, torch.arange(2)).step(0)
        >>> uniform((2, 3), step, torch.device("cpu")).shape
        torch.Size([2, 3])
    """
    return next_draw(generator, device).uniform(shape)

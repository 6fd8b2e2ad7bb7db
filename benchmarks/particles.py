"""How far guided and completed samples are from the laws they stand for, with exact denoisers: `docs/sampling.md`.

    python benchmarks/particles.py

Total variation of draws to the exact law, and of as many draws from that law itself; about ten minutes on one core.
"""

from __future__ import annotations

import numpy as np
import torch

from blackout.diffusion.correctors import Correction, LevelCorrector
from blackout.diffusion.guidance import GuidedDenoiser
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.kernels import Trapezoidal
from blackout.diffusion.particles import GuidanceWeight, sample_particles
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.samplers import sample
from blackout.diffusion.schedules import logit_times
from blackout.laws.kernels import ExactDenoiser
from blackout.laws.toys import Array, Toy, pixel_pair, total_variation
from blackout.random import SampleStreams

DRAWS = 10_000
LEVELS = np.arange(16)
GRID = np.add.outer(LEVELS, LEVELS), np.add.outer(LEVELS, -LEVELS)
SHARES = 0.35, 0.65
CLASSES = {
    "one pixel": [np.exp(-((LEVELS - m) ** 2) / (2 * w**2)) + 1e-4 for m, w in ((5, 2.0), (9, 3.0))],
    "two pixels": [np.exp(-((one - m) ** 2) / 18) + 1e-4 for one, m in zip(GRID, (9, 4), strict=True)],
}


def distances(x: torch.Tensor, law: Array) -> str:
    """Total variation of draws [n, pixels] to a law, and of draws from the law itself."""
    drawn = np.bincount(np.ravel_multi_index(tuple(x.long().numpy().T), (16,) * x.shape[1]), minlength=len(law))
    n, rng = len(x), np.random.default_rng(0)
    floor = np.mean([total_variation(rng.multinomial(n, law) / n, law) for _ in range(8)])
    return f"{total_variation(drawn / n, law):.3f} ({floor:.3f})"


def guidance(name: str, scale: float, number: int) -> str:
    """Guided draws of the second class on the trapezoidal sampler's 25 steps."""
    given = [Toy(name, p) for p in CLASSES[name]]
    plain = Toy(
        name, sum(share * toy.p0 for share, toy in zip(SHARES, given, strict=True)).reshape(CLASSES[name][0].shape)
    )
    law = plain.p0 ** (1 - scale) * given[1].p0 ** scale
    denoiser = GuidedDenoiser(ExactDenoiser(given[1]), ExactDenoiser(plain), scale, 15)
    mean = torch.tensor(plain.mean ** (1 - scale) * given[1].mean ** scale)
    where = (PureDeath(15), logit_times(25, 5.0, -7.0), (DRAWS, plain.pixels), SampleStreams(0, torch.arange(DRAWS)))
    if number == 1:
        return distances(sample(denoiser, *where, kernel=Trapezoidal(), mean=mean), law / law.sum())
    drawn = sample_particles(denoiser, *where, kernel=Trapezoidal(), mean=mean, number=number,
                             potentials=[GuidanceWeight(PureDeath(15))])  # fmt: skip
    return distances(drawn.samples, law / law.sum())


def completion(y: int, number: int, correctors: int = 0) -> str:
    """The second pixel of the pair of `blackout.laws` given that the first is y."""
    pair = pixel_pair()
    law = pair.p0.reshape(16, 16)[y] / pair.p0.reshape(16, 16)[y].sum()
    n = DRAWS if number < 64 else DRAWS // 2
    where = (PureDeath(15), logit_times(25, 5.0, -7.0), (n, 2), SampleStreams(0, torch.arange(n)))
    known = KnownElements(torch.full((1, 2), y, dtype=torch.uint8), torch.tensor([[True, False]]))
    how = {"kernel": Trapezoidal(), "known": known, "mean": torch.tensor(pair.mean),
           "correction": Correction(correctors, LevelCorrector())}  # fmt: skip
    if number == 1:
        return distances(sample(ExactDenoiser(pair), *where, **how)[:, 1:], law)
    return distances(sample_particles(ExactDenoiser(pair), *where, number=number, **how).samples[:, 1:], law)


def main() -> None:
    """Print the tables as Markdown."""
    print("| guidance | " + " | ".join(f"{name}, {p} particles" for name in CLASSES for p in (1, 4, 16)) + " |")
    for scale in (1.5, 2.0, 3.0, 5.0):
        cells = [guidance(name, scale, number) for name in CLASSES for number in (1, 4, 16)]
        print(f"| {scale:g} | " + " | ".join(cells) + " |", flush=True)
    print("| known pixel | overwritten | 4 correctors | 16 correctors | 4 particles | 16 particles | 64 particles |")
    for y in (2, 5, 8, 12):
        cells = [completion(y, 1, steps) for steps in (0, 4, 16)] + [completion(y, number) for number in (4, 16, 64)]
        print(f"| {y} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

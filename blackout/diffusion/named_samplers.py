"""Samplers by the names they have on the command line, with the settings they have there (conf/sampler)."""

from __future__ import annotations

from dataclasses import replace

from blackout.diffusion.kernels import (
    BinomialBridge,
    BirthDeathBridge,
    Kernel,
    LevelBridge,
    PanjerLeap,
    PoissonLeap,
    PosteriorBridge,
    PosteriorTrapezoidal,
    TauLeap,
    Trapezoidal,
    nearest_rounding,
)
from blackout.diffusion.samplers import Sampler
from blackout.errors import UserError

_KERNELS: dict[str, tuple[Kernel, int]] = {
    "binomial_bridge": (BinomialBridge(), 1000),
    "binomial_bridge_nearest": (BinomialBridge(nearest_rounding), 1000),
    "birth_death_bridge": (BirthDeathBridge(), 1000),
    "level_bridge": (LevelBridge(), 1000),
    "panjer": (PanjerLeap(), 1000),
    "poisson": (PoissonLeap(), 1000),
    "posterior_bridge": (PosteriorBridge(), 1000),
    "posterior_trapezoidal": (PosteriorTrapezoidal(), 100),
    "tau_leap": (TauLeap(), 1000),
    "trapezoidal": (Trapezoidal(), 100),
}
"""Name -> kernel and number of steps."""


def named_sampler(name: str) -> Sampler:
    """The sampler that `sampler=<name>` is on the command line.

    Raises:
        UserError: there is none of that name.
    """
    if name not in _KERNELS:
        raise UserError(f"sampler={name!r}: there is no such sampler, only {', '.join(_KERNELS)}")
    return Sampler(*_KERNELS[name])


def chosen_sampler(own: Sampler, asked: Sampler | str | None, num_steps: int | None) -> Sampler:
    """The sampler a user asks for: by itself, by name, or a model's own; with another number of steps if one is given.

    Raises:
        UserError: there is none of that name.
        ValueError: not a positive number of steps.
    """
    sampler = named_sampler(asked) if isinstance(asked, str) else asked or own
    return sampler if num_steps is None else replace(sampler, num_steps=num_steps)

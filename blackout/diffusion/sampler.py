"""Settings of a sampler: its kernel, steps, grid, start, correction and guidance.

The loop that follows them is in `blackout.diffusion.sampling`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from blackout.component import Stats, component
from blackout.config.descriptions import to_description
from blackout.config.instantiate import instantiate
from blackout.diffusion.correctors import MAX_STEPS, NO_CORRECTION, Correction
from blackout.diffusion.grid_ends import GridEnds
from blackout.diffusion.guidance import Guidance
from blackout.diffusion.kernels import Kernel, StatefulKernel, Trapezoidal
from blackout.diffusion.schedule import Schedule
from blackout.errors import ensure, refuse
from blackout.representation import format_fields
from blackout.training.model import evaluating

# defaults of `Sampler`; they are frozen, so that samplers can share them
TRAPEZOIDAL = Trapezoidal()
NO_GUIDANCE = Guidance()


def choose_kernel(settings: Mapping[str, Any], stats: Stats) -> dict[str, Any]:
    """Return kernel and number of steps where the settings leave them open, as `sampler=counts`.

    Counts whose distribution is predicted are drawn from it by `PosteriorBridge`. That kernel is of
    first order, and takes twice as many steps as the second-order default.

    References: this project; checked in tests/cli/test_configs.py.

    Args:
        settings: of the sampler.
        stats: of the data; `predicts_distribution` is that of the head.
    """
    uses_bridge = "kernel" not in settings and stats.get("predicts_distribution", False)
    choices: dict[str, Any] = {}
    if uses_bridge:
        choices["kernel"] = {"_target_": "blackout.diffusion.PosteriorBridge"}
    if settings.get("num_steps", 0) is None:
        choices["num_steps"] = 100 if uses_bridge else 50
    return choices


@component("sampler", from_stats=choose_kernel)
@dataclass(frozen=True)
class Sampler:
    """Settings of sampling; the defaults are those of `sampler=trapezoidal`.

    Args:
        kernel: the reverse step.
        num_steps: steps along the grid; each costs as many network evaluations as kernel and
            correctors need.
        grid: num_steps -> times; None follows the family of the training schedule.
        poisson_start: start from Poisson(q_T E[X_0]) rather than from black.
        correction: corrector steps after every step of the kernel.
        guidance: how samples are guided to their classes.
        batch_size: samples per evaluation of the network.
        keep_dropout: leave the network in train mode, as the reference code did.
        bfloat16: evaluate the network in bfloat16 autocast on devices that have it; counts and
            draws stay exact.
        inpainting_particles: of every sample with known elements; 1 overwrites them and uses no
            weights; None is 16 where particles can be weighted, else 1.

    Raises:
        ValueError: a number is out of range.
    """

    models: ClassVar[str] = "models of counts"  # models that it fits, for messages
    choices: ClassVar[str] = "sampler=trapezoidal, poisson, ..."  # its names, for messages
    kernel: Kernel = TRAPEZOIDAL
    num_steps: int = 100
    grid: Callable[[int], Tensor] | None = None
    poisson_start: bool = True
    correction: Correction = NO_CORRECTION
    guidance: Guidance = NO_GUIDANCE
    batch_size: int = 256
    keep_dropout: bool = False
    bfloat16: bool = False
    inpainting_particles: int | None = None

    def __repr__(self) -> str:
        return format_fields(self, always=("kernel", "num_steps"))

    def __post_init__(self) -> None:
        check_number(self.num_steps, "num_steps")
        check_number(self.batch_size, "batch_size")
        if self.inpainting_particles is not None:
            check_number(self.inpainting_particles, "inpainting_particles")

    def times(self, schedule: Schedule) -> Tensor:
        """Return the grid, float64 [T + 1]: the sampler's, or that of the training schedule."""
        grid = self.grid or schedule.grid
        return grid(self.num_steps)

    @property
    def memoryless(self) -> Sampler:
        """This sampler, with a memoryless kernel in place of a stateful one.

        Runs need it if particles are resampled or elements are overwritten between steps.
        """
        if isinstance(self.kernel, StatefulKernel):
            return replace(self, kernel=self.kernel.memoryless)
        return self

    def earliest_time(self, ends: GridEnds) -> float:
        """Return the earliest final time at which samples of such data may start."""
        if self.poisson_start and isinstance(self.kernel, StatefulKernel):
            return self.kernel.earliest_time(ends)
        return ends.earliest_time()

    def evaluating(self, network: nn.Module) -> AbstractContextManager[None]:
        """Return a context that evaluates a network with the dropout and precision set here.

        See `blackout.training.model.evaluating`.
        """
        return evaluating(network, self.keep_dropout, self.bfloat16)


def check_number(value: Any, name: str) -> None:
    """Raise ValueError unless value is a whole number in 1..1,000,000."""
    ensure(
        type(value) is int and 1 <= value <= MAX_STEPS,
        f"{name} must be a whole number in 1..{MAX_STEPS:,}, not {value!r}",
    )


def load_sampler(name: str) -> Sampler:
    """Return the sampler of `sampler=<name>` on the command line, with its corrector.

    Raises:
        UserError: there is none of that name.
    """
    # Hydra is imported here, so that the package does without it
    from omegaconf import OmegaConf

    from blackout.config.choices import list_choices, load_choice
    from blackout.config.compose import compose

    names = [
        choice for choice in list_choices("sampler") if "kernel" in load_choice("sampler", choice)
    ]
    refuse(
        name not in names,
        f"sampler={name!r}: there is no such sampler, only {', '.join(names)}",
    )
    config: Any = OmegaConf.to_container(compose("sample", [f"sampler={name}"])["sampler"])
    return instantiate(_drop_null(config), "sampler")


def _drop_null(settings: Any) -> Any:
    """Return nested settings without those that are null."""
    if not isinstance(settings, Mapping):
        return settings
    return {name: _drop_null(value) for name, value in settings.items() if value is not None}


def choose_sampler(
    default: Sampler, sampler: Sampler | str | None, num_steps: int | None
) -> Sampler:
    """Return the requested sampler, or the model's, with the requested number of steps.

    A name stands for a kernel with its corrector and its usual number of steps. The grid and
    everything else stay the model's. The name of the kernel that the model has changes nothing.

    Args:
        default: the model's sampler.
        sampler: a sampler, a name from the command line, or None for the model's.
        num_steps: None for that of the sampler.

    Raises:
        UserError: there is none of that name.
        ValueError: not a positive number of steps.
    """
    sampler = sampler or default
    if isinstance(sampler, str):
        named = load_sampler(sampler)
        if type(named) is not type(default):
            sampler = named
        elif _same_kernel(named.kernel, default.kernel):
            sampler = default
        else:
            correction = replace(default.correction, corrector=named.correction.corrector)
            sampler = replace(
                default, kernel=named.kernel, correction=correction, num_steps=named.num_steps
            )
    return sampler if num_steps is None else replace(sampler, num_steps=num_steps)


def _same_kernel(first: Kernel, second: Kernel) -> bool:
    """Return whether two kernels are of the same class and have equal arguments."""
    same_class = type(first) is type(second)
    return same_class and to_description(first, "kernel") == to_description(second, "kernel")

"""The settings of a sampler: refused values, and the kernel used when steps have no memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blackout.diffusion.correctors import Correction
from blackout.diffusion.grid_ends import GridEnds
from blackout.diffusion.guidance import Guidance
from blackout.diffusion.kernels import MultistepLeap, PoissonLeap, Trapezoidal
from blackout.diffusion.sampler import Sampler, choose_sampler


@pytest.mark.parametrize(
    "options, word",
    [
        ({"num_steps": 0}, "num_steps"),
        ({"num_steps": None}, "num_steps"),
        ({"num_steps": 2.0}, "num_steps"),
        ({"batch_size": None}, "batch_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"inpainting_particles": 0}, "inpainting_particles"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Sampler(**options)


@pytest.mark.parametrize(
    "part, options, word",
    [
        (Guidance, {"scale": -1.0}, "scale"),
        (Guidance, {"scale": float("nan")}, "scale"),
        (Guidance, {"logit_range": [3, 1]}, "logit_range"),
        (Correction, {"steps": -1}, "steps"),
        (Correction, {"logit_range": [1]}, "logit_range"),
    ],
)
def test_invalid_parts_are_refused(part: type, options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        part(**options)


def test_a_memoryless_sampler_differs_only_in_the_kernel() -> None:
    sampler = Sampler(MultistepLeap(), 7, guidance=Guidance(2.0))
    assert sampler.memoryless == Sampler(Trapezoidal(), 7, guidance=Guidance(2.0))
    assert Sampler(PoissonLeap()).memoryless == Sampler(PoissonLeap())


def test_only_a_kernel_that_corrects_a_poisson_start_may_start_earlier() -> None:
    ends = GridEnds(total_dispersion=1.0, covariance_excess=10.0, max_count=255)
    usual = ends.earliest_time()
    assert Sampler(MultistepLeap()).earliest_time(ends) < usual
    assert Sampler(MultistepLeap(), poisson_start=False).earliest_time(ends) == usual
    assert Sampler(PoissonLeap()).earliest_time(ends) == usual
    ends.check(torch.tensor(usual))
    with pytest.raises(ValueError, match="too early"):
        ends.check(torch.tensor(usual - 0.1))


def test_a_named_sampler_keeps_the_other_settings_of_the_model() -> None:
    model_sampler = Sampler(MultistepLeap(), 7, correction=Correction(2), guidance=Guidance(2.0))
    assert choose_sampler(model_sampler, "multistep", None) is model_sampler
    assert choose_sampler(model_sampler, "poisson", 9) == Sampler(
        PoissonLeap(), 9, correction=Correction(2), guidance=Guidance(2.0)
    )

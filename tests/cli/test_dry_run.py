"""Before training, every kind of draw of a run is tried with one sample and a few evaluations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from blackout import from_data
from blackout.cli.dry_run import dry_run
from blackout.data import digits
from blackout.diffusion import CountDiffusion, Guidance, PoissonLeap, Sampler
from blackout.errors import UserError
from blackout.networks import ResidualMLP

NO_CALLBACKS: dict[str, Any] = {"callbacks": {}}


def model(num_steps: int = 1000, **settings: Any) -> Any:
    """A small model of the digits that is drawn by Poisson leaps."""
    sampler = Sampler(PoissonLeap(), num_steps=num_steps)
    return from_data(digits(), network=ResidualMLP, sampler=sampler, **settings).model


def previews(**settings: Any) -> dict[str, Any]:
    """Settings of a run with previews."""
    return {"callbacks": {"samples": settings}}


def test_few_evaluations_of_one_sample_whatever_the_number_of_steps() -> None:
    evaluated = list[int]()

    def note(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        evaluated.append(len(arguments[0]))

    tried = model(num_steps=1000)
    for network in (tried.network, tried.averaged):
        network.register_forward_pre_hook(note)
    dry_run(previews(num_steps=500), tried, CountDiffusion())
    assert set(evaluated) == {1}
    assert (
        len(evaluated) <= 4
    )  # components, and the first steps of samples, of closing samples and of previews


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_slow_dry_run_prints_a_line(
    seconds: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("blackout.cli.dry_run.SECONDS_WITHOUT_LINE", seconds)
    dry_run(NO_CALLBACKS, model(), CountDiffusion())
    assert capsys.readouterr().out.count("before training") == (seconds == 0)


def test_weights_and_modes_stay_as_they_are() -> None:
    tried = model()
    state_before = {name: value.clone() for name, value in tried.state_dict().items()}
    modes = [part.training for part in tried.modules()]
    dry_run(NO_CALLBACKS, tried, CountDiffusion())
    assert all(torch.equal(value, state_before[name]) for name, value in tried.state_dict().items())
    assert [part.training for part in tried.modules()] == modes


@pytest.mark.parametrize("num_steps", [0, -1, 10**9])
def test_previews_in_impossible_numbers_of_steps_are_refused(num_steps: int) -> None:
    with pytest.raises(UserError, match="num_steps"):
        dry_run(previews(num_steps=num_steps), model(), CountDiffusion())


def test_a_network_without_numbers_is_refused_before_training() -> None:
    tried = model()
    with torch.no_grad():
        for parameter in tried.averaged.parameters():
            parameter.fill_(torch.nan)
    with pytest.raises(UserError, match="not finite"):
        dry_run(NO_CALLBACKS, tried, CountDiffusion())


def test_guidance_needs_classes_in_scripts_too() -> None:
    guided = Sampler(PoissonLeap(), num_steps=4, guidance=Guidance(2.0))
    with pytest.raises(UserError, match="guidance needs classes to guide towards"):
        from_data(digits(), network=ResidualMLP, sampler=guided)
    family = CountDiffusion()
    conditional = from_data(digits(), network=ResidualMLP, sampler=guided, conditional=True).model
    family.check_sampler(conditional, scored=False)
    with pytest.raises(UserError, match="samples that are scored"):
        family.check_sampler(conditional, scored=True)

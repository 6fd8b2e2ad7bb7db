"""Every choice of metrics composes and starts without loading anything."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from blackout.config.choices import list_choices
from blackout.evaluation import ImageScorer
from blackout.files import CONF

CHOICES = {
    "inception": [],
    "digits": [],
    "fid": [],
    "mnist": [],
    "custom": [
        "metrics.extractor.module._target_=torch.nn.Flatten",
        "metrics.extractor.num_features=192",
    ],
}


def composed(choice: str, overrides: list[str]) -> object:
    """Return the composed metrics of a choice."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=[*f"metrics={choice}".split(), *overrides]).metrics


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_can_be_built(choice: str) -> None:
    scorer = instantiate(composed(choice, CHOICES[choice]))
    assert isinstance(scorer, ImageScorer) and scorer.reference == "train"


def test_the_choice_none_is_none() -> None:
    assert composed("none", []) is None


def test_every_file_is_tested() -> None:
    assert set(list_choices("metrics")) == {
        "none",
        "model",
        "counts",  # no images: tests/cli/test_counts.py
        "permutations",  # no images: tests/permutations
        *(name.split()[0] for name in CHOICES),
    }

"""The datasets and scores of this package implement the protocols; mypy checks the types."""

from __future__ import annotations

import inspect

import pytest

from blackout import protocols
from blackout.data import CountData, digits
from blackout.diffusion.draw import CountDraw
from blackout.evaluation import ImageScorer, ImageScores


def as_source(data: CountData) -> protocols.Source:
    """Return a dataset as a source, for mypy."""
    return data


def as_scorer(scorer: ImageScorer) -> protocols.Scorer:
    """Return a scorer as its protocol, for mypy."""
    return scorer


def as_draw(draw: CountDraw) -> protocols.Draw:
    """Return a draw as its protocol, for mypy."""
    return draw


def as_scores(scores: ImageScores) -> protocols.Scores:
    """Return scores as their protocol, for mypy."""
    return scores


@pytest.mark.parametrize(
    ("component", "protocol"),
    [
        (CountData, protocols.Source),
        (CountDraw, protocols.Draw),
        (ImageScorer, protocols.Scorer),
        (ImageScores, protocols.Scores),
    ],
)
def test_methods_have_the_parameters_of_their_protocol(component: type, protocol: type) -> None:
    for name, method in inspect.getmembers(protocol, inspect.isfunction):
        if not name.startswith("_"):
            required = list(inspect.signature(method).parameters)
            assert (
                list(inspect.signature(getattr(component, name)).parameters)[: len(required)]
                == required
            ), name


def test_a_dataset_describes_itself() -> None:
    data = digits()
    sizes = "1,258 training + 180 validation + 359 test samples"
    assert str(as_source(data)) == f"digits, {sizes}, shape (1, 8, 8), counts 0..16"
    assert data.facts == {
        "shape": [1, 8, 8],
        "max_count": 16,
        "mean": data.mean,
        "std": data.std,
        "total_dispersion": pytest.approx(3.8416, abs=1e-4),
        "covariance_excess": pytest.approx(55.42, rel=0.05),
        "num_classes": 10,
    }
    assert (data.size("train"), data.size("test")) == (1258, 359)

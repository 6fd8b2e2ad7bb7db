"""What the scores and datasets of this package are to the programs, checked by mypy where they are written as such."""

from __future__ import annotations

import inspect

import pytest

from blackout import protocols
from blackout.data import CountData, digits
from blackout.diffusion.draw import CountDraw
from blackout.evaluation import ImageScores, Scorer


def as_source(data: CountData) -> protocols.Source:
    return data


def as_scorer(scorer: Scorer) -> protocols.Scorer:
    return scorer


def as_draw(draw: CountDraw) -> protocols.Draw:
    return draw


def as_scores(scores: ImageScores) -> protocols.Scores:
    return scores


@pytest.mark.parametrize(
    ("own", "protocol"),
    [
        (CountData, protocols.Source),
        (CountDraw, protocols.Draw),
        (Scorer, protocols.Scorer),
        (ImageScores, protocols.Scores),
    ],
)
def test_methods_take_what_the_protocol_says(own: type, protocol: type) -> None:
    for name, method in inspect.getmembers(protocol, inspect.isfunction):
        if not name.startswith("_"):
            asked = list(inspect.signature(method).parameters)
            assert list(inspect.signature(getattr(own, name)).parameters)[: len(asked)] == asked, name


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

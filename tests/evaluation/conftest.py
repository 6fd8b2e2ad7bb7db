from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scores import write_inception_weights
from blackout.data import digits
from blackout.evaluation.extractors import Classifier


@pytest.fixture(scope="session")
def inception_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "inception.pth"
    write_inception_weights(path)
    return path


@pytest.fixture(scope="session")
def classifier_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("classifier")


@pytest.fixture(scope="session")
def digits_classifier(classifier_cache: Path) -> Classifier:
    return Classifier(digits, cache=classifier_cache)

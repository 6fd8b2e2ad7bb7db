"""Feature extractors: frozen weights, precision, refused files, and cached classifiers."""

from __future__ import annotations

import urllib.error
from pathlib import Path

import pytest
import torch
from torch import nn

from blackout.data import CountData, digits
from blackout.errors import UserError
from blackout.evaluation.extractors import (
    Classifier,
    Inception,
    ModuleExtractor,
    full_float32,
    to_rgb,
    to_uint8,
)
from tests.evaluation.networks import (
    CLASSES,
    FEATURES,
    TinyNet,
    colour_data,
    images,
    tiny_extractor,
)


def offline(*_: object, **__: object) -> None:
    """Fail like a download without a network."""
    raise urllib.error.URLError("no route to host")


def test_module_extractor_freezes_and_evaluates() -> None:
    module = nn.Sequential(TinyNet()).train()
    extractor = ModuleExtractor(module, "mine", FEATURES, CLASSES)
    assert not module.training and not any(p.requires_grad for p in module.parameters())
    features, logits = extractor(images(5, 0))
    assert features.shape == (5, FEATURES) and logits is not None and logits.shape == (5, CLASSES)


def test_the_identity_depends_on_the_weights() -> None:
    assert tiny_extractor(0).identity == tiny_extractor(0).identity != tiny_extractor(1).identity


def test_extractors_always_use_full_precision() -> None:
    expected = tiny_extractor()(images(3, 0)).features
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(tiny_extractor()(images(3, 0)).features, expected)
    precision = torch.get_float32_matmul_precision()
    for surrounding in ("high", "highest"):
        torch.set_float32_matmul_precision(surrounding)
        try:
            before = torch.backends.cuda.matmul.fp32_precision
            with full_float32("cpu"):
                assert torch.backends.cuda.matmul.fp32_precision == "ieee"
            assert torch.backends.cuda.matmul.fp32_precision == before
            assert torch.backends.cuda.matmul.allow_tf32 == (surrounding == "high")
        finally:
            torch.set_float32_matmul_precision(precision)


def test_module_extractor_refuses_wrong_widths_and_names() -> None:
    with pytest.raises(UserError, match=r"features must be a tensor of shape \[2, 7\]"):
        ModuleExtractor(TinyNet(), "mine", 7)(images(2, 0))
    with pytest.raises(UserError, match=r"logits must be a tensor of shape \[2, 3\]"):
        ModuleExtractor(TinyNet(), "mine", FEATURES, 3)(images(2, 0))
    for name in ("inception", "a b", ""):
        with pytest.raises(UserError, match="name"):
            ModuleExtractor(TinyNet(), name, FEATURES)


def test_missing_inception_weights_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(UserError) as error:
        Inception()
    message = str(error.value)
    assert (
        "\n" not in message
        and "no route to host" in message
        and "metrics.extractor.weights=" in message
    )
    assert str(tmp_path / "checkpoints" / "weights-inception-2015-12-05-6726825d.pth") in message


def test_inception_refuses_bad_weights(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    with pytest.raises(UserError, match="no such file"):
        Inception(path)
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(UserError, match="damaged"):
        Inception(path)
    torch.save({"weight": torch.zeros(3)}, path)
    with pytest.raises(UserError, match="does not have the weights"):
        Inception(path)


def test_inception_weights_cannot_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return open, (str(tmp_path / "trace"), "w")  # type: ignore[return-value]

    torch.save({"fc.bias": Evil()}, tmp_path / "w.pth")
    with pytest.raises(UserError, match="damaged or is not"):
        Inception(tmp_path / "w.pth")
    assert not (tmp_path / "trace").exists()


@pytest.mark.deep
def test_classifier_is_accurate(digits_classifier: Classifier) -> None:
    data = digits()
    _, logits = digits_classifier(to_rgb(to_uint8(data.test, data.max_count)))
    assert logits is not None
    # about 98.6 % of 359 images, with a standard error of 0.6 %
    assert float((logits.argmax(1) == data.test_labels).double().mean()) > 0.96
    assert digits_classifier.name == "digits" and digits_classifier.num_classes == 10


def test_classifier_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blackout.evaluation.extractors.STEPS", 10)
    first = Classifier(digits, cache=tmp_path)

    def refuse_training(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("blackout.evaluation.extractors._train", refuse_training)
    state = torch.get_rng_state()
    cached = Classifier(digits, cache=tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert cached.identity == first.identity
    with pytest.raises(AssertionError, match="trained again"):
        Classifier(digits, seed=1, cache=tmp_path)


def test_classifier_training_is_reproducible_and_survives_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blackout.evaluation.extractors.STEPS", 3)
    data = digits()
    assert data.train_labels is not None
    assert data.test_labels is not None
    small = CountData(
        "few", data.train[:90], data.test[:20], 16, data.train_labels[:90], data.test_labels[:20]
    )
    state = torch.get_rng_state()
    first = Classifier(lambda: small, cache=tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    assert Classifier(lambda: small, cache=tmp_path).identity == first.identity
    assert first(images(2, 0, size=20)).features.shape == (2, 64)


def test_classifier_needs_labelled_grey_images() -> None:
    with pytest.raises(UserError, match="labelled grey images"):
        Classifier(colour_data)

"""The choice of image scores, and the single pass over the images."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from blackout.data import CountData, digits
from blackout.errors import UserError
from blackout.evaluation import (
    ImageScorer,
    ImageScores,
    Reference,
    copula_samples,
    dataset_reference,
    summarise_seeds,
    write_reference,
)
from blackout.evaluation.extractors import Classifier, Features, ModuleExtractor
from tests.evaluation.networks import FEATURES, TinyNet, colour_data, images, tiny_extractor

ALL = ["fd", "is", "kd", "prdc", "classes"]


def make_scorer(tmp_path: Path, scores: list[str] = ALL, **changes: object) -> ImageScorer:
    """Return a scorer with a tiny extractor."""
    settings: dict[str, object] = {"cache": tmp_path, **changes}
    return ImageScorer(tiny_extractor, scores, **settings)  # type: ignore[arg-type]


def compute_scores(
    run: ImageScores, samples: Tensor, batch: int = 32, order: Tensor | None = None
) -> dict[str, float]:
    """Update a run in batches and return the scores."""
    for indices in (torch.arange(len(samples)) if order is None else order).split(batch):
        run.update({"samples": samples[indices]}, indices)
    return run.compute()


def test_values_do_not_depend_on_batches_or_order(tmp_path: Path) -> None:
    samples = images(90, 7, spread=2)
    choice = make_scorer(tmp_path)
    large_batch = compute_scores(choice.begin(colour_data(), 90), samples, batch=90)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    small_batches = compute_scores(choice.begin(colour_data(), 90), samples, batch=7, order=order)
    assert large_batch == pytest.approx(small_batches, rel=1e-6)
    assert {
        "frechet_distance_tiny",
        "is_tiny",
        "is_tiny_std",
        "kernel_distance_tiny",
        "kernel_distance_tiny_std",
        "precision_tiny",
    } < large_batch.keys()
    assert sum(large_batch[f"class_share_tiny_{label}"] for label in range(10)) == pytest.approx(1)
    assert not any("fid" in name or "kid" in name for name in large_batch)


def test_each_image_is_extracted_once(tmp_path: Path) -> None:
    batches = []

    class RecordingExtractor(ModuleExtractor):
        def __call__(self, images: Tensor) -> Features:
            batches.append(images)
            return super().__call__(images)

    choice = ImageScorer(
        lambda: RecordingExtractor(TinyNet(), "tiny", FEATURES, 10), ALL, cache=tmp_path
    )
    run = choice.begin(colour_data(), 90)
    batches.clear()
    compute_scores(run, images(90, 0))
    run.compute()
    assert sum(map(len, batches)) == 90
    assert all(batch.dtype is torch.uint8 for batch in batches)


def test_reset_clears_a_run(tmp_path: Path) -> None:
    choice = make_scorer(tmp_path)
    run = choice.begin(colour_data(), 60)
    compute_scores(run, images(60, 1))
    run.reset()
    assert compute_scores(run, images(60, 2)) == compute_scores(
        choice.begin(colour_data(), 60), images(60, 2)
    )


def test_training_and_held_out_data_score_better_than_wrong_samples(tmp_path: Path) -> None:
    data = colour_data(400, 100)
    choice = make_scorer(tmp_path, ["fd", "kd", "prdc"])
    train, held_out, wrong = (
        compute_scores(choice.begin(data, 100), x)
        for x in (data.train[:100], data.test, images(100, 3, spread=4))
    )
    assert (
        train["frechet_distance_tiny"] < wrong["frechet_distance_tiny"]
        and held_out["frechet_distance_tiny"] < wrong["frechet_distance_tiny"]
    )
    assert held_out["kernel_distance_tiny"] < wrong["kernel_distance_tiny"]
    assert train["precision_tiny"] == 1


def test_counts_are_mapped_to_bytes_as_provenance_records(tmp_path: Path) -> None:
    data = colour_data()
    coarse = CountData("coarse", data.train // 16, data.test // 16, 15)
    run = make_scorer(tmp_path, ["fd"]).begin(coarse, 60)
    value = compute_scores(run, coarse.test)["frechet_distance_tiny"]
    direct = CountData("direct", coarse.train * 17, coarse.test * 17, 255)
    assert (
        value
        == compute_scores(make_scorer(tmp_path, ["fd"]).begin(direct, 60), direct.test)[
            "frechet_distance_tiny"
        ]
    )
    assert "0..15" in run.provenance()["images"]


def test_provenance_is_plain_and_complete(tmp_path: Path) -> None:
    provenance = make_scorer(tmp_path, reference="test").begin(colour_data(), 50).provenance()
    assert json.loads(json.dumps(provenance)) == provenance
    assert (
        provenance["reference"]["split"] == "test"
        and provenance["reference"]["dataset"] == "colours"
    )
    assert provenance["extractor"]["identity"] == tiny_extractor().identity
    assert provenance["num_samples"] == 50


def test_held_out_images_are_scored_like_samples(tmp_path: Path) -> None:
    choice = make_scorer(tmp_path)
    data = colour_data()
    held_out = choice.held_out(data, 50)
    assert held_out == {
        "num_samples": 50,
        "values": compute_scores(choice.begin(data, 50), data.test[:50], batch=512),
    }
    with pytest.warns(
        UserWarning, match="scores of real images are left out: .* needs at least 10 samples"
    ):
        assert choice.held_out(data, 9) is None
    with_test_reference = make_scorer(tmp_path, ["fd"], reference="test").held_out(data, 50)
    # training images are scored, not the reference itself
    assert (
        with_test_reference is not None
        and with_test_reference["values"]["frechet_distance_tiny_test"] > 0.01
    )


def test_scores_with_test_images_as_reference_have_separate_names(tmp_path: Path) -> None:
    """During training the reference is the validation images, with a third set of names."""
    data = colour_data()
    x = images(60, 5)
    with_training_reference = compute_scores(make_scorer(tmp_path).begin(data, 60), x)
    against_test = compute_scores(make_scorer(tmp_path, reference="test").begin(data, 60), x)
    against_val = compute_scores(
        make_scorer(tmp_path, reference="test").begin(data, 60, split="val"), x
    )
    with_reference = {
        f"{name}_tiny"
        for name in (
            "frechet_distance",
            "kernel_distance",
            "precision",
            "recall",
            "density",
            "coverage",
        )
    }
    with_reference |= {"kernel_distance_tiny_std"}
    without_reference = with_training_reference.keys() - with_reference
    assert against_test.keys() == without_reference | {
        name.replace("_tiny", "_tiny_test") for name in with_reference
    }
    assert against_val.keys() == without_reference | {
        name.replace("_tiny", "_tiny_val") for name in with_reference
    }
    assert all(against_test[name] == with_training_reference[name] for name in without_reference)
    test_images = compute_scores(make_scorer(tmp_path, reference="test").begin(data, 60), data.test)
    assert (
        abs(test_images["frechet_distance_tiny_test"])
        < 1e-6
        < with_training_reference["frechet_distance_tiny"]
    )
    # the reference of training images does not depend on the split
    assert (
        compute_scores(make_scorer(tmp_path).begin(data, 60, split="val"), x)
        == with_training_reference
    )


def test_the_baseline_is_scored_like_samples(tmp_path: Path) -> None:
    choice = make_scorer(tmp_path)
    data = colour_data()
    values = compute_scores(choice.begin(data, 60), copula_samples(data.train, 60), batch=512)
    assert choice.baseline(data, 60) == {
        "name": "gaussian_copula",
        "num_samples": 60,
        "values": values,
    }


def test_images_of_a_class_are_compared_with_those_of_the_class(tmp_path: Path) -> None:
    train = images(150, 1)
    test = images(90, 2)
    data = CountData("colours", train, test, 255, torch.arange(150) % 3, torch.arange(90) % 3)
    selected = data.select_condition(torch.tensor([2]))
    run = make_scorer(tmp_path, ["fd"]).begin(selected, 30)
    separate = CountData("alone", train[2::3], test[2::3], 255)
    assert compute_scores(run, test[2::3]) == compute_scores(
        make_scorer(tmp_path, ["fd"]).begin(separate, 30), test[2::3]
    )
    assert run.provenance()["reference"]["condition"] == {"classes": [2]}
    write_reference(
        tmp_path / "r.npz", dataset_reference(data, "train", tiny_extractor(), cache=tmp_path)
    )
    with pytest.raises(UserError, match=r"these samples are conditional on \{'classes': \[2\]\}"):
        make_scorer(tmp_path, ["fd"], reference=str(tmp_path / "r.npz")).begin(selected, 30)


def test_samples_are_read_in_the_layout_of_the_dataset(tmp_path: Path) -> None:
    samples = images(5, 0)
    np.savez(tmp_path / "samples.npz", samples=samples.permute(0, 2, 3, 1).numpy())
    assert torch.equal(
        make_scorer(tmp_path).read(tmp_path / "samples.npz", colour_data())["samples"], samples
    )
    np.save(tmp_path / "other.npy", np.zeros((5, 4, 4, 3), dtype=np.uint8))
    with pytest.raises(
        UserError, match=r"samples must have the shape \[3, 8, 8\] of the data, not \[3, 4, 4\]"
    ):
        make_scorer(tmp_path).read(tmp_path / "other.npy", colour_data())


def test_only_images_of_counts_can_be_scored(tmp_path: Path) -> None:
    energy = mock.Mock()
    energy.name = "ising"
    vectors = CountData(
        "vectors", torch.zeros(4, 6, dtype=torch.uint8), torch.zeros(4, 6, dtype=torch.uint8), 255
    )
    for source, message in (
        (energy, "ising: image scores need a dataset of counts"),
        (vectors, r"shape \(6,\)"),
    ):
        with pytest.raises(UserError, match=message):
            make_scorer(tmp_path, ["is"]).begin(source, 60)


def test_a_statistics_file_can_be_the_reference(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    np.savez(path, mu=np.zeros(FEATURES), sigma=np.eye(FEATURES))
    values = compute_scores(
        make_scorer(tmp_path, ["fd", "is"], reference=str(path)).begin(colour_data(), 30),
        images(30, 0),
    )
    assert values["frechet_distance_tiny"] > 0
    with pytest.raises(UserError, match="only mu and sigma"):
        make_scorer(tmp_path, ["fd", "kd"], reference=str(path)).begin(colour_data(), 60)


def test_memory_of_sums_does_not_grow(tmp_path: Path) -> None:
    run = make_scorer(tmp_path, ["fd", "is", "classes"]).begin(colour_data(), 50_000)

    def num_bytes() -> int:
        states = [state for part in run._sums.values() for state in part.metric_state.values()]
        return sum(state.nbytes for state in states if isinstance(state, Tensor))

    before = num_bytes()
    for indices in torch.arange(2000).split(500):
        run.update({"samples": images(500, 0)}, indices)
    assert num_bytes() == before < 1_000_000
    assert run._features is None


def test_scores_do_not_depend_on_random_state_or_inference_mode(tmp_path: Path) -> None:
    def make() -> ModuleExtractor:
        torch.rand(5)  # a constructor with random initial weights
        return tiny_extractor()

    state = torch.get_rng_state()
    with torch.inference_mode():
        run = ImageScorer(make, ALL, cache=tmp_path).begin(colour_data(), 60)
        in_inference_mode = compute_scores(run, images(60, 0).clone())
        run.reset()
    assert torch.equal(torch.get_rng_state(), state)
    assert compute_scores(run, images(60, 0)) == in_inference_mode


def test_too_few_samples_are_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"20 images with {FEATURES} features"):
        make_scorer(tmp_path, ["fd"]).begin(colour_data(), 20)


def test_subsets_of_the_kernel_distance_are_half_of_a_small_set(tmp_path: Path) -> None:
    for number, size in ((39, 19), (200, len(colour_data().train) // 2)):
        run = make_scorer(tmp_path, ["kd"]).begin(colour_data(), number)
        assert run.provenance()["options"]["kernel_subset_size"] == size <= number
        assert compute_scores(run, images(number, 7))["kernel_distance_tiny"] != 0


@pytest.mark.parametrize(
    ("scores", "count", "changes", "message"),
    [
        (["fid"], 60, {}, "defined by Inception features"),
        (["fd", "lpips"], 60, {}, "must be one or more"),
        ([], 60, {}, "must be one or more"),
        (["fd", "fd"], 60, {}, "each once"),
        (["fd"], 1, {}, "at least 2"),
        (["is"], 9, {}, "10 splits needs at least 10 samples"),
        (["prdc"], 5, {}, "at least 6 samples"),
        (["fd"], 60, {"reference": "valid"}, "no such file"),
        (["fd"], 60, {"batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_invalid_choices_are_refused_before_computing(
    tmp_path: Path, scores: list[str], count: int, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_scorer(tmp_path, scores, **changes).begin(colour_data(), count)


def test_missing_logits_and_mismatched_references_are_refused(tmp_path: Path) -> None:
    plain = functools.partial(ModuleExtractor, torch.nn.Flatten(), "flat", 192)
    with pytest.raises(UserError, match="need logits"):
        ImageScorer(plain, ["fd", "is"], cache=tmp_path).begin(colour_data(), 60)
    narrow = Reference(torch.zeros(3), torch.eye(3), None)
    with pytest.raises(UserError, match="reference has 3 features"):
        ImageScores(tiny_extractor(), 60, ["fd"], narrow)
    with pytest.raises(UserError, match="need a reference"):
        ImageScores(tiny_extractor(), 60, ["fd"])


def test_invalid_images_are_refused(tmp_path: Path) -> None:
    run = make_scorer(tmp_path, ["fd"]).begin(colour_data(), 60)
    indices = torch.arange(4)
    for invalid, message in [
        (torch.full((4, 3, 8, 8), float("nan")), "float32"),
        (images(4, 0).float() / 255, "never scaled floats"),
        (images(4, 0).int() - 300, r"must be in 0\.\.255"),
        (images(4, 0)[:, :2], "shape"),
        (images(4, 0).flatten(1), "shape"),
        (images(3, 0), "3 images came with 4 numbers"),
    ]:
        with pytest.raises(UserError, match=message):
            run.update({"samples": invalid}, indices)
    run.update({"samples": images(4, 0)}, indices)
    run.update({"samples": images(2, 0)}, indices[:2])
    with pytest.raises(
        UserError,
        match="60 samples were requested, but only 4 were scored, and 2 of them more than",
    ):
        run.compute()


@pytest.mark.deep
def test_digits_are_scored_without_a_download(
    digits_classifier: Classifier, tmp_path: Path
) -> None:
    """Held-out digits score far better than independent pixels, black images and noise."""
    data = digits()
    choice = ImageScorer(lambda: digits_classifier, ALL, cache=tmp_path)
    generator = torch.Generator().manual_seed(0)
    donors = torch.randint(len(data.test), data.test.shape, generator=generator)
    fakes = {
        "pixels": data.test.gather(0, donors),
        "noise": torch.randint(0, 17, data.test.shape, dtype=torch.uint8, generator=generator),
        "black": torch.zeros_like(data.test),
    }
    real = compute_scores(choice.begin(data, len(data.test)), data.test)
    assert real["classified_share_digits"] > 0.85 and real["is_digits"] > 6
    for name, fake in fakes.items():
        values = compute_scores(choice.begin(data, len(fake)), fake)
        assert values["frechet_distance_digits"] > 5 * real["frechet_distance_digits"], name
        assert (
            values["kernel_distance_digits"] > real["kernel_distance_digits"]
            and values["recall_digits"] < real["recall_digits"]
        ), name
        assert values["classified_share_digits"] < 0.3, name


def test_scores_over_seeds_are_summarised() -> None:
    spread = summarise_seeds([{"fid": 1.0}, {"fid": 2.0}, {"fid": 3.0}])
    assert spread["fid"] == pytest.approx({"mean": 2, "std": 1, "standard_error": 3**-0.5})

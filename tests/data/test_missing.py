"""Missing entries: masks, imputation for moments, and what ignores them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blackout.data import CountData, counts
from blackout.data.missing import impute_missing
from blackout.errors import UserError

GENERATOR = np.random.default_rng(0)
MATRIX = GENERATOR.poisson(GENERATOR.gamma(0.5, 9.0, (400, 4)))
SEEN = GENERATOR.random(MATRIX.shape) < 0.7


def test_observed_entries_are_mirrored_with_their_image() -> None:
    x0 = torch.arange(1, 25).view(2, 1, 3, 4)
    is_observed = torch.rand(x0.shape, generator=torch.Generator().manual_seed(0)) < 0.6
    data = CountData("x", x0, x0, 24, flip=True, train_observed=is_observed)
    batch = data.batch("train", torch.arange(2), torch.tensor([0.3, 0.7]))
    assert torch.equal(batch["observed"], torch.stack([is_observed[0].flip(-1), is_observed[1]]))
    assert torch.equal(batch["x0"], torch.stack([x0[0].flip(-1), x0[1]]) * batch["observed"])


@pytest.mark.parametrize("form", ["finite", "array", "file"])
def test_masks_of_every_form(tmp_path: Path, form: str) -> None:
    path = tmp_path / "x.npz"
    mask = "finite"
    if form == "finite":
        np.savez(path, counts=np.where(SEEN, MATRIX, np.nan))
    elif form == "array":
        np.savez(path, counts=MATRIX, seen=SEEN)
        mask = "seen"
    else:
        np.savez(path, counts=MATRIX)
        np.save(tmp_path / "seen.npy", SEEN)
        mask = str(tmp_path / "seen.npy")
    data = counts(path, mask=mask)
    assert (
        data.train_observed is not None
        and data.test_observed is not None
        and "missing" in str(data)
    )
    observed = torch.cat([data.train_observed, data.val_observed, data.test_observed])
    assert sorted(observed.sum(1).tolist()) == sorted(SEEN.sum(1).tolist())
    batch = data.batch("train", torch.arange(50))
    assert not batch["x0"][~batch["observed"]].any() and torch.equal(
        batch["observed"], data.train_observed[:50]
    )
    assert torch.equal(batch["x0"][batch["observed"]], data.train[:50][batch["observed"]])
    assert data.fingerprint("train") != CountData(
        "x", data.train, data.test, data.max_count
    ).fingerprint("train")


def test_validation_samples_are_imputed_from_training_data(tmp_path: Path) -> None:
    """Also elements that are missing in every validation sample."""
    rare = np.random.default_rng(1).random(MATRIX.shape) < 0.1
    np.savez(tmp_path / "x.npz", counts=MATRIX, seen=rare)
    data = counts(tmp_path / "x.npz", mask="seen", validation=4)
    assert data.val_observed is not None and not data.val_observed.any(0).all()
    for element in range(4):
        donors = data.train[data.train_observed[:, element], element]  # type: ignore[index]
        assert torch.isin(data.val[:, element][~data.val_observed[:, element]], donors).all()


def test_imputed_elements_keep_their_means_and_variances() -> None:
    means = torch.tensor([0.5, 2.0, 8.0])
    counts = torch.poisson(
        means.expand(20_000, 3), generator=torch.Generator().manual_seed(0)
    ).long()
    observed = torch.rand(counts.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    imputed = impute_missing(counts * observed, observed).double()
    assert torch.equal(imputed[observed], counts[observed].double())
    assert torch.allclose(imputed.mean(0), counts.double().mean(0), rtol=0.03)
    assert torch.allclose(imputed.var(0), counts.double().var(0), rtol=0.06)


def test_complete_samples_are_those_without_missing_entries() -> None:
    train = torch.from_numpy(MATRIX[:300])
    test = torch.from_numpy(MATRIX[300:])
    is_observed = torch.from_numpy(SEEN)
    data = CountData(
        "x", train, test, 200, train_observed=is_observed[:300], test_observed=is_observed[300:]
    )
    assert data.without_missing() is not None and len(data.without_missing().train) == int(
        is_observed[:300].all(1).sum()
    )
    assert CountData("x", train, test, 200).without_missing() is not None
    none = torch.zeros_like(is_observed[300:])
    assert (
        CountData(
            "x", train, test, 200, train_observed=is_observed[:300], test_observed=none
        ).without_missing()
        is None
    )


@pytest.mark.parametrize(
    ("array", "mask", "message"),
    [
        (
            np.where(SEEN, MATRIX, np.nan),
            None,
            "dataset.mask=finite treats these entries as missing",
        ),
        (MATRIX, "absent", "neither 'finite', nor an array of the file, nor a file"),
        (
            np.where(np.arange(4) > 0, MATRIX, np.nan),
            "finite",
            "element 0 is missing in every sample",
        ),
    ],
)
def test_impossible_masks_are_refused(
    tmp_path: Path, array: Any, mask: str | None, message: str
) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(UserError, match=message) as error:
        counts(tmp_path / "x.npy", mask=mask)
    assert "\n" not in str(error.value)


def test_masks_of_another_shape_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", counts=MATRIX, seen=SEEN[:9])
    with pytest.raises(UserError, match=r"shape of the counts, \[400, 4\], not \[9, 4\]"):
        counts(tmp_path / "x.npz", mask="seen")


@pytest.mark.parametrize(
    ("shape", "series", "expected"),
    [
        ((30, 2, 8), None, (2, 8)),
        ((30, 6, 8), None, (1, 6, 8)),
        ((30, 6, 8), True, (6, 8)),
        ((30, 2, 8), False, (1, 2, 8)),
        ((30, 1, 4, 4, 4), None, (1, 4, 4, 4)),
    ],
)
def test_series_images_and_volumes(
    tmp_path: Path, shape: Any, series: bool | None, expected: Any
) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).poisson(3.0, shape))
    data = counts(tmp_path / "x.npy", series=series)
    assert data.shape == expected and data.facts["sample_shape"] == list(shape[1:])


def test_series_are_distinguished_from_elements_without_order() -> None:
    time = torch.arange(40) / 6
    bursts = torch.poisson(4 + 3 * torch.sin(time + 6.3 * torch.rand(500, 1))).long()
    shuffled = bursts[:, torch.randperm(40, generator=torch.Generator().manual_seed(0))]
    # elements with a copy next to them
    copies = torch.cat([shuffled, shuffled[:, :8].repeat_interleave(2, 1)], 1)
    assert CountData("x", bursts, bursts, 99).is_series
    assert not any(CountData("x", counts, counts, 99).is_series for counts in (shuffled, copies))


def test_covariates_are_levels_of_equally_many_samples(tmp_path: Path) -> None:
    rows = [
        f"{a},{b},{dose},{kind}"
        for (a, b, *_), dose, kind in zip(MATRIX, [0.5, 4] * 200, "ab" * 200, strict=True)
    ]
    (tmp_path / "x.csv").write_text("\n".join(["g,h,dose,kind", *rows]))
    data = counts(tmp_path / "x.csv", labels="kind", covariates=["dose", "total"])
    assert data.covariates["dose"] == (0.5, 4.0) and data.train_labels is not None
    totals = data.covariates["total"]
    assert data.facts["covariate_levels"] == [2, len(totals)] and list(totals) == sorted(totals)
    assert data.num_classes == 2 * 2 * len(totals) and data.class_names == ("a", "b")
    label = data.train_labels // (2 * len(totals))
    level = data.train_labels % len(totals)
    assert torch.equal(label, data.train_labels // len(totals) % 2)  # a with 0.5, b with 4
    level_totals = torch.tensor(totals)[level]
    error = float((level_totals - data.train.sum(1)).abs().mean())
    assert error < 0.1 * float(level_totals.mean())
    words = counts(tmp_path / "x.csv", covariates=["dose", "kind"])
    assert words.covariates == {"dose": (0.5, 4.0), "kind": ("a", "b")} and words.facts[
        "covariate_levels"
    ] == [2, 2]

"""Faults planted in files are named, with settings that fix them; clean files have no finding."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.datasets import load_digits

from blackout import from_data
from blackout.cli.inspect import main
from blackout.data import counts
from blackout.data.count_statistics import is_underdispersed
from blackout.diffusion import GammaHead, LogisticMixtureHead, PosteriorBridge, Trapezoidal
from blackout.errors import UserError
from blackout.training.family import make_dataset

N = 300
GENES = 30
Files = dict[str, Callable[[], Any]]


def cells(seed: int = 0) -> np.ndarray:
    """Negative binomial counts of genes whose means differ a hundredfold."""
    source = np.random.default_rng(seed)
    rate = (
        source.gamma(3.0, 1 / 3, (N, 1))
        * np.geomspace(0.2, 20, GENES)
        * source.gamma(2.0, 0.5, (N, GENES))
    )
    return source.poisson(rate)


def photons(mean: float = 3.0) -> np.ndarray:
    """Images [N, 12, 12] of a bright disc."""
    x = np.linspace(-1, 1, 12)
    return np.random.default_rng(1).poisson(
        np.broadcast_to(mean * np.exp(-3 * (x**2 + x[:, None] ** 2)), (N, 12, 12))
    )


def hot() -> np.ndarray:
    """Images of a disc, and a pixel that is always bright."""
    images = photons().copy()
    images[:, 3, 9] = 200 + RUNNING % 7
    return images


def camera() -> np.ndarray:
    """Images of a disc with gain 1.5, offset 8 and readout noise 1."""
    light = 1.5 * photons().repeat(4, 0)
    return np.rint(8 + light + np.random.default_rng(8).normal(0, 1, light.shape)).astype(int)


def table(**columns: Any) -> str:
    """A .csv of eight genes and further columns."""
    every = {f"g{k}": cells()[:, 8 + k] for k in range(8)} | columns
    rows = zip(*every.values(), strict=True)
    return "\n".join([",".join(every), *(",".join(map(str, row)) for row in rows)])


def with_column(column: Any) -> np.ndarray:
    return np.concatenate([np.asarray(column)[:, None], cells()], 1)


def with_value(value: float) -> np.ndarray:
    """Cells, one count of which is replaced."""
    changed = cells().astype(float)
    changed[17, 4] = value
    return changed


RUNNING = np.arange(N)
FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "one sample": (
        lambda: np.ones((1, 10), int),
        "only one sample: it is used for training, validation and test",
    ),
    "two samples": (
        lambda: np.random.default_rng(3).poisson(6.0, (2, 10)),
        "only one training sample",
    ),
    "an id column": (lambda: with_column(RUNNING), r"number the samples.* dataset\.exclude=\[0\]"),
    "an id column, shuffled": (
        lambda: with_column(np.random.default_rng(2).permutation(N) + 1),
        r"number the samples.*exclude=\[0\]",
    ),
    "an id column of a table": (lambda: table(id=RUNNING), r"number the samples.*exclude=\[id\]"),
    "identifiers with gaps": (
        lambda: table(sample_id=np.random.default_rng(2).permutation(9 * N)[:N]),
        r"exclude=\[sample_id\]",
    ),
    "times": (
        lambda: with_column(np.cumsum(np.random.default_rng(2).poisson(5.0, N) + 1)),
        r"number the samples.*exclude=\[0\]",
    ),
    "offset and gain": (
        lambda: photons() * 2 + 100,
        r"below 100.*steps of 2.*dataset\.offset=100 dataset\.gain=2",
    ),
    "an offset": (lambda: photons() + 100, r"below 100.*dataset\.offset=100$"),
    "an offset of vectors": (
        lambda: np.random.default_rng(2).poisson(3.0, (N, 12)) + 500,
        r"dataset\.offset=500$",
    ),
    "a gain and a small offset": (
        lambda: photons() * 3 + 7,
        r"in steps of 3.*: dataset\.offset=1 dataset\.gain=3$",
    ),
    "a gain": (lambda: photons(20.0) * 4, r"in steps of 4.*: dataset\.gain=4$"),
    "masks of 0 and 255": (lambda: (photons() > 1) * 255, r"in steps of 255.*dataset\.gain=255"),
    "channels last": (lambda: np.stack([photons()] * 3, -1), r"numpy\.moveaxis"),
    "logarithms": (lambda: np.log1p(cells()), "log-transformed or normalised"),
    "shares": (lambda: cells() / cells().sum(1, keepdims=True), "look like fractions of a total"),
    "standardised": (
        lambda: (cells() - cells().mean(0)) / cells().std(0),
        "standardised or centred",
    ),
    "equal totals": (
        lambda: np.round(1e4 * cells() / cells().sum(1, keepdims=True)),
        "as if normalised",
    ),
    "rows that occur twice": (
        lambda: np.concatenate([cells(), cells()[:20]]),
        "20 of 320 samples repeat an earlier one",
    ),
    "a constant column": (
        lambda: with_column(np.full(N, 7)),
        r"constant: 0: dataset\.exclude=\[0\]",
    ),
    "batches": (
        lambda: table(batch=np.random.default_rng(2).integers(1, 4, N)),
        r"batch or class.*batch.*exclude=\[batch\]",
    ),
    "samples in blocks": (
        lambda: with_column(np.repeat([0, 1, 2], N // 3)),
        r"batch or class.*exclude=\[0\]",
    ),
    "a hot pixel": (hot, r"hot pixels, at \[3, 9\]: set them"),
    "text": (
        lambda: table(kind=np.array(["B cell", "T cell"])[RUNNING % 2]),
        r"'kind' is text.*labels=kind",
    ),
    "genes x cells": (
        lambda: (cells() * np.geomspace(0.01, 100, GENES)).astype(int).T,
        "give the transpose",
    ),
    "scaled to one total": (
        lambda: 1e4 * cells() / cells().sum(1, keepdims=True),
        "these look normalised",
    ),
    "whole percentages": (
        lambda: np.round(100 * cells() / cells().sum(1, keepdims=True)),
        "about 100, as if normal",
    ),
    "a stray count": (
        lambda: with_value(1_000_000),
        "1 of the counts are 1,000,000, the first in sample 17, .* 133:",
    ),
    "a negative count": (
        lambda: with_value(-4),
        r"must be at least 0, not -4.0 at index \[17, 4\]",
    ),
    "no number": (lambda: with_value(np.nan), r"not nan at index \[17, 4\]; dataset\.mask=finite"),
    "empty samples": (
        lambda: cells() * (RUNNING % 7 > 0)[:, None],
        "43 samples are empty, although only 1 have 1 to",
    ),
    "labels": (lambda: table(y=RUNNING * 7 % 10), r"batch or class.*exclude=\[y\]"),
    "dates": (lambda: table(date=20260101 + RUNNING * 7 % 28), r"batch or class.*exclude=\[date\]"),
    "an index of pandas": (
        lambda: table(**{"": RUNNING}),
        "the column without a name is left out, as an index",
    ),
}
CLEAN: Files = {
    "cells": cells,
    "a sparse matrix": lambda: scipy.sparse.csr_matrix(cells()),
    "a table of genes": table,
    "photons": photons,
    "bright vectors": lambda: np.random.default_rng(3).poisson(np.full((N, 12), 1000.0)),
    "digits": lambda: load_digits().images,
    "a lattice": lambda: np.random.default_rng(4).integers(0, 2, (N, 16)),
    "ratings": lambda: np.random.default_rng(5).integers(1, 6, (N, 9)),
    "spike trains": lambda: np.random.default_rng(6).poisson(
        0.3 + 0.2 * np.sin(np.arange(80)), (N, 2, 80)
    ),
    "images of one mean": lambda: np.random.default_rng(9).poisson(20.0, (N, 1, 12, 12)),
    "volumes": lambda: np.random.default_rng(7).poisson(2.0, (40, 1, 4, 6, 5)),
    "negative binomial": lambda: np.random.default_rng(3).negative_binomial(2, 0.1, (N, 12)),
    "rare genes": lambda: np.random.default_rng(3).poisson(np.geomspace(1e-3, 3, 200), (N, 200)),
    "digits as vectors": lambda: load_digits().data,
    "a microscope's bright images": lambda: np.random.default_rng(3).poisson(2000.0, (40, 1, 8, 8)),
    "three samples": lambda: np.random.default_rng(3).poisson(6.0, (3, 10)),
    "twelve samples": lambda: np.random.default_rng(3).negative_binomial(1, 0.1, (12, 2)),
    "many elements": lambda: np.random.default_rng(3).poisson(
        np.geomspace(1e-2, 30, 4000), (40, 4000)
    ),
    "one element": lambda: np.random.default_rng(3).poisson(5000.0, (N, 1)),
    "compositions": lambda: np.random.default_rng(3).multinomial(1000, np.full(12, 1 / 12), N),
    "few units": lambda: np.random.default_rng(3).poisson(0.4, (N, 8)),
    "semicolons": lambda: table().replace(",", ";"),
}

IMAGES = ("photons", "digits", "images of one mean", "a microscope's bright images")


def write(content: Any, folder: Path) -> Path:
    if isinstance(content, str):
        (folder / "x.csv").write_text(content)
        return folder / "x.csv"
    if scipy.sparse.issparse(content):
        scipy.sparse.save_npz(folder / "x.npz", content)
        return folder / "x.npz"
    np.save(folder / "x.npy", content)
    return folder / "x.npy"


def messages_of(path: Path, **settings: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        try:
            counts(path, **settings)
        except UserError as error:
            return [str(error)]
    return [str(warning.message) for warning in recorded]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(name: str, tmp_path: Path) -> None:
    make, words = FAULTS[name]
    (message,) = messages_of(write(make(), tmp_path))
    assert re.search(words, message), message


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_file_is_passed(name: str, tmp_path: Path) -> None:
    assert messages_of(write(CLEAN[name](), tmp_path)) == []


@pytest.mark.deep
def test_only_readings_of_a_camera_are_narrower_than_mixtures_of_poisson_counts(
    tmp_path: Path,
) -> None:
    """Readings are counted from the least one, and their model gets the head for narrow counts."""
    images = {
        name: torch.from_numpy(np.asarray(make())).int()
        for name, make in CLEAN.items()
        if name in IMAGES
    }
    images = {name: image if image.ndim == 4 else image[:, None] for name, image in images.items()}
    assert not any(map(is_underdispersed, images.values())) and len(images) == len(IMAGES)
    readings = torch.from_numpy(camera()).int()[:, None]
    assert is_underdispersed(readings)
    assert not is_underdispersed(readings.flatten(1))
    assert not is_underdispersed(readings[:2])
    with pytest.warns(UserWarning, match="vary less than Poisson counts.*head=gamma"):
        model = from_data(readings)
    assert isinstance(model.head, LogisticMixtureHead) and model.sampler.kernel == PosteriorBridge()
    for broad_model in (from_data(images["photons"]), from_data(readings, head=GammaHead)):
        assert (
            isinstance(broad_model.head, GammaHead) and broad_model.sampler.kernel == Trapezoidal()
        )
    read = counts(path := write(camera(), tmp_path))
    file = torch.from_numpy(camera())
    assert read.offset == int(file.min()) > 0 == counts(path, offset=0).offset
    assert int(read.train.sum() + read.val.sum() + read.test.sum()) == int(
        (file - read.offset).sum()
    )
    written = {"dataset": {"_target_": "blackout.data.counts", "path": str(path)}, "data_dir": ""}
    assert make_dataset(written, {"data": {"units": [1, 1]}}, ()).offset == 1  # a model's own


def test_proposed_settings_fix_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The proposed command has no finding, and gives the counts before the faults."""
    expected_columns = photons().reshape(N, -1)[:, 60:90]
    path = write(np.concatenate([RUNNING[:, None], expected_columns], 1) * 2 + 100, tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        main([str(path)])
    out = capsys.readouterr().out
    assert exit_info.value.code == 1 and out.count("finding:") == 2
    settings = shlex.split(out.splitlines()[-1])[5:]
    assert settings == ["dataset.offset=100", "dataset.gain=2", "dataset.exclude=[0]"]
    main([str(path), *settings])
    assert "found:" not in capsys.readouterr().out
    data = counts(path, offset=100, gain=2, exclude=[0])
    assert sorted(torch.cat([data.train, data.val, data.test]).tolist()) == sorted(
        expected_columns.tolist()
    )
    assert data.facts["units"] == [100, 2] and data.facts["sample_shape"] == [30]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exclude": ["x"]}, "there is no column 'x', only 'g0', 'g1'"),
        ({"columns": ["g1"], "exclude": ["g1"]}, "leave no column: exclude fewer"),
        ({"offset": 1}, "0 is not 1 plus a multiple of 1: set dataset.offset"),
        ({"gain": 2}, "is not 0 plus a multiple of 2"),
        ({"gain": 0}, "dataset.gain must be a whole number of at least"),
        ({"offset": 1.5}, "dataset.offset must be a whole number"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        counts(write(table(), tmp_path), **settings)
    with pytest.raises(UserError, match="columns and exclude are for vectors"):
        counts(write(photons(), tmp_path), columns=[0])


def test_columns_are_chosen_by_name_and_number_in_their_order(tmp_path: Path) -> None:
    named = counts(
        write(table(kind=np.array(["a", "b"])[RUNNING % 2]), tmp_path),
        columns=["g3", "g1"],
        labels="kind",
    )
    assert named.features == ("g3", "g1") and named.num_classes == 2
    dense = counts(write(cells(), tmp_path), columns=[4, 2, 0], exclude=[2])
    assert torch.equal(dense.test, counts(tmp_path / "x.npy").test[:, [4, 0]])
    sparse = counts(write(scipy.sparse.csr_matrix(cells()), tmp_path), columns=[4, 0])
    assert torch.equal(sparse.test, dense.test)

"""Camera data, offset + gain x photons: samples are written and read in the units of the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from blackout.data import CountData
from blackout.data.sample_files import read_samples
from blackout.diffusion import BlackoutDiffusion, GammaHead, PureDeath
from blackout.diffusion.data_stats import estimate_elements
from blackout.diffusion.draw import CountDraw
from blackout.diffusion.inpainting import read_known_elements
from blackout.errors import UserError
from blackout.networks import CountInputs, CountNetwork, ResidualMLP, set_elements
from blackout.sample_writer import sample_file

PHOTONS = torch.poisson(torch.ones(60, 5) * 3, generator=torch.Generator().manual_seed(0)).to(
    torch.uint8
)
DATA = CountData("camera", PHOTONS, PHOTONS[:20], 20, sample_shape=(5,), offset=100, gain=2)


def make_model() -> BlackoutDiffusion:
    """Return an untrained model of photon counts."""
    elements = estimate_elements(PHOTONS, PHOTONS.float().mean(0))
    network = CountNetwork(ResidualMLP((5,), width=8, depth=1, knots=9), CountInputs((5,)))
    set_elements(network, elements)
    model = BlackoutDiffusion(network, GammaHead(elements), PureDeath(20), elements.mean).eval()
    model.config = {"data": {"name": "camera", **DATA.facts}}
    return model


def test_samples_are_written_and_read_in_the_units_of_the_file(tmp_path: Path) -> None:
    draw = CountDraw(make_model(), make_model().sampler, {})
    with sample_file(tmp_path / "s.npz", len(PHOTONS), draw.names, draw.metadata(seed=7)) as write:
        write({"samples": PHOTONS})
    written = np.load(tmp_path / "s.npz")
    assert np.array_equal(written["samples"], PHOTONS.numpy().astype(int) * 2 + 100)
    assert {name: int(written[name]) for name in ("max_count", "offset", "gain")} == {
        "max_count": 140,
        "offset": 100,
        "gain": 2,
    }
    assert torch.equal(read_samples(tmp_path / "s.npz", DATA), PHOTONS.long())
    with pytest.raises(UserError, match="samples must be 100 plus multiples of 3, as the data are"):
        read_samples(tmp_path / "s.npz", replace(DATA, gain=3))
    plain_draw = CountDraw(make_model(), make_model().sampler, {})
    plain_draw.model.config = {"data": {"name": "plain", **replace(DATA, offset=0, gain=1).facts}}
    assert plain_draw.names.units == (0, 1) and plain_draw.metadata(seed=7) == {
        "seed": 7,
        "max_count": 20,
    }


def test_known_elements_are_in_the_units_of_the_file(tmp_path: Path) -> None:
    mask = np.array([True, True, False, False, False])
    np.savez(tmp_path / "k.npz", x0=np.array([106, 100, 0, 1, 3]), mask=mask)
    known_elements = read_known_elements(tmp_path / "k.npz", (5,), 20, 1, (100, 2))
    assert (
        known_elements.x0[0, :2].tolist() == [3, 0]
        and known_elements.mask[0].tolist() == mask.tolist()
    )
    np.savez(tmp_path / "k.npz", x0=np.array([105, 100, 0, 1, 3]), mask=mask)
    with pytest.raises(UserError, match="x0 must be 100 and whole numbers of 2"):
        read_known_elements(tmp_path / "k.npz", (5,), 20, 1, (100, 2))


def test_known_elements_of_another_shape_are_refused_in_any_units(tmp_path: Path) -> None:
    np.savez(tmp_path / "k.npz", x0=np.full((2, 5), 100), mask=np.ones((3, 5), dtype=bool))
    for units in ((0, 1), (100, 2)):
        with pytest.raises(UserError, match="x0 must be one sample or 3 of the model's shape"):
            read_known_elements(tmp_path / "k.npz", (5,), 200, 3, units)


def test_values_of_unknown_elements_do_not_matter(tmp_path: Path) -> None:
    mask = np.array([[True, False], [False, True]])
    np.savez(tmp_path / "k.npz", x0=np.array([[3, 999], [-1, 7]]), mask=mask)
    known_elements = read_known_elements(tmp_path / "k.npz", (2,), 20, 2)
    assert known_elements.x0.tolist() == [[3, 0], [0, 7]]
    np.savez(tmp_path / "k.npz", x0=np.array([[21, 0], [0, 7]]), mask=mask)
    with pytest.raises(UserError, match=r"0\.\.20 where mask is true, not 0\.\.21"):
        read_known_elements(tmp_path / "k.npz", (2,), 20, 2)

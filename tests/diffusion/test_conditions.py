"""Requested classes and covariates by name and value, and embeddings of combinations."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from blackout.data import CountData
from blackout.diffusion import BlackoutDiffusion, GammaHead, PureDeath
from blackout.diffusion.conditions import Conditions, parse_labels
from blackout.diffusion.data_stats import estimate_elements
from blackout.diffusion.draw import CountDraw, request_draw
from blackout.diffusion.family import CountDiffusion
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.totals import TotalDenoiser
from blackout.errors import UserError
from blackout.networks import CountInputs, CountNetwork, ResidualMLP, set_elements
from blackout.networks.layers import ClassEmbedding

TOTALS = [100.0, 200.0, 400.0]
DATA = {"class_names": ["B", "T"], "covariates": {"dose": [0.0, 1.0], "total": TOTALS}}
MODEL: Any = SimpleNamespace(num_classes=12, config={"data": DATA})


def decode_labels(labels: torch.Tensor) -> torch.Tensor:
    """Return the class, dose and total of every label, [n, 3]."""
    return torch.stack([labels // 6, labels // 3 % 2, labels % 3], 1)


def test_values_between_levels_have_the_requested_mean() -> None:
    labels = parse_labels(MODEL, ["T"], {"total": 250.0, "dose": 1})
    assert labels is not None
    levels = decode_labels(labels)
    assert set(levels[:, 0].tolist()) == {1} and set(levels[:, 1].tolist()) == {1}
    assert float(torch.tensor(TOTALS)[levels[:, 2]].mean()) == 250.0
    exact = parse_labels(MODEL, [0], {"total": 400, "dose": 0})
    assert exact is not None and set(decode_labels(exact)[:, 2].tolist()) == {2}


def test_unrequested_covariates_take_every_value() -> None:
    labels = parse_labels(MODEL, None, {"total": 100})
    assert labels is not None
    levels = decode_labels(labels)
    assert len(set(map(tuple, levels.tolist()))) == 4 and set(levels[:, 2].tolist()) == {0}
    assert parse_labels(MODEL, None, None) is None


def test_unrequested_covariates_are_as_frequent_as_in_training() -> None:
    """B has total 100 only, T mostly 400; frequencies are exact to 1 in 1,024."""
    counts = torch.zeros(2, 2, 3)
    counts[0, :, 0] = 5
    counts[1, 0] = torch.tensor([1.0, 2.0, 5.0])
    counts[1, 1, 2] = 24
    model: Any = SimpleNamespace(
        num_classes=12, config={"data": {**DATA, "label_counts": counts.flatten().tolist()}}
    )
    labels = parse_labels(model, ["T", "B"], None)
    assert labels is not None and torch.equal(
        labels // 6, torch.tensor([1, 0]).repeat(len(labels) // 2)
    )
    shares = torch.bincount(labels, minlength=12).view(2, 6) / len(labels) * 2
    expected = counts.flatten(1) / counts.flatten(1).sum(1, keepdim=True)
    assert torch.allclose(shares, expected, atol=1 / 1024)
    between = parse_labels(model, None, {"total": 300, "dose": 0})
    assert between is not None and float(torch.tensor(TOTALS)[between % 3].mean()) == 300
    assert set((between // 6).tolist()) == {1}  # B never has such totals
    exact = parse_labels(model, None, {"total": 400, "dose": 1})
    assert exact is not None and set(exact.tolist()) == {11}


def test_combinations_of_a_design_are_requested_by_column() -> None:
    """Combinations keep the requested order.

    Those that training did not have are refused, or warned of as an extrapolation.
    """
    columns = {"type": ["B", "B", "T"], "batch": ["1", "2", "1"]}
    counts = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 1]])
    data = {
        "class_names": ["B, 1", "B, 2", "T, 1"],
        "class_values": columns,
        "covariates": {"total": TOTALS},
    }
    model: Any = SimpleNamespace(
        num_classes=9, config={"data": {**data, "label_counts": counts.flatten().tolist()}}
    )
    assert parse_labels(
        model, None, {"type": ["T", "B"], "batch": 1, "total": 200}
    ).unique().tolist() == [1, 7]  # type: ignore[union-attr]
    assert parse_labels(model, None, {"batch": 2, "total": 100}).unique().tolist() == [3]  # type: ignore[union-attr]
    with pytest.raises(UserError, match="no sample of training is type T, batch 2"):
        parse_labels(model, None, {"type": "T", "batch": "2"})
    with pytest.raises(UserError, match="there is no 'C', only 'B', 'T'"):
        parse_labels(model, None, {"type": "C"})
    with pytest.raises(UserError, match="choose the same"):
        parse_labels(model, [0], {"type": "B"})
    with pytest.warns(
        UserWarning,
        match="class T, 1 had total 200 to 400 in training: these samples are an extrapol",
    ):
        parse_labels(model, None, {"type": "T", "total": 150})


def test_covariates_combine_with_classes_and_extrapolations_are_warned_of() -> None:
    """Kinds B and T, conditions a and b: T never had b, and with a had doses of 1 and 2."""
    counts = torch.tensor([[[1, 0, 0], [3, 1, 1]], [[0, 1, 1], [0, 0, 0]]])
    covariates = {"condition": ["a", "b"], "dose": [0.0, 1.0, 2.0]}
    data = {
        "class_names": ["B", "T"],
        "class_values": {"kind": ["B", "T"]},
        "covariates": covariates,
    }
    model: Any = SimpleNamespace(
        num_classes=12, config={"data": {**data, "label_counts": counts.flatten().tolist()}}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        labels = parse_labels(model, None, {"condition": ["b", "a"], "kind": "B", "dose": 0})
        labels_under_b = parse_labels(model, None, {"condition": "b"})
    assert (
        labels is not None
        and labels.bincount().tolist() == [16, 0, 0, 16]
        and labels_under_b is not None
    )
    assert set((labels_under_b // 6).tolist()) == {0} and float(
        (labels_under_b == 3).double().mean()
    ) == pytest.approx(0.6, abs=1e-3)
    with pytest.warns(
        UserWarning, match="class T had condition a in training: these samples are an extrapolation"
    ):
        unseen = parse_labels(model, None, {"condition": "b", "kind": "T"})
    assert unseen is not None and (unseen // 3).unique().tolist() == [3]
    with pytest.warns(UserWarning, match="class T had dose 1 to 2 in training"):
        parse_labels(model, None, {"condition": "a", "kind": "T", "dose": 0.5})
    with pytest.raises(UserError, match=r"condition\.condition: there is no 'c', only 'a', 'b'"):
        parse_labels(model, None, {"condition": "c"})


@pytest.mark.parametrize(
    ("classes", "covariates", "message"),
    [
        (["C"], None, "no class 'C'"),
        ("C", None, "no class 'C'"),
        (3, None, "must be a list"),
        ([2], None, "classes must be in 0..1"),
        (None, {"age": 3}, "'dose', 'total'"),
        (None, {"total": 99}, "condition.total must be a number in 100..400"),
        (None, {"total": "x"}, "in 100..400"),
        (None, 5, "values by name"),
    ],
)
def test_unknown_classes_and_covariates_are_refused(
    classes: Any, covariates: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        parse_labels(MODEL, classes, covariates)
    assert "\n" not in str(error.value)
    plain: Any = SimpleNamespace(num_classes=None, config={})
    with pytest.raises(UserError, match="without classes"):
        parse_labels(plain, [0], None)


def test_samples_have_the_requested_total() -> None:
    data = torch.poisson(torch.rand(200, 5, generator=torch.Generator().manual_seed(0)) * 30).int()
    elements = estimate_elements(data, data.float().mean(0))
    network = CountNetwork(ResidualMLP((5,), width=8, depth=1, knots=9), CountInputs((5,)))
    set_elements(network, elements)
    model = BlackoutDiffusion(network, GammaHead(elements), PureDeath(200), elements.mean).eval()
    batches = list(
        model.batches(
            torch.arange(300), sampler=Sampler(num_steps=30), conditions=Conditions(total=120.0)
        )
    )
    totals = torch.cat([samples["samples"] for _, samples in batches]).sum(1).double()
    assert float(totals.mean()) == pytest.approx(120.0, rel=0.02) and float(totals.std()) < 6

    def constant_denoiser(xt: torch.Tensor, t: torch.Tensor) -> CountPrediction:
        mean = torch.ones(xt.shape) * torch.tensor([1.0, 3.0])
        return CountPrediction(mean, mean.log())

    prediction = TotalDenoiser(constant_denoiser, 20.0)(
        torch.tensor([[2, 6], [30, 0]]), torch.ones(2)
    )
    assert torch.allclose(prediction.mean, torch.tensor([[3.0, 9.0], [0.0, 0.0]]), atol=1e-6)


def test_embeddings_of_combinations_are_sums_with_one_for_no_class() -> None:
    torch.manual_seed(0)
    embedding = ClassEmbedding(12, 8, [2, 3])
    no_features = torch.zeros(12, 8)
    embeddings = embedding(no_features, torch.arange(12)).view(2, 2, 3, 8)
    assert torch.allclose(
        embeddings[1] - embeddings[0],
        (embeddings[1] - embeddings[0])[:1, :1].expand(2, 3, 8),
        atol=1e-6,
    )
    assert not torch.allclose(embeddings[0, 0, 0], embeddings[0, 0, 1])
    assert torch.equal(embedding(no_features[:1], None), embedding.table.weight[2:3])
    with pytest.raises(ValueError, match="must be a multiple of the number of combinations"):
        ClassEmbedding(7, 8, [2])
    body = ResidualMLP((5,), width=8, depth=1, num_classes=12, covariate_levels=[2, 3], knots=9)
    assert body(torch.zeros(2, 5), torch.zeros(2), torch.tensor([3, 12])).shape == (2, 5)


def make_conditional_model() -> tuple[BlackoutDiffusion, CountData]:
    """Return an untrained conditional model, and data of its two classes."""
    counts = torch.poisson(torch.ones(120, 5) * 3, generator=torch.Generator().manual_seed(0)).int()
    labels = torch.arange(120) % 3 // 2
    data = CountData("toy", counts, counts[:60], 200, labels, labels[:60], class_names=("a", "b"))
    elements = estimate_elements(counts, counts.float().mean(0))
    network = CountNetwork(
        ResidualMLP((5,), width=8, depth=1, num_classes=2, knots=9), CountInputs((5,))
    )
    set_elements(network, elements)
    model = BlackoutDiffusion(network, GammaHead(elements), PureDeath(200), elements.mean).eval()
    model.config = {"data": {"name": "toy", **data.facts}, "model": {"sampler": {}}}
    return model, data


def test_samples_are_compared_with_held_out_data_of_their_classes() -> None:
    model, data = make_conditional_model()
    draw = CountDraw(model, model.sampler, {}, torch.tensor([1]), condition={"classes": ["b"]})
    selected = draw.compared_with(data)
    assert torch.equal(selected.test, data.test[data.test_labels == 1]) and selected.condition == {
        "classes": ["b"]
    }
    assert CountDraw(model, model.sampler, {}).compared_with(data) is data
    reordered = replace(data, class_names=("b", "a"))
    with pytest.raises(
        UserError, match=r"class names of toy are \['b', 'a'\], those of the model \['a', 'b'\]"
    ):
        draw.compared_with(reordered)
    known_elements = KnownElements(
        torch.zeros(1, 5, dtype=torch.int64), torch.ones(1, 5, dtype=torch.bool)
    )
    inpainting_draw = CountDraw(
        model, model.sampler, {}, None, known_elements, condition={"inpaint": "x.npz"}
    )
    with pytest.raises(
        UserError, match="no held-out data are known under inpaint: omit one of the two"
    ):
        inpainting_draw.compared_with(data)


def test_a_draw_describes_its_condition(tmp_path: Path) -> None:
    model, _ = make_conditional_model()
    description = {"_target_": "blackout.diffusion.Sampler", "num_steps": 4}
    model.config = {**model.config, "model": {"sampler": description}}
    request = {"classes": ["b"], "sampler": {"guidance": {"scale": 2.0}}}
    assert request_draw(model, request).condition == {"classes": ["b"], "guidance": 2.0}
    assert request_draw(model, {}).condition == {}
    np.savez(tmp_path / "known.npz", x0=np.ones(5, dtype=int), mask=np.arange(5) < 3)
    model.config = {**model.config, "model": {"sampler": {**description, "num_steps": 40}}}
    inpainting_request = {
        "inpaint": str(tmp_path / "known.npz"),
        "num_samples": 2,
        "sampler": {"num_steps": None},
    }
    default_sampler, chosen_sampler = (
        request_draw(model, inpainting_request | options).sampler
        for options in ({}, {"sampler": {"num_steps": 2}})
    )
    default_settings = (default_sampler.num_steps, default_sampler.inpainting_particles)
    assert default_settings == (50, 4) and chosen_sampler.num_steps == 2


def test_scores_without_classes_are_warned_of_if_never_trained() -> None:
    settings = {
        "conditional": True,
        "label_dropout": 0,
        "metrics": {"_target_": "x"},
        "validation_draws": 1,
    }
    with pytest.warns(
        UserWarning, match="samples without a class, which such a model never learns"
    ):
        CountDiffusion().training_arguments(settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CountDiffusion().training_arguments({**settings, "label_dropout": 0.1})
        CountDiffusion().training_arguments({**settings, "metrics": None})

"""Classes and covariates asked for by name and value; embeddings of combinations."""

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


def decoded(labels: torch.Tensor) -> torch.Tensor:
    return torch.stack([labels // 6, labels // 3 % 2, labels % 3], 1)


def test_values_between_levels_have_the_mean_asked_for() -> None:
    labels = parse_labels(MODEL, ["T"], {"total": 250.0, "dose": 1})
    assert labels is not None
    found = decoded(labels)
    assert set(found[:, 0].tolist()) == {1} and set(found[:, 1].tolist()) == {1}
    assert float(torch.tensor(TOTALS)[found[:, 2]].mean()) == 250.0
    exact = parse_labels(MODEL, [0], {"total": 400, "dose": 0})
    assert exact is not None and set(decoded(exact)[:, 2].tolist()) == {2}


def test_what_is_not_asked_for_takes_every_value() -> None:
    labels = parse_labels(MODEL, None, {"total": 100})
    assert labels is not None
    found = decoded(labels)
    assert len(set(map(tuple, found.tolist()))) == 4 and set(found[:, 2].tolist()) == {0}
    assert parse_labels(MODEL, None, None) is None


def test_what_is_not_asked_for_is_as_frequent_as_in_training() -> None:
    """B has total 100 alone, T mostly 400; shares are exact to one in 1,024."""
    counts = torch.zeros(2, 2, 3)
    counts[0, :, 0], counts[1, 0], counts[1, 1, 2] = 5, torch.tensor([1.0, 2.0, 5.0]), 24
    model: Any = SimpleNamespace(num_classes=12, config={"data": {**DATA, "label_counts": counts.flatten().tolist()}})
    labels = parse_labels(model, ["T", "B"], None)
    assert labels is not None and torch.equal(labels // 6, torch.tensor([1, 0]).repeat(len(labels) // 2))
    shares = torch.bincount(labels, minlength=12).view(2, 6) / len(labels) * 2
    expected = counts.flatten(1) / counts.flatten(1).sum(1, keepdim=True)
    assert torch.allclose(shares, expected, atol=1 / 1024)
    between = parse_labels(model, None, {"total": 300, "dose": 0})
    assert between is not None and float(torch.tensor(TOTALS)[between % 3].mean()) == 300
    assert set((between // 6).tolist()) == {1}  # B never has such totals
    exact = parse_labels(model, None, {"total": 400, "dose": 1})
    assert exact is not None and set(exact.tolist()) == {11}


def test_a_design_names_columns_by_their_values() -> None:
    """Combinations in the order asked for; what training did not have together is refused, or said to be beyond it."""
    columns = {"type": ["B", "B", "T"], "batch": ["1", "2", "1"]}
    counts = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 1]])
    data = {"class_names": ["B, 1", "B, 2", "T, 1"], "class_values": columns, "covariates": {"total": TOTALS}}
    model: Any = SimpleNamespace(num_classes=9, config={"data": {**data, "label_counts": counts.flatten().tolist()}})
    assert parse_labels(model, None, {"type": ["T", "B"], "batch": 1, "total": 200}).unique().tolist() == [1, 7]  # type: ignore[union-attr]
    assert parse_labels(model, None, {"batch": 2, "total": 100}).unique().tolist() == [3]  # type: ignore[union-attr]
    with pytest.raises(UserError, match="no sample of training is type T, batch 2"):
        parse_labels(model, None, {"type": "T", "batch": "2"})
    with pytest.raises(UserError, match="there is no 'C', only 'B', 'T'"):
        parse_labels(model, None, {"type": "C"})
    with pytest.raises(UserError, match="choose the same"):
        parse_labels(model, [0], {"type": "B"})
    with pytest.warns(UserWarning, match="class T, 1 had total 200 to 400 in training: these samples are an extrapol"):
        parse_labels(model, None, {"type": "T", "total": 150})


def test_words_combine_freely_with_classes_and_what_training_did_not_have_is_said() -> None:
    """Kinds B and T, conditions a and b: T was never under b, and under a had doses of 1 and 2."""
    counts = torch.tensor([[[1, 0, 0], [3, 1, 1]], [[0, 1, 1], [0, 0, 0]]])
    covariates = {"condition": ["a", "b"], "dose": [0.0, 1.0, 2.0]}
    data = {"class_names": ["B", "T"], "class_values": {"kind": ["B", "T"]}, "covariates": covariates}
    model: Any = SimpleNamespace(num_classes=12, config={"data": {**data, "label_counts": counts.flatten().tolist()}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both = parse_labels(model, None, {"condition": ["b", "a"], "kind": "B", "dose": 0})
        under_b = parse_labels(model, None, {"condition": "b"})
    assert both is not None and both.bincount().tolist() == [16, 0, 0, 16] and under_b is not None
    assert set((under_b // 6).tolist()) == {0} and float((under_b == 3).double().mean()) == pytest.approx(0.6, abs=1e-3)
    with pytest.warns(UserWarning, match="class T had condition a in training: these samples are an extrapolation"):
        unseen = parse_labels(model, None, {"condition": "b", "kind": "T"})
    assert unseen is not None and (unseen // 3).unique().tolist() == [3]
    with pytest.warns(UserWarning, match="class T had dose 1 to 2 in training"):
        parse_labels(model, None, {"condition": "a", "kind": "T", "dose": 0.5})
    with pytest.raises(UserError, match=r"given\.condition: there is no 'c', only 'a', 'b'"):
        parse_labels(model, None, {"condition": "c"})


@pytest.mark.parametrize(("classes", "covariates", "message"), [
    (["C"], None, "no class 'C'"), ("C", None, "no class 'C'"),
    (3, None, "must be a list"), ([2], None, "classes must be in 0..1"), (None, {"age": 3}, "'dose', 'total'"),
    (None, {"total": 99}, "given.total must be a number in 100..400"), (None, {"total": "x"}, "in 100..400"),
    (None, 5, "values by name"),
])  # fmt: skip
def test_what_the_model_does_not_know_is_refused(classes: Any, covariates: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        parse_labels(MODEL, classes, covariates)
    assert "\n" not in str(error.value)
    plain: Any = SimpleNamespace(num_classes=None, config={})
    with pytest.raises(UserError, match="without classes"):
        parse_labels(plain, [0], None)


def test_totals_are_those_that_were_asked_for() -> None:
    data = torch.poisson(torch.rand(200, 5, generator=torch.Generator().manual_seed(0)) * 30).int()
    elements = estimate_elements(data, data.float().mean(0))
    network = CountNetwork(ResidualMLP((5,), width=8, depth=1, knots=9), CountInputs((5,)))
    set_elements(network, elements)
    model = BlackoutDiffusion(network, GammaHead(elements), PureDeath(200), elements.mean).eval()
    drawn = list(model.batches(torch.arange(300), sampler=Sampler(num_steps=30), conditions=Conditions(total=120.0)))
    totals = torch.cat([samples["samples"] for _, samples in drawn]).sum(1).double()
    assert float(totals.mean()) == pytest.approx(120.0, rel=0.02) and float(totals.std()) < 6

    def sharp(xt: torch.Tensor, t: torch.Tensor) -> CountPrediction:
        mean = torch.ones(xt.shape) * torch.tensor([1.0, 3.0])
        return CountPrediction(mean, mean.log())

    told = TotalDenoiser(sharp, 20.0)(torch.tensor([[2, 6], [30, 0]]), torch.ones(2))
    assert torch.allclose(told.mean, torch.tensor([[3.0, 9.0], [0.0, 0.0]]), atol=1e-6)


def test_embeddings_of_combinations_are_sums_and_no_class_is_none() -> None:
    torch.manual_seed(0)
    embedding, none = ClassEmbedding(12, 8, [2, 3]), torch.zeros(12, 8)
    each = embedding(none, torch.arange(12)).view(2, 2, 3, 8)
    assert torch.allclose(each[1] - each[0], (each[1] - each[0])[:1, :1].expand(2, 3, 8), atol=1e-6)
    assert not torch.allclose(each[0, 0, 0], each[0, 0, 1])
    assert torch.equal(embedding(none[:1], None), embedding.table.weight[2:3])
    with pytest.raises(ValueError, match="must be a multiple of the number of combinations"):
        ClassEmbedding(7, 8, [2])
    body = ResidualMLP((5,), width=8, depth=1, num_classes=12, covariate_levels=[2, 3], knots=9)
    assert body(torch.zeros(2, 5), torch.zeros(2), torch.tensor([3, 12])).shape == (2, 5)


def conditional() -> tuple[BlackoutDiffusion, CountData]:
    """A network of random weights, and the data of two classes it might have been trained on."""
    counts = torch.poisson(torch.ones(120, 5) * 3, generator=torch.Generator().manual_seed(0)).int()
    labels = torch.arange(120) % 3 // 2
    data = CountData("toy", counts, counts[:60], 200, labels, labels[:60], class_names=("a", "b"))
    elements = estimate_elements(counts, counts.float().mean(0))
    network = CountNetwork(ResidualMLP((5,), width=8, depth=1, num_classes=2, knots=9), CountInputs((5,)))
    set_elements(network, elements)
    model = BlackoutDiffusion(network, GammaHead(elements), PureDeath(200), elements.mean).eval()
    model.config = {"data": {"name": "toy", **data.facts}, "model": {"sampler": {}}}
    return model, data


def test_samples_are_compared_with_held_out_ones_of_their_classes() -> None:
    model, data = conditional()
    draw = CountDraw(model, model.sampler, {}, torch.tensor([1]), condition={"classes": ["b"]})
    part = draw.compared_with(data)
    assert torch.equal(part.test, data.test[data.test_labels == 1]) and part.condition == {"classes": ["b"]}
    assert CountDraw(model, model.sampler, {}).compared_with(data) is data
    other = replace(data, class_names=("b", "a"))
    with pytest.raises(UserError, match=r"class names of toy are \['b', 'a'\], those of the model \['a', 'b'\]"):
        draw.compared_with(other)
    known = KnownElements(torch.zeros(1, 5, dtype=torch.int64), torch.ones(1, 5, dtype=torch.bool))
    given = CountDraw(model, model.sampler, {}, None, known, condition={"inpaint": "x.npz"})
    with pytest.raises(UserError, match="no held-out data are known under inpaint: omit one of the two"):
        given.compared_with(data)


def test_what_was_asked_for_is_the_condition(tmp_path: Path) -> None:
    model, _ = conditional()
    described = {"_target_": "blackout.diffusion.Sampler", "num_steps": 4}
    model.config = {**model.config, "model": {"sampler": described}}
    asked = {"classes": ["b"], "sampler": {"guidance": {"scale": 2.0}}}
    assert request_draw(model, asked).condition == {"classes": ["b"], "guidance": 2.0}
    assert request_draw(model, {}).condition == {}
    np.savez(tmp_path / "known.npz", x0=np.ones(5, dtype=int), mask=np.arange(5) < 3)
    model.config = {**model.config, "model": {"sampler": {**described, "num_steps": 40}}}
    given = {"inpaint": str(tmp_path / "known.npz"), "num_samples": 2, "sampler": {"num_steps": None}}
    ours, theirs = (request_draw(model, given | how).sampler for how in ({}, {"sampler": {"num_steps": 2}}))
    assert (ours.num_steps, ours.inpainting_particles) == (13, 4) and theirs.num_steps == 2


def test_scores_of_a_class_that_is_never_trained_are_warned_of() -> None:
    settings = {"conditional": True, "label_dropout": 0, "metrics": {"_target_": "x"}, "validation_draws": 1}
    with pytest.warns(UserWarning, match="samples without a class, which such a model never learns"):
        CountDiffusion().training(settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CountDiffusion().training({**settings, "label_dropout": 0.1})
        CountDiffusion().training({**settings, "metrics": None})

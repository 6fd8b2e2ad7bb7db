"""Actions requested by a model file are not performed: one line, exit code 2, nothing snapshot."""

import json

import pytest
import torch

from blackout.cli.sample_request import choose_dataset
from blackout.diffusion.distillation import Distillation
from blackout.errors import UserError
from blackout.flows.energies import EnergyFamily
from tests.security.attacks import ATTACKS, EVALUATE, VICTIM, action, hide_in_a_tuple, interpolation


def rewrite(place, edit):
    """Edit the description of the exported model."""
    path = place / "model" / "config.json"
    description = json.loads(path.read_text())
    edit(description, place)
    path.write_text(json.dumps(description))


def snapshot(place):
    """Return every folder, and every file with its content."""
    return {path: path.read_bytes() if path.is_file() else None for path in place.rglob("*")}


@pytest.mark.deep
def test_unchanged_files_are_sampled_and_scored(run, place):
    for name in ("model", "x.ckpt"):
        outcome = run(
            "sample", f"ckpt={place / name}", "num_samples=2", f"out={place / 'of' / name}"
        )
        assert outcome.code == 0, outcome.err
    outcome = run(
        "sample", f"ckpt={place / 'model'}", "num_samples=250", *EVALUATE, f"out={place / 'out'}"
    )
    assert (
        outcome.code == 0
        and "frechet_distance_digits" in (place / "out" / "metrics.json").read_text()
    ), outcome.err


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_in_a_model_are_refused(run, place, name):
    rewrite(place, ATTACKS[name].edit)
    before = snapshot(place)
    arguments = [
        "num_samples=2",
        f"out={place / 'out'}",
        f"data_dir={place / 'data'}",
        *ATTACKS[name].arguments,
    ]
    run("sample", f"ckpt={place / 'model'}", *arguments).assert_refused()
    assert snapshot(place) == before and (place / "victim").read_text() == VICTIM


@pytest.mark.parametrize(
    "section, edit",
    [
        ("model", hide_in_a_tuple),
        ("data", lambda d, p: d["data"].update(std=(action(p),))),
        ("metrics", lambda d, p: d["metrics"].update(scores=(interpolation(p),))),
        ("tensor", lambda d, p: d["data"].update(mean=torch.ones(2))),
        ("a loop", lambda d, p: d["model"].update(head=d["model"])),
        ("many times the same list", lambda d, p: d.update(more=nested_lists())),
        ("a set", lambda d, p: d["model"].update(head={1, 2})),
        ("numbers for names", lambda d, p: d["model"].update({3: 4})),
    ],
)
def test_attacks_in_a_checkpoint_are_refused(run, place, section, edit):
    checkpoint = torch.load(place / "x.ckpt", weights_only=True)
    edit(checkpoint["blackout"], place)
    torch.save(checkpoint, place / "x.ckpt")
    before = snapshot(place)
    for arguments in ((), ("sampler.num_steps=2",)):
        run(
            "sample",
            f"ckpt={place / 'x.ckpt'}",
            "num_samples=2",
            f"out={place / 'out'}",
            *arguments,
        ).assert_refused()
    assert snapshot(place) == before


def test_targets_teachers_and_datasets_follow_the_same_rules(place):
    request = {"_target_": "torch.save", "obj": 1, "f": f"{place}/owned"}
    rewrite(place, lambda description, _: description["model"]["network"].update(body=request))
    (place / "config.yaml").write_text(
        json.dumps(
            {"dataset": {"_target_": "blackout.data.counts", "path": "x", "holdout": request}}
        )
    )
    truth = {"truth": {"target": request, "number": 4}}
    for read, word in (
        (lambda: EnergyFamily().source({}, truth), "target: the model file asks for 'torch.save'"),
        (
            lambda: EnergyFamily().check({"model": {}, "data": {"units": [request, 1]}}),
            "data.units must be",
        ),
        (
            lambda: Distillation().describe_parts({"teacher": place / "model"}, None),
            "asks for 'torch.save'",
        ),
        (lambda: choose_dataset(place, None), "must be without _target_"),
    ):
        with pytest.raises(UserError, match=word):
            read()
    assert not (place / "owned").exists()


def nested_lists():
    """Return 10^30 entries in a few hundred bytes."""
    node = [0.0] * 10
    for _ in range(29):
        node = [node] * 10
    return node


@pytest.mark.parametrize(
    "change, word",
    [
        (
            lambda d: d["model"]["process"].update(
                _target_="blackout.diffusion.from_generator", matrix="/etc/passwd"
            ),
            "/etc/passwd",
        ),
        (
            lambda d: d["model"].update(
                head={"_target_": "blackout.diffusion.LogisticMixtureHead", "base": "x"}
            ),
            "base",
        ),
        (lambda d: d["model"].update(head=d["model"]["process"]), "may stand there"),
        (lambda d: d["model"]["head"].update(_partial_=True), "may stand there"),
        (lambda d: d["model"]["head"].update(_partial_="yes"), "not a component"),
        (lambda d: d["model"]["head"].update(_args_=[3]), "_args_"),
        (lambda d: d["model"]["head"].update(_convert_="all"), "_convert_"),
        (lambda d: d["model"]["head"].update(colour=3), "colour"),
        (lambda d: d["model"]["schedule"]["grid"].update(num_steps=3), "num_steps"),
        (lambda d: d["model"]["schedule"]["grid"].update(_partial_=False), "may stand there"),
        (
            lambda d: d["model"]["sampler"].update(
                grid={"_target_": "blackout.diffusion.run_sampler", "_partial_": True}
            ),
            "may stand there",
        ),
        (
            lambda d: d["model"]["network"].update(body={"_target_": "torch.nn.Flatten"}),
            "torch.nn.Flatten",
        ),
        (
            lambda d: d["model"]["network"].update(
                body={"_target_": "blackout.networks.mlp.nn.Flatten"}
            ),
            "may stand there",
        ),
        (lambda d: d.update(family={"_target_": "blackout.cli.train.train"}), "may stand there"),
        (lambda d: d.update(family="x"), "family"),
        (lambda d: d["data"].update(shape=[1, 8, -8]), "shape"),
        (lambda d: d["data"].update(std=float("inf")), "std"),
        (lambda d: d["data"].update(mean=float("nan")), "mean"),
        (lambda d: d["data"].update(num_classes="x"), "num_classes"),
        (lambda d: d["model"]["sampler"].update(num_steps=10**30), "num_steps"),
        (lambda d: d["model"]["head"].update({"a\nb": 1}), "not the name"),
        (lambda d: d["data"].update(name="x" * 10**6), "too long"),
    ],
)
def test_invalid_models_are_refused_before_any_component_is_built(run, place, change, word):
    rewrite(place, lambda description, _: change(description))
    arguments = ["num_samples=2", f"out={place / 'out'}"]
    run("sample", f"ckpt={place / 'model'}", *arguments).assert_refused(word)
    assert not (place / "out").exists()


@pytest.mark.deep
def test_deep_and_large_descriptions_are_refused(run, place):
    path = place / "model" / "config.json"
    deep = "[" * 10**5 + "]" * 10**5
    nested = '{"a":' * 10**5 + "1" + "}" * 10**5
    long = '{"n": 1' + "0" * 9999 + "}"
    for content in (deep, nested, long):
        path.write_text(content)
        run("sample", f"ckpt={place / 'model'}", f"out={place / 'out'}").assert_refused("model")
    with path.open("wb") as file:
        file.truncate(2**33)  # a sparse file, which takes no disk space
    run("sample", f"ckpt={place / 'model'}", f"out={place / 'out'}").assert_refused("too large")


@pytest.mark.parametrize(
    "section, change, word",
    [
        (
            "dataset",
            {"_target_": "blackout.data.counts", "path": "/etc/passwd"},
            "dataset=counts dataset.path=",
        ),
        (
            "dataset",
            {"_target_": "blackout.data.image_folder", "path": "/etc"},
            "dataset=image_folder dataset.path=",
        ),
        ("dataset", {"_target_": "blackout.data.celeba64"}, "dataset=celeba64"),
        ("dataset", {"_target_": "blackout.data.mnist"}, "dataset=..."),
        ("dataset", {"_target_": "blackout.data.digits", "path": "x"}, "path"),
        (
            "dataset",
            {"_target_": "blackout.data.held_out_split", "count": 3, "holdout": 0.5},
            "does not exist",
        ),
        ("dataset", ["digits"], "must be a mapping"),
        ("dataset", {"_target_": "blackout.diffusion.PureDeath"}, "may stand there"),
        ("metrics", {"reference": "/etc/passwd"}, "/etc/passwd"),
        (
            "metrics",
            {
                "extractor": {
                    "_target_": "blackout.evaluation.Inception",
                    "_partial_": True,
                    "weights": "/etc/passwd",
                }
            },
            "/etc/passwd",
        ),
        (
            "metrics",
            {
                "extractor": {
                    "_target_": "blackout.evaluation.ModuleExtractor",
                    "_partial_": True,
                    "module": {"_target_": "torch.nn.Flatten"},
                }
            },
            "metrics=custom",
        ),
        (
            "metrics",
            {"extractor": {"_target_": "blackout.evaluation.Classifier", "_partial_": True}},
            "source",
        ),
        ("metrics", {"extractor": None}, "extractor"),
        ("metrics", {"_target_": "blackout.evaluation.cache.keep"}, "may stand there"),
    ],
)
def test_datasets_and_scores_of_a_file_are_chosen_by_name_only(run, place, section, change, word):
    def edit(description, _):
        defaults = description[section] if section == "metrics" else {}
        description[section] = change if isinstance(change, list) else {**defaults, **change}

    rewrite(place, edit)
    arguments = [*EVALUATE, f"out={place / 'out'}", f"data_dir={place / 'data'}"]
    run("sample", f"ckpt={place / 'model'}", "num_samples=250", *arguments).assert_refused(word)
    assert not (place / "data").exists() and not (place / "out").exists()


def test_the_command_line_may_choose_what_a_file_may_not(run, place):
    import numpy as np

    rewrite(
        place, lambda d, _: d.update(dataset={"_target_": "blackout.data.counts", "holdout": 0.5})
    )
    np.save(place / "x.npy", np.random.default_rng(0).integers(0, 17, (40, 1, 8, 8)))
    arguments = [
        *EVALUATE,
        f"out={place / 'out'}",
        "metrics.scores=[fd]",
        "metrics=digits",
        "metrics.reference=test",
    ]
    options = ["dataset=counts", f"dataset.path={place / 'x.npy'}", "dataset.max_count=16"]
    outcome = run("sample", f"ckpt={place / 'model'}", "num_samples=20", *arguments, *options)
    assert outcome.code == 0, outcome.err

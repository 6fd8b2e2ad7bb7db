"""Shuffle diffusion by its commands: train, be killed, continue, solve; and what is refused."""

import json

import numpy as np
import pytest
import torch

from blackout import load_model
from blackout.errors import UserError
from blackout.permutations.datasets import jigsaw_digits
from tests import processes
from tests.cli.conftest import train
from tests.killed import assert_same, kill, outcome

SMALL = (
    "network.width=16",
    "network.depth=1",
    "network.heads=2",
    "batch_size=8",
    "dataset.num_test=12",
    "trainer.val_check_interval=4",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.log_every_n_steps=2",
    "callbacks.progress=null",
    "callbacks.checkpoints.every_n_steps=2",
    "callbacks.samples.every_n_steps=4",
    "callbacks.samples.num_samples=4",
)
JIGSAW = ("family=shuffle", "dataset=jigsaw_digits", *SMALL)


LABEL_FREE = (*JIGSAW, "loss=label_free", "trainer.max_steps=12")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An undisturbed label-free run."""
    runs = tmp_path_factory.mktemp("shuffle")
    train(*LABEL_FREE, f"runs_dir={runs}", "run_id=whole")
    return runs / "jigsaw_digits/whole"


@pytest.mark.deep
def test_a_label_free_run_is_killed_and_continues_bit_for_bit(run, trained):
    settings, cut = (
        [*LABEL_FREE, f"runs_dir={trained.parents[1]}", "run_id=cut"],
        trained.with_name("cut"),
    )
    kill(settings, cut)
    assert run("train", *settings).code == 0
    assert_same(cut, trained)
    result = outcome(trained)
    assert "loss.baseline" in result and any(name.startswith("ema.") for name in result)


@pytest.mark.deep
def test_a_run_leaves_solved_puzzles(trained):
    final = np.load(trained / "samples/final.npz")
    assert final["permutation"].shape == (64, 4) and final["items"].shape == (64, 4, 1, 4, 4)
    assert (np.sort(final["permutation"], 1) == np.arange(4)).all()
    values = json.loads((trained / "metrics.json").read_text())
    assert values["labels"] is False and "val/nll_bits" in values["values"]
    assert values["evaluations"] == 27  # at most: 2 greedily, 25 by a beam that keeps all 24 orders
    assert values["references"]["test/nll_bits"] == {"uniform": pytest.approx(np.log2(24))}
    assert (trained / "samples/final.png").exists() and (trained / "model/README.md").exists()


@pytest.mark.figures
def test_sample_k_alone_is_the_same_and_puzzles_are_scored(run, trained, tmp_path):
    options = [f"ckpt={trained}", "device=cpu", "num_samples=10", "decoder=sample"]
    outcome = run(
        "sample", *options, "evaluate=true", "trajectory=true", f"out={tmp_path / 'whole'}"
    )
    assert outcome.code == 0, outcome.err
    selected = run("sample", *options, "indices=[7]", f"out={tmp_path / 'alone'}")
    assert selected.code == 0, selected.err
    complete, alone = (np.load(tmp_path / name / "permutations.npz") for name in ("whole", "alone"))
    for name in ("permutation", "items", "truth"):
        np.testing.assert_array_equal(complete[name][7:8], alone[name])
    # a network of one list may add in another order than of ten: float32, a few thousand terms
    np.testing.assert_allclose(complete["log_prob"][7:8], alone["log_prob"], rtol=1e-4, atol=1e-5)
    report = json.loads((tmp_path / "whole/metrics.json").read_text())
    solved_share = (complete["permutation"] == complete["truth"]).all(1).mean()
    assert report["values"]["accuracy"] == pytest.approx(solved_share)
    assert {
        "correct",
        "kendall_ranks",
        "kendall_lists",
        "rmse",
        "mae",
        "accuracy_ceiling",
        "nll_bits",
    } <= set(report["values"])
    assert report["decoding"] == "sample" and report["labels"] is False
    for picture in ("jigsaws.png", "trajectory.webp", "trajectory.png"):
        assert (tmp_path / "whole" / picture).exists()


@pytest.mark.deep
def test_your_own_puzzles_are_solved(run, trained, tmp_path):
    batch = jigsaw_digits().batch("test", torch.arange(5))
    rows = torch.arange(5).unsqueeze(1)
    np.savez(tmp_path / "mine.npz", items=batch["items"][rows, batch["puzzle_order"]].numpy())
    options = [f"ckpt={trained}", "device=cpu", f"out={tmp_path / 'out'}"]
    solved = run(
        "sample", *options, f"input={tmp_path / 'mine.npz'}", "decoder=beam", "decoder.width=5"
    )
    assert solved.code == 0, solved.err
    arrays = np.load(tmp_path / "out/permutations.npz")
    assert arrays["permutation"].shape == (5, 4) and "truth" not in arrays.files
    settings = (
        "decoder=best",
        "top=3",
        "draws=6",
        "condition=A before C and D first",
        f"out={tmp_path / 'asked'}",
    )
    assert run("sample", *options[:2], f"input={tmp_path / 'mine.npz'}", *settings).code == 0
    arrays = np.load(tmp_path / "asked/permutations.npz")
    assert (
        arrays["top"].shape == (5, 3, 4)
        and (arrays["draws"][..., 0] == 3).all()
        and bool(arrays["certified"].all())
    )
    np.testing.assert_array_equal(arrays["permutation"], arrays["top"][:, 0])
    np.testing.assert_allclose(arrays["top_log_prob"], np.sort(arrays["top_log_prob"])[:, ::-1])
    assert np.exp(arrays["top_log_prob"]).sum(1) == pytest.approx(
        1, abs=1e-5
    )  # three orders fulfil it
    np.savez(tmp_path / "bad.npz", items=np.zeros((3, 9, 1, 4, 4)))
    run("sample", *options, f"input={tmp_path / 'bad.npz'}").assert_refused("items must be")
    run("sample", *options, "decoder=beam", "decoder.width=0").assert_refused("width")
    run("sample", *options, "sampler=trapezoidal").assert_refused("sampler")
    run("sample", *options, "classes=[1]").assert_refused("classes")


def test_an_exported_model_is_loaded_without_its_training(trained):
    model = load_model(trained / "model")
    assert model.shuffle.schedule == [0, 2, 8] and not model.training
    assert model.data["num_items"] == 4


@pytest.mark.deep
def test_two_processes_solve_puzzles_like_one(run, trained, tmp_path):
    options = [f"ckpt={trained}", "device=cpu", "num_samples=160", "decoder=sample"]
    assert run("sample", *options, f"out={tmp_path / 'one'}").code == 0
    shared = processes.run_distributed("sample", *options, f"out={tmp_path / 'two'}")
    assert shared.returncode == 0, shared.stderr
    assert (tmp_path / "one/permutations.npz").read_bytes() == (
        tmp_path / "two/permutations.npz"
    ).read_bytes()


def test_a_plan_of_shuffles_is_printed(run, tmp_path):
    planned = run("train", *JIGSAW, "plan=true", f"runs_dir={tmp_path}")
    assert planned.code == 0 and "4 pieces" in planned.out, planned.err


VARIANTS = {
    "single": ("family=shuffle", "dataset=one_permutation", "loss=random_time"),
    "tours": ("family=shuffle", "dataset=tsp", "dataset.cities=5"),
    "transposition": (*JIGSAW[:2], "shuffle=transposition", "reverse=inverse_transposition"),
    "insertion": (
        "family=shuffle",
        "dataset=sort_digits",
        "shuffle=insertion",
        "shuffle.schedule=[0,1,2]",
        "reverse=inverse_insertion",
        "decoder=beam",
        "network/encoder=plain",
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_other_distributions_and_puzzles_train(run, tmp_path, name):
    done = run(
        "train",
        *VARIANTS[name],
        *SMALL,
        "trainer.max_steps=2",
        f"runs_dir={tmp_path}",
        "run_id=a",
        "callbacks.samples.every_n_steps=2",
    )
    assert done.code == 0, done.err
    assert "val/greedy_accuracy" in done.out


def tours(path, line):
    (path / "tours.txt").write_text(f"0 0 1 1 1 0 output 1 2 3 1\n{line}\n")
    return ["family=shuffle", "dataset=tsp", f"dataset.path={path / 'tours.txt'}"]


def write_puzzles(path, array):
    np.savez(path / "mine.npz", items=array)
    return ["family=shuffle", "dataset=items", f"dataset.path={path / 'mine.npz'}"]


WRONG = {
    "a reverse distribution that does not exist": (lambda p: ["reverse=plackett"], "plackett"),
    "a shuffle that does not exist": (lambda p: ["shuffle=overhand"], "overhand"),
    "a loss of another family": (lambda p: ["loss=rates"], "schedule"),
    "a sampler of another family": (lambda p: ["sampler=poisson"], "sampler"),
    "a network of another family": (lambda p: ["network=mlp"], "network"),
    "an unknown setting": (lambda p: ["shuffle.times=[0,1]"], "times"),
    "a schedule not from 0": (lambda p: ["shuffle.schedule=[1,3]"], "rising from 0"),
    "a schedule that falls": (lambda p: ["shuffle.schedule=[0,5,3]"], "rising from 0"),
    "a schedule of fractions": (lambda p: ["shuffle.schedule=[0,1.5]"], "whole"),
    "an endless schedule": (lambda p: ["shuffle.schedule=[0,99]"], "40"),
    "an inverse shuffle with merged steps": (
        lambda p: ["reverse=inverse_riffle", "shuffle.schedule=[0,2,5]"],
        "single",
    ),
    "an inverse shuffle of another": (lambda p: ["reverse=inverse_insertion"], "RandomInsertion"),
    "a list of one": (
        lambda p: ["family=shuffle", "dataset=sort_digits", "dataset.length=1"],
        "length",
    ),
    "a piece": (lambda p: ["dataset.pieces=1"], "pieces"),
    "too many pieces": (lambda p: ["dataset.pieces=9"], "pieces"),
    "two cities": (lambda p: ["family=shuffle", "dataset=tsp", "dataset.cities=2"], "cities"),
    "an impossible tour": (lambda p: tours(p, "0 0 1 1 1 0 output 1 2 2 1"), "line 2"),
    "a damaged tour": (lambda p: tours(p, "0 0 1 x 1 0 output 1 2 3 1"), "line 2"),
    "no file of tours": (
        lambda p: ["family=shuffle", "dataset=tsp", f"dataset.path={p / 'none'}"],
        "no such file",
    ),
    "items without a list": (lambda p: write_puzzles(p, np.zeros(7)), "items must be"),
    "labels that points cannot do without": (
        lambda p: ["family=shuffle", "dataset=tsp", "loss=label_free"],
        "choose loss=trajectory",
    ),
    "a beam of nothing": (lambda p: ["decoder=beam", "decoder.width=0"], "width"),
    "a network of other items": (lambda p: ["network/encoder=points"], "cannot read pieces"),
    "one draw": (lambda p: ["loss=label_free", "loss.draws=1"], "draws"),
    "images that are no puzzles": (lambda p: ["dataset=mnist"], ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_command_lines_are_refused(run, tmp_path, name):
    make, word = WRONG[name]
    words = make(tmp_path)
    chooses_family = any(word.startswith(("experiment=", "family=")) for word in words)
    first = (
        []
        if chooses_family
        else [word for word in JIGSAW[:2] if not any(word.startswith("dataset=") for word in words)]
    )
    run(
        "train", *first, *words, "trainer.max_steps=2", f"runs_dir={tmp_path / 'runs'}"
    ).assert_refused(word)
    assert not (tmp_path / "runs").exists()


@pytest.mark.deep
def test_baselines_report_like_models(run, tmp_path):
    common = [*SMALL, "dataset.num_test=70", f"runs_dir={tmp_path}", "trainer.max_steps=2"]
    assert (
        run(
            "train",
            "family=shuffle",
            "dataset=tsp",
            "baseline=two_opt",
            *common[3:],
            "run_id=tours",
        ).code
        == 0
    )
    report = json.loads((tmp_path / "tsp/tours/metrics.json").read_text())
    assert (
        report["labels"] is False and report["evaluations"] == 0 and report["decoding"] == "twoopt"
    )
    assert report["values"]["gap"] < 0.02 < report["values"]["gap"] + report["values"]["optimal"]
    matched = run(
        "train",
        "family=shuffle",
        "dataset=jigsaw_digits",
        "baseline=sinkhorn",
        *common,
        "run_id=matched",
    )
    assert matched.code == 0, matched.err
    ckpt = tmp_path / "jigsaw_digits/matched"
    options = [f"ckpt={ckpt}", "device=cpu", "num_samples=20", f"out={tmp_path / 'out'}"]
    assert run("sample", *options, "decoder=beam", "decoder.width=4").code == 0
    solved = np.load(tmp_path / "out/permutations.npz")
    assert (np.sort(solved["permutation"], 1) == np.arange(4)).all() and np.isfinite(
        solved["log_prob"]
    ).all()
    run("sample", *options, "decoder=two_opt").assert_refused("points")
    run(
        "train", "family=shuffle", "dataset=jigsaw_digits", "baseline=two_opt", *common
    ).assert_refused("points")
    run(
        "train", "family=shuffle", "dataset=jigsaw_digits", "loss=sinkhorn", *common
    ).assert_refused("reverse=assignment")


@pytest.mark.deep
def test_weights_that_are_not_finite_are_refused(trained):
    model = load_model(trained)
    with torch.no_grad():
        next(model.averaged.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="not finite"):
        model.sample(3)

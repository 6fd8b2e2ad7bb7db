"""No program loses or replaces files of another request."""

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    energy_discrepancy,
    graph_methods,
    permutation_chain,
    permutation_mixing,
)
from blackout import load_model
from blackout.cli import anneal, compare, compress, solve
from blackout.cli.output_folders import folders_of_target
from blackout.cli.run_directory import check_run, locked_run
from blackout.cli.run_results import score_cards
from blackout.errors import UserError
from blackout.files import new_file, replacing
from blackout.results_folders import request_key, results_folder
from blackout.training.export import export_model
from tests.cli.conftest import TINY

FEW = ("num_samples=4", "device=cpu", "sampler.num_steps=3")


RING = """
class Ring:
    levels = 2
    def __init__(self, size):
        self.shape = [size]
    def log_density(self, x):
        return 0.4 * ((2.0 * x - 1) * (2.0 * x.roll(1, -1) - 1)).sum(-1)
"""


SCORED = ("evaluate=true", "metrics=none", "likelihood.images=3")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("losses")


@pytest.fixture
def trained(run, runs):
    """Return a run with four scored samples, trained by the first test that uses it."""
    if not (runs / "digits/a").exists():
        assert (
            run(
                "train",
                *TINY,
                "trainer.max_steps=2",
                f"runs_dir={runs}",
                "run_id=a",
                "metrics=none",
            ).code
            == 0
        )
        assert run("sample", f"ckpt={runs / 'digits/a'}", *FEW, *SCORED).code == 0
    return runs / "digits/a"


@pytest.fixture
def copied(trained, tmp_path):
    """That run, for a test that trains it further."""
    return shutil.copytree(trained, tmp_path / "digits/a")


def state(*folders):
    """A hash of every file that is not hidden."""
    files = [path for folder in folders for path in folder.rglob("[!.]*") if path.is_file()]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def assert_kept(before):
    lost = [
        path
        for path, digest in before.items()
        if not path.exists() or state(path.parent)[path] != digest
    ]
    assert not lost, lost


ANOTHER = {
    "fewer samples": ["num_samples=2"],
    "another seed": ["seed=1"],
    "no scores": [],
    "other scores": ["evaluate=true", "metrics=none", "likelihood.images=2"],
    "another sampler": ["sampler=poisson"],
    "more steps": ["sampler.num_steps=4"],
    "an animation": ["trajectory=true"],
    "a larger picture": ["shown=2"],
    "one of them alone": ["indices=[1]"],
    "a posterior": [
        "task=photons",
        "measurement=test:0",
        "posterior.sweeps=2",
        "~sampler.num_steps",
    ],
}


@pytest.mark.parametrize("name", ANOTHER)
def test_another_request_gets_another_folder(run, trained, name):
    before = state(trained)
    options = [word for word in FEW if name != "a posterior" or "sampler" not in word]
    words = {
        word.split("=")[0]: word for word in (*options, *ANOTHER[name]) if not word.startswith("~")
    }
    done = run("sample", f"ckpt={trained}", *words.values())
    assert done.code == 0, done.err
    assert_kept(before)
    new = {path.parent for path in state(trained).keys() - before.keys()}
    assert len(new) == 1 and str(new.pop()) in done.out
    assert name == "a posterior" or "holds other files" in done.out


def test_an_equal_request_replaces_its_results_and_says_so(run, trained):
    before = state(trained)
    done = run("sample", f"ckpt={trained}", *FEW, *SCORED)
    assert done.code == 0 and "the same request, which are replaced" in done.out
    after = state(trained)
    assert [path.name for path in after if after[path] != before.get(path)] in (
        [],
        ["metrics.json"],
    )  # it has a date


def test_a_mask_that_has_changed_is_another_request(run, trained, tmp_path):
    mask = np.zeros((8, 8, 1), dtype=bool)
    for rows in (2, 4):
        mask[:rows] = True
        np.savez(tmp_path / "known.npz", x0=np.full((8, 8, 1), 5), mask=mask)
        before = state(trained)
        done = run("sample", f"ckpt={trained}", *FEW, f"inpaint={tmp_path / 'known.npz'}")
        assert done.code == 0 and len(state(trained)) == len(before) + 2, done.err
        assert_kept(before)
    assert (
        run("sample", f"ckpt={trained}", *FEW, f"inpaint={tmp_path / 'known.npz'}", "seed=9").code
        == 0
    )
    assert_kept(before)


@pytest.mark.parametrize("place", [".", "model", "checkpoints", "samples"])
def test_a_folder_with_unrelated_files_is_refused(run, trained, place):
    before = state(trained)
    run("sample", f"ckpt={trained}", *FEW, "seed=5", f"out={trained / place}").assert_refused(
        "nothing there"
    )
    assert state(trained) == before


def test_the_folder_of_an_input_or_of_another_request_is_refused(run, trained, tmp_path):
    np.savez(tmp_path / "known.npz", x0=np.full((8, 8, 1), 5), mask=np.ones((8, 8, 1), dtype=bool))
    options = ("sample", f"ckpt={trained}", *FEW)
    run(*options, f"inpaint={tmp_path / 'known.npz'}", f"out={tmp_path}").assert_refused(
        "known.npz"
    )
    assert run(*options, f"out={tmp_path / 'out'}").code == 0
    before = state(tmp_path)
    run(*options, "seed=1", f"out={tmp_path / 'out'}").assert_refused("give a new folder")
    assert state(tmp_path) == before


def test_a_request_without_results_leaves_no_folder(run, trained, tmp_path):
    run(
        "sample", f"ckpt={trained}", *FEW, "sampler.num_steps=0", f"out={tmp_path / 'out'}"
    ).assert_refused("num_steps")
    with pytest.raises(KeyError), results_folder([tmp_path / "out"], "key"):
        raise KeyError("a bug")
    assert not (tmp_path / "out").exists()


def test_batches_of_a_killed_request_are_used_by_that_request_alone(tmp_path):
    batch_folder = tmp_path / "out/.drawn-x.part.batches"
    with results_folder([tmp_path / "out"], "one"):
        batch_folder.mkdir()
    with (
        pytest.raises(UserError, match="another request"),
        results_folder([tmp_path / "out"], "two"),
    ):
        pass
    with results_folder([tmp_path / "out", tmp_path / "out-2"], "two") as folder:
        assert folder == tmp_path / "out-2"
    with results_folder([tmp_path / "out"], "one") as folder:
        assert batch_folder.exists()


def test_scores_of_a_file_do_not_replace_other_scores(run, trained, tmp_path):
    digits = (
        "dataset=digits",
        "metrics=digits",
        "metrics.scores=[classes]",
        "evaluate=true",
        "device=cpu",
    )
    before, samples = state(trained), trained / "samples/samples.npz"
    done = run("sample", f"samples={samples}", *digits)
    assert done.code == 0 and str(trained / "samples/scores/metrics.json") in done.out, done.err
    run("sample", f"samples={samples}", *digits, f"out={trained}").assert_refused("nothing there")
    assert_kept(before)
    before = state(trained)
    outcome = run("sample", f"samples={trained / 'samples/final.npz'}", *digits)
    assert outcome.code == 0 and "scores-2" in outcome.out
    assert_kept(before)


def test_a_continued_run_keeps_samples_and_added_files_of_its_model(run, copied, tmp_path):
    (copied / "model/notes.txt").write_text("mine")
    (copied / "model/figures").mkdir()
    (copied / "model/figures/one.png").write_text("mine")
    card = copied / "model/README.md"
    card.write_text(card.read_text() + "\nTrained on a rainy day.\n")
    before = {
        path: digest for path, digest in state(copied).items() if path.parent == copied / "samples"
    }
    before = {path: digest for path, digest in before.items() if not path.name.startswith("final")}
    before |= state(copied / "model/figures") | {card: state(card.parent)[card]}
    options = (f"runs_dir={tmp_path}", "run_id=a", "metrics=none")
    assert run("train", *TINY, "trainer.max_steps=4", *options).code == 0
    assert_kept(before)
    assert (copied / "model/notes.txt").read_text() == "mine" and load_model(
        copied / "model"
    ) is not None


def test_an_unedited_model_card_is_rewritten_with_the_model(trained, tmp_path):
    model = load_model(trained)
    for score in (1.0, 2.0):
        export_model(model, tmp_path / "model", {"fid": score})
    assert "| fid | 2 |" in (tmp_path / "model/README.md").read_text()


@pytest.mark.parametrize("theirs", ["notes.txt", "config.json"])
def test_a_model_is_not_exported_into_a_folder_of_other_files(trained, tmp_path, theirs):
    (tmp_path / theirs).write_text(json.dumps({"architectures": ["another program's"]}))
    with pytest.raises(UserError, match="no model of this program"):
        export_model(load_model(trained), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [theirs]


@pytest.mark.parametrize("theirs", ["metrics.csv", "model/thesis.pdf", "samples/final.npz"])
def test_a_run_does_not_start_in_a_folder_of_other_files(tmp_path, theirs):
    (tmp_path / "x/a" / theirs).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "x/a" / theirs).write_text("mine")
    before = state(tmp_path)
    with pytest.raises(UserError, match="is not a run directory"):
        check_run(
            tmp_path / "x" / "a",
            {"experiment_name": None, "run_id": "a", "runs_dir": str(tmp_path)},
        )
    assert state(tmp_path) == before


def test_a_failed_run_keeps_its_reports_of_the_failure(run, tmp_path):
    wild = (
        *TINY,
        "optimizer.lr=1e30",
        "trainer.max_steps=9",
        "metrics=none",
        "callbacks.samples=null",
    )
    options = (
        "trainer.val_check_interval=100",
        "callbacks.checkpoints.every_n_steps=100",
        f"runs_dir={tmp_path}",
    )
    refused = run("train", *wild, *options, "run_id=a")
    refused.assert_refused("is not finite")
    (report,) = (tmp_path / "digits/a").glob("nonfinite_step_*.json")
    assert str(report) in refused.err and json.loads(report.read_text())["batches"]


def test_a_start_that_is_refused_leaves_nothing(tmp_path):
    with pytest.raises(UserError), locked_run(tmp_path / "x/a"):
        raise UserError("refused")
    assert not list(tmp_path.iterdir())


def test_pages_and_pictures_do_not_replace_files(command, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = state(trained)
    for name in ("config.yaml", "samples/final.png", "model/config.json"):
        command(compare.main, trained, "--out", trained / name).assert_refused(
            "exists, and is not replaced"
        )
    assert [command(compare.main, trained).out.strip() for _ in range(2)] == [
        "compare.html",
        "compare-2.html",
    ]
    assert state(trained) == before
    table = "graph,nodes,edges,mean,best,optimum,proved,seconds\ng,3,2,2.0,2,2,True,0.1\n"
    (tmp_path / "m").mkdir()
    (tmp_path / "m/table.csv").write_text(table)
    command(graph_methods.main, "m", "--out", "m/table.csv").assert_refused(
        "exists, and is not replaced"
    )
    command(permutation_mixing.main, "5", "--plot", "m/table.csv").assert_refused(
        "exists, and is not replaced"
    )
    command(permutation_chain.main, "m/table.csv").assert_refused("exists, and is not replaced")
    command(
        energy_discrepancy.main, "moons", "--steps", "1", "--out", "m/table.csv"
    ).assert_refused("exists, and is not replaced")
    assert (tmp_path / "m/table.csv").read_text() == table


def test_compression_does_not_replace_its_input_or_another_file(command, trained, tmp_path):
    np.save(tmp_path / "counts.npy", np.random.default_rng(0).integers(0, 17, (3, 1, 8, 8)))
    words = ("encode", trained, tmp_path / "counts.npy", "--steps", "2", "--out")
    before = state(tmp_path)
    command(compress.main, *words, tmp_path / "counts.npy").assert_refused(
        "exists, and is not replaced"
    )
    assert command(compress.main, *words, tmp_path / "counts.bits").code == 0
    before = state(tmp_path)
    command(compress.main, *words, tmp_path / "counts.bits").assert_refused(
        "exists, and is not replaced"
    )
    back = ("decode", trained, tmp_path / "counts.bits", "--out")
    for name in ("counts.bits", "counts.npy"):
        command(compress.main, *back, tmp_path / name).assert_refused("exists, and is not replaced")
    assert state(tmp_path) == before


@pytest.mark.parametrize("program", ["solve", "anneal"])
def test_results_without_a_network_have_units_and_better_directions(command, tmp_path, program):
    (tmp_path / "g.edges").write_text("0 1\n1 2\n")
    out = tmp_path / "out"
    main, words = {
        "solve": (solve.main, ("mis", tmp_path / "g.edges")),
        "anneal": (anneal.main, ("--target", "ising", "--chains", "8", "--sweeps", "4", "size=2")),
    }[program]
    done = command(main, *words, "--out", out)
    assert done.code == 0, done.err
    content = json.loads((out / "metrics.json").read_text())
    value, unit, better, reference = {
        "solve": ("best_value", "objective", "higher", "optimum"),
        "anneal": ("log_z", "nats", "reference", "exact"),
    }[program]
    assert content["metric_descriptions"][value] == {"unit": unit, "better": better}
    assert (
        content["references"][value][reference]
        == content["values"][{"solve": "optimum", "anneal": "log_z_exact"}[program]]
    )
    (card,) = [card for card in score_cards(content) if card["name"] == value]
    assert card["unit"] == unit and card["better"] and card["references"][0][0] == reference


def test_results_for_the_target_of_a_run_are_in_its_directory(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    assert next(folders_of_target(run, "anneal")) == Path("runs/anneal")
    assert next(folders_of_target(None, "solve")) == Path("runs/solve")
    (run / "config.yaml").touch()
    assert next(folders_of_target(run, "anneal")) == run / "anneal"


@pytest.mark.parametrize("program", ["solve", "anneal"])
def test_other_solutions_get_another_folder(command, tmp_path, monkeypatch, program):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.edges").write_text("0 1\n1 2\n")
    main, words = {
        "solve": (
            solve.main,
            ("mis", "g.edges", "--method", "anneal", "--chains", "2", "--sweeps", "2"),
        ),
        "anneal": (anneal.main, ("--target", "ising", "--chains", "4", "--sweeps", "2", "size=2")),
    }[program]
    assert command(main, *words).code == 0
    before = state(tmp_path / "runs")
    done = command(main, *words, "--seed", "1")
    assert done.code == 0 and f"{program}-2" in done.out, done.err
    command(main, *words, "--seed", "2", "--out", f"runs/{program}").assert_refused("nothing there")
    assert_kept(before)
    outcome = command(main, *words)
    assert outcome.code == 0 and "the same request" in outcome.out
    for name in (
        "metrics.json",
        "samples.npz",
        "solutions.npz",
    ):  # as after a kill: the rest is there
        (tmp_path / "runs" / program / name).unlink(missing_ok=True)
    outcome = command(main, *words, "--out", f"runs/{program}")
    assert outcome.code == 0 and "the same request" in outcome.out, outcome.err
    if program == "solve":
        command(main, *words, "--chains", "10000000000000").assert_refused(
            "chains must be", "1,048,576"
        )
    else:
        (tmp_path / "ours.py").write_text(RING)
        monkeypatch.syspath_prepend(tmp_path)
        outcome = command(main, "--target", "ours.Ring", "size=5", *words[2:-1])
        assert outcome.code == 0 and "log_z_exact 3.8634" in outcome.out, (
            outcome.err
        )  # log[(2 cosh .4)^5 + (2 sinh .4)^5]
        command(main, "--target", "isin").assert_refused("choose one of ising, potts")


def test_files_get_numbers_and_given_names_do_not(tmp_path):
    (tmp_path / "x.png").symlink_to(tmp_path / "nowhere")
    assert new_file(tmp_path / "x.png", is_fixed=False) == tmp_path / "x-2.png"
    with pytest.raises(UserError, match="exists, and is not replaced"):
        new_file(tmp_path / "x.png", is_fixed=True)
    with pytest.raises(UserError, match="cannot write"):
        new_file(tmp_path / "x.png/y.png", is_fixed=True)
    with pytest.raises(UserError, match="s3://bucket/x is an address"):
        new_file(Path("s3://bucket/x/y.png"), is_fixed=True)
    for name, age in (
        ("old", 8 * 86400),
        ("young", 60),
    ):  # left by killed processes, or being written
        with pytest.raises(KeyboardInterrupt), replacing(tmp_path / f"{name}.bits") as part:
            raise KeyboardInterrupt
        part.write_text("half")
        os.utime(part, (time.time() - age,) * 2)
        new_file(tmp_path / f"{name}.bits", is_fixed=True)
        assert part.exists() == (name == "young")


def test_a_request_is_known_by_the_files_it_names(tmp_path):
    (tmp_path / "x").write_text("1")
    keys = [request_key({"a": [str(tmp_path / "x")]})]
    assert request_key({"a": [str(tmp_path / "x")]}) == keys[0]
    (tmp_path / "x").write_text("12")
    assert request_key({"a": [str(tmp_path / "x")]}) != keys[0] != request_key({"a": []})

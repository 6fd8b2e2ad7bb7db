"""Endless files, links and damaged files: one line and exit code 2, and no file is lost."""

import os
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

from blackout import load_model
from tests import processes
from tests.cli.conftest import ROOT, TINY

pytestmark = pytest.mark.deep

TRAIN = (*TINY, "trainer.max_steps=2")
SAMPLE = ("num_samples=2", "device=cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A short run, to be copied."""
    runs = tmp_path_factory.mktemp("odd")
    done = processes.run("train", *TRAIN, f"runs_dir={runs}", "run_id=a")
    assert done.returncode == 0, done.stderr
    return runs / "digits/a"


@pytest.fixture
def directory(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "digits/a")


def pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def test_pipes_in_place_of_files_are_refused(run, directory, tmp_path):
    reference = f"metrics.reference={pipe(tmp_path / 'r.npz')}"
    digits = ("metrics=digits", "dataset=digits")
    good = f"ckpt={directory}"
    for arguments in (
        (f"ckpt={pipe(tmp_path / 'x.ckpt')}",),
        (good, f"inpaint={pipe(tmp_path / 'i.npz')}"),
        (good, *digits, "evaluate=true", reference),
        (f"samples={pipe(tmp_path / 's.npz')}", *digits),
    ):
        run("sample", *SAMPLE, *arguments, f"out={tmp_path / 'o'}").assert_refused(".")
    run("train", "dataset=counts", f"dataset.path={pipe(tmp_path / 'c.npy')}").assert_refused(
        "c.npy"
    )
    pipe(directory / "config.yaml")
    run("train", *TRAIN, f"runs_dir={tmp_path}", "run_id=a").assert_refused("config.yaml")
    for file in ("model.safetensors", "config.json"):
        pipe(directory / "model" / file)
        run("sample", *SAMPLE, good).assert_refused(file)


def test_a_folder_of_images_that_contains_itself_is_read_once(run, tmp_path):
    from PIL import Image

    for k in range(6):
        Image.new("L", (8, 8), 40 * k).save(tmp_path / f"{k}.png")
    for name in ("again", "once_more"):
        (tmp_path / name).symlink_to(tmp_path)
    arguments = (
        "dataset=image_folder",
        f"dataset.path={tmp_path}",
        "dataset.size=8",
        "plan=true",
        "network=mlp",
    )
    outcome = run("train", *arguments)
    assert outcome.code == 0 and "6" in outcome.out, outcome.err
    pipe(tmp_path / "p.png")
    run("train", *arguments).assert_refused("p.png", "not a file")


@pytest.mark.parametrize("name", ["checkpoints", "samples", "model"])
def test_no_link_is_followed_out_of_a_run(run, directory, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    shutil.move(directory / name, elsewhere)
    (directory / name).symlink_to(elsewhere)
    before = {path: path.stat().st_mtime_ns for path in elsewhere.rglob("*")}
    run("train", *TINY, "trainer.max_steps=4", f"runs_dir={tmp_path}", "run_id=a").assert_refused(
        name, "link"
    )
    if name == "samples":
        run("sample", *SAMPLE, f"ckpt={directory}").assert_refused("samples", "link")
    assert {path: path.stat().st_mtime_ns for path in elsewhere.rglob("*")} == before


def test_links_in_place_of_outputs_are_replaced_and_not_written_through(run, directory, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("samples.npz", "grid.png", "metrics.json"):
        for hidden in (name, f".{name}.part"):
            (directory / "samples" / hidden).symlink_to(victim)
    for name in ("last.ckpt", ".last.ckpt.part"):
        (directory / "checkpoints" / name).unlink(missing_ok=True)
        (directory / "checkpoints" / name).symlink_to(victim)
    outcome = run(
        "sample",
        *SAMPLE,
        f"ckpt={directory}",
        "evaluate=true",
        "metrics=none",
        "likelihood.images=3",
    )
    assert outcome.code == 0, outcome.err
    run("train", *TINY, "trainer.max_steps=4", f"runs_dir={tmp_path}", "run_id=a")
    assert victim.read_text() == "mine"


def test_a_flipped_bit_in_exported_weights_is_detected(run, directory):
    load_model(directory)
    weights = directory / "model/model.safetensors"
    flipped = bytearray(weights.read_bytes())
    flipped[-5] ^= 1
    weights.write_bytes(flipped)
    run("sample", *SAMPLE, f"ckpt={directory}").assert_refused("model.safetensors", "hash")


def test_a_configuration_with_expanding_aliases_is_refused(run, directory, tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 12)]
    (directory / "config.yaml").write_text("\n".join(lines))
    run("train", *TRAIN, f"runs_dir={tmp_path}", "run_id=a").assert_refused("aliases")


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00rubbish\x80", b"a,b\n1,2\n", b"step,x\nthree,4\n"]
)
def test_a_foreign_metrics_file_is_refused_and_stays(run, directory, tmp_path, content):
    (directory / "metrics.csv").write_bytes(content)
    run("train", *TINY, "trainer.max_steps=4", f"runs_dir={tmp_path}", "run_id=a").assert_refused(
        "metrics.csv"
    )
    assert (directory / "metrics.csv").read_bytes() == content


def test_a_byte_order_mark_in_metrics_is_read_over(run, directory, tmp_path):
    path = directory / "metrics.csv"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    outcome = run("train", *TINY, "trainer.max_steps=4", f"runs_dir={tmp_path}", "run_id=a")
    assert outcome.code == 0, outcome.err


def encrypted(path):
    """An archive whose member says that it is encrypted."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("samples.npy", b"x" * 100)
    content = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + flags] |= 1
    path.write_bytes(content)


def enormous(path):
    """An array of 4 PiB by its header."""
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (70368744177664, 8, 8), }"
    header += b" " * (117 - len(header)) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


@pytest.mark.parametrize("make", [encrypted, enormous])
def test_unreadable_archives_of_samples_are_refused(run, tmp_path, make):
    path = tmp_path / ("x.npz" if make is encrypted else "x.npy")
    make(path)
    run("sample", f"samples={path}", "dataset=digits", "metrics=digits").assert_refused(path.name)
    run("train", "dataset=counts", f"dataset.path={path}").assert_refused(path.name)


@pytest.mark.parametrize("change", ["negative", "lopsided"])
def test_a_reference_without_a_covariance_matrix_is_refused(run, directory, tmp_path, change):
    n = 64  # features of the digits classifier
    sigma = np.eye(n)
    sigma[0, 0] = -1 if change == "negative" else 1
    sigma[0, 1] = 0.5 if change == "lopsided" else 0
    np.savez(tmp_path / "r.npz", mu=np.zeros(n), sigma=sigma)
    arguments = ("metrics=digits", f"metrics.reference={tmp_path / 'r.npz'}", "evaluate=true")
    run("sample", *SAMPLE, f"ckpt={directory}", *arguments).assert_refused("r.npz", "covariance")


NUMBERS = {
    "likelihood.repeats=0": "at least 1",
    "likelihood.images=-1": "at least 0",
    "+likelihood.image=3": "likelihood.image",
    "likelihood.baselines=perhaps": "true or false",
    "likelihood.finite_steps=0": "at least 1",
    "likelihood.paths=8": "likelihood.finite_steps",
    "evaluate=perhaps": "true or false",
    "num_samples=1000000000": "100,000,000",
    "sampler.num_steps=1000000000": "num_steps",
    "sampler.correction.steps=1000000000": "steps",
}


@pytest.mark.parametrize("argument", NUMBERS)
def test_sampling_numbers_out_of_range_are_refused(run, directory, argument):
    extra = [] if argument.startswith("evaluate") else ["evaluate=true"]
    options = [option for option in SAMPLE if option.split("=")[0] != argument.split("=")[0]]
    run("sample", *options, f"ckpt={directory}", "metrics=none", *extra, argument).assert_refused(
        NUMBERS[argument]
    )
    assert not (directory / "samples/samples.npz").exists()


TRAINING = {
    "network.body.depth=10000000": "depth",
    "trainer.devices=999": "devices",
    f"run_id={'x' * 300}": "",
    f"runs_dir={'y' * 5000}": "",
    "data_dir=s3://key:secret@bucket/runs": "s3://bucket/runs is an address",
    "data_dir=memory://data": "memory://data is an address",
}


@pytest.mark.parametrize("argument", TRAINING)
def test_settings_that_would_never_end_are_refused(run, tmp_path, argument):
    name = argument.split("=")[0]
    arguments = [*(option for option in TRAIN if option.split("=")[0] != name), argument]
    extra = [] if name == "runs_dir" else [f"runs_dir={tmp_path / 'runs'}"]
    run("train", *arguments, *extra, "trainer.accelerator=cpu").assert_refused(TRAINING[argument])
    assert not list(tmp_path.rglob("config.yaml"))


def test_a_run_is_refused_while_another_process_trains_it(run, directory, tmp_path):
    from blackout.cli.run_directory import locked_run

    longer = (*TINY, "trainer.max_steps=4", f"runs_dir={tmp_path}", "run_id=a")
    with locked_run(directory):
        outcome = run("train", *longer)
        outcome.assert_refused(str(os.getpid()), "in use")
    code = f"""
import os, pathlib, blackout.cli.run_directory as run_directory
with run_directory.locked_run(pathlib.Path({str(directory)!r})):
    os.kill(os.getpid(), 9)
"""
    assert processes.run("-c", code).returncode == -9
    assert run("train", *longer).code == 0


@pytest.mark.parametrize(
    "argument",
    [
        "trainer.precision=bf16-mixed",
        "trainer.accumulate_grad_batches=2",
        "trainer.gradient_clip_val=0.5",
        "trainer.overfit_batches=1",
    ],
)
def test_settings_that_change_a_step_are_refused_in_a_continued_run(
    run, directory, tmp_path, argument
):
    name = argument.split("=")[0]
    options = [option for option in TINY if option.split("=")[0] != name]
    outcome = run(
        "train", *options, "trainer.max_steps=4", f"runs_dir={tmp_path}", "run_id=a", argument
    )
    outcome.assert_refused(name)


def test_moved_data_continue_a_run_and_changed_data_do_not(run, tmp_path):
    counts = np.random.default_rng(0).integers(0, 9, (40, 6))
    np.save(tmp_path / "here.npy", counts)
    tiny = (option for option in TINY if "network" not in option)
    options = (
        "dataset=counts",
        *tiny,
        f"runs_dir={tmp_path}",
        "run_id=a",
        "metrics=none",
        "experiment_name=e",
    )
    first = run("train", *options, f"dataset.path={tmp_path / 'here.npy'}", "trainer.max_steps=2")
    assert first.code == 0, first.err
    shutil.move(tmp_path / "here.npy", tmp_path / "there.npy")
    outcome = run(
        "train", *options, f"dataset.path={tmp_path / 'there.npy'}", "trainer.max_steps=3"
    )
    assert outcome.code == 0 and "continued" in outcome.out, outcome.err
    counts[3, :2] = counts[3, 1], counts[3, 0] + 1
    np.save(tmp_path / "there.npy", counts)
    changed = run(
        "train", *options, f"dataset.path={tmp_path / 'there.npy'}", "trainer.max_steps=4"
    )
    changed.assert_refused("")


@pytest.mark.parametrize("value", ["0", "null"])
def test_a_run_without_averaged_weights_trains_and_samples(run, tmp_path, value):
    outcome = run("train", *TRAIN, f"ema_decay={value}", f"runs_dir={tmp_path}", "run_id=a")
    assert outcome.code == 0, outcome.err
    names = torch.load(tmp_path / "digits/a/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert not [name for name in names if name.startswith("ema.")]
    assert run("sample", *SAMPLE, f"ckpt={tmp_path / 'digits/a'}").code == 0


def test_a_run_without_validation_trains(run, tmp_path):
    outcome = run(
        "train", *TRAIN, "trainer.limit_val_batches=0", f"runs_dir={tmp_path}", "run_id=a"
    )
    assert outcome.code == 0 and (tmp_path / "digits/a/model").exists(), outcome.err


def test_an_unknown_monitored_metric_is_warned_of_once(run, tmp_path):
    typo = "callbacks.checkpoints.monitor=val/bits_per_dimension"
    outcome = run("train", *TRAIN, typo, f"runs_dir={tmp_path}", "run_id=a")
    assert outcome.code == 0 and outcome.err.count("val/bits_per_dimension") == 1


def test_launcher_variables_that_are_not_numbers(run, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "x")
    run("train", "plan=true").assert_refused("WORLD_SIZE")


@pytest.mark.deep
def test_a_closed_standard_output_ends_a_run_in_one_line_and_it_can_continue(run, tmp_path):
    words = [*TRAIN, f"runs_dir={tmp_path}", "run_id=a"]
    command = f"{sys.executable} {ROOT / 'train.py'} {' '.join(words)} | head -c 1"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    piped = ["bash", "-c", f"set -o pipefail; {command}"]
    done = subprocess.run(piped, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert (
        done.stderr
        == "standard output was closed: the same command continues from the last checkpoint\n"
    )
    assert run("train", *TRAIN, f"runs_dir={tmp_path}", "run_id=a").code == 0
    assert (tmp_path / "digits/a/model").is_dir()

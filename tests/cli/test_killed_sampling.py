"""`sample.py` that was killed continues bit for bit, and leaves no unfinished files."""

import os
import signal
import time

import numpy as np
import pytest
import torch

from blackout.cli.sample_batches import HASH_NAME, SampleWriter, _load_batch
from blackout.diffusion.draw import CountDraw
from blackout.files import hash_tensors, remove_parts, save_tensors
from tests import processes
from tests.cli.conftest import TINY

pytestmark = pytest.mark.deep

SIZE = ("num_samples=200", "sampler.batch_size=20", "sampler.num_steps=40", "seed=3", "device=cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    runs = tmp_path_factory.mktemp("killed")
    done = processes.run("train", *TINY, "trainer.max_steps=4", f"runs_dir={runs}", "run_id=a")
    assert done.returncode == 0, done.stderr
    return runs / "digits/a"


def sampling(model, out):
    return processes.Process("sample", [f"ckpt={model}", f"out={out}", *SIZE])


def test_a_killed_draw_continues_with_the_batches_on_disk(model, tmp_path):
    assert sampling(model, tmp_path / "whole").wait() == 0
    out = tmp_path / "cut"
    for number, minimum in ((signal.SIGKILL, 3), (signal.SIGTERM, 6)):
        cut = sampling(model, out)
        deadline = time.monotonic() + 60
        while (
            len(batch_files := list(out.glob(".drawn-*/*.safetensors"))) < minimum
            and time.monotonic() < deadline
        ):
            assert cut.poll() is None
            time.sleep(0.005)
        cut.send_signal(number)
        outcome = cut.outcome()
        assert outcome.returncode == (-9 if number == signal.SIGKILL else 75), outcome.stderr
    stamps = {path: path.stat().st_mtime_ns for path in batch_files}
    assert not [path for path in out.iterdir() if not path.name.startswith(".")]
    process = sampling(model, out)
    while process.poll() is None:  # what was drawn is not drawn again
        for path, stamp in stamps.items():
            try:
                assert path.stat().st_mtime_ns == stamp
            except FileNotFoundError:
                break
        time.sleep(0.01)
    assert process.wait() == 0
    assert (out / "samples.npz").read_bytes() == (tmp_path / "whole/samples.npz").read_bytes()
    assert (out / "grid.png").read_bytes() == (tmp_path / "whole/grid.png").read_bytes()
    remove_parts(out)  # of a process that could not clean up; the next command does so after a week
    assert sorted(path.name for path in out.iterdir()) == [".request", "grid.png", "samples.npz"]


def test_finished_batches_are_not_drawn_again_after_a_kill_at_the_end(
    run, model, tmp_path, monkeypatch
):
    command = ("sample", f"ckpt={model}", f"out={tmp_path / 'o'}", "num_samples=2", "device=cpu")
    with monkeypatch.context() as cut:
        cut.setattr(SampleWriter, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(*command).code == 130
    monkeypatch.setattr(CountDraw, "batches", None)  # nothing can be drawn
    assert run(*command).code == 0
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == [
        ".request",
        "grid.png",
        "samples.npz",
    ]


def test_batches_on_disk_are_not_used_under_other_settings(run, model, tmp_path):
    options = ("num_samples=6", "sampler.batch_size=3", "device=cpu", f"ckpt={model}")
    samples_by_seed = {}
    for seed, out in ((0, "o"), (1, "p"), (0, "o")):
        assert run("sample", *options, f"seed={seed}", f"out={tmp_path / out}").code == 0
        samples = np.load(tmp_path / out / "samples.npz")["samples"]
        assert (samples_by_seed.setdefault(seed, samples) == samples).all()
    assert (samples_by_seed[0] != samples_by_seed[1]).any()


def test_jobs_of_a_sweep_have_folders_of_their_own(run, model, monkeypatch):
    monkeypatch.chdir(model.parent)
    swept = run("sample", "-m", f"ckpt={model}", "num_samples=4", "device=cpu", "seed=8,9")
    assert swept.code == 0, swept.err
    files = sorted(model.parent.glob("runs/sweeps/*/*/samples/samples.npz"))
    first, second = (np.load(file)["samples"] for file in files)
    assert (first != second).any() and not list((model / "samples").glob("samples.npz"))
    shared = run(
        "sample",
        "-m",
        f"ckpt={model}",
        "num_samples=4",
        "device=cpu",
        "seed=8,9",
        f"out={model / 'shared'}",
    )
    assert shared.code == 1 and "nothing there is replaced" in shared.err


def test_a_kept_batch_that_has_changed_is_drawn_again(tmp_path):
    file = tmp_path / "0-3.safetensors"
    tensors = {"samples": torch.arange(12).view(4, 3), "weights": torch.ones(4)}
    save_tensors(tensors, file, {HASH_NAME: hash_tensors("", tensors)})
    stored_batch = _load_batch(file)
    assert stored_batch.keys() == tensors.keys() and all(
        torch.equal(stored_batch[name], tensors[name]) for name in tensors
    )
    content = file.read_bytes()
    for position in range(0, len(content), 7):  # the names, the sizes, the hash and the numbers
        changed = bytearray(content)
        changed[position] ^= 1
        file.write_bytes(changed)
        assert _load_batch(file) is None, position
    for damaged in (b"", content[:-1], content + b"x"):
        file.write_bytes(damaged)
        assert _load_batch(file) is None
    save_tensors(tensors, file)  # without a hash
    assert _load_batch(file) is None
    file.unlink()
    os.mkfifo(file)
    assert _load_batch(file) is None

"""Copies of runs in a remote store are complete when a process dies, and replace no other run."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import fsspec
import pytest
import torch

from blackout.cli.mirror import Mirror
from blackout.errors import Unobtainable, UserError
from blackout.files import working_folder
from blackout.training.checkpoint_files import find_checkpoint, read_checkpoint, write_checkpoint
from tests.cli.conftest import TINY
from tests.killed import outcome


@pytest.fixture
def address():
    """Of a run in a store of this process's memory."""
    yield "memory://bucket/runs/digits/a"
    fsspec.filesystem("memory").store.clear()


def save(folder: Path, step: int) -> None:
    checkpoint = {
        "state_dict": {"w": torch.full((3,), float(step))},
        "blackout": {},
        "global_step": step,
    }
    write_checkpoint(checkpoint, folder / "checkpoints/last.ckpt")
    (folder / "metrics.csv").write_text(f"step\n{step}\n")


def step_at(address: str, folder: Path) -> int:
    """The step from which a machine without the folder would go on."""
    shutil.rmtree(folder, ignore_errors=True)
    assert Mirror(address, folder).fetch()
    checkpoint = find_checkpoint(folder / "checkpoints")
    assert checkpoint is not None
    return read_checkpoint(checkpoint)["global_step"]


def test_a_missing_local_folder_is_filled_from_the_store_and_continues(address, tmp_path):
    first_mirror, second_mirror = (
        Mirror(address, tmp_path / "here"),
        Mirror(address, tmp_path / "there"),
    )
    assert not second_mirror.fetch() and not (tmp_path / "there").exists()
    for step in (1, 2):
        save(tmp_path / "here", step)
        (tmp_path / "here/.lock").write_text("")
        first_mirror.push()
    assert second_mirror.fetch()
    names = {
        str(path.relative_to(tmp_path / "there")) for path in (tmp_path / "there").rglob("*.c*")
    }
    assert names == {"metrics.csv", "checkpoints/last.ckpt"}
    save(tmp_path / "there", 3)
    second_mirror.push()
    assert step_at(address, tmp_path / "third") == 3
    store = fsspec.filesystem("memory")
    before = store.cat(store.find("/bucket"))
    save(tmp_path / "here", 9)
    for refused in (first_mirror.push, first_mirror.fetch, first_mirror.try_to_push):
        with pytest.raises(
            UserError, match=r"did not come from .*here: remove .*here to continue from there"
        ):
            refused()
    assert store.cat(store.find("/bucket")) == before


@pytest.mark.parametrize("after", range(7))
def test_killed_between_any_two_changes_of_the_store(address, tmp_path, monkeypatch, after):
    mirror = Mirror(address, tmp_path / "here")
    for step in (1, 2):
        save(tmp_path / "here", step)
        mirror.push()
    countdown = iter(range(after))

    def counted(method):
        def killed(*arguments, **named):
            if next(countdown, None) is None:
                raise KeyboardInterrupt
            return method(*arguments, **named)

        return killed

    save(tmp_path / "here", 3)
    with (
        monkeypatch.context() as dying,
        pytest.raises(KeyboardInterrupt) if after < 6 else nullcontext(),
    ):
        for name in ("put_file", "cp_file", "rm_file"):
            dying.setattr(mirror._store, name, counted(getattr(mirror._store, name)))
        mirror.push()
    assert step_at(address, tmp_path / "third") == (2 if after < 5 else 3)
    restarted = Mirror(address, tmp_path / "here")
    assert restarted.fetch()
    restarted.push()
    assert step_at(address, tmp_path / "third") == 3


def test_the_checkpoint_is_copied_after_all_other_files(address, tmp_path, monkeypatch):
    mirror, copied = Mirror(address, tmp_path / "here"), []
    save(tmp_path / "here", 1)
    for name in ("checkpoints/best.ckpt", "checkpoints/step_2.ckpt", "samples/final.png"):
        (tmp_path / "here" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "here" / name).write_text("")
    monkeypatch.setattr(mirror._store, "mv", lambda part, target: copied.append(target))
    mirror.push()
    assert len(copied) == 5 and copied[-1] == f"{mirror._root}/checkpoints/last.ckpt"


def test_a_store_that_does_not_answer_is_a_warning_until_the_end_and_no_key_is_shown(
    address, tmp_path, capsys
):
    mirror = Mirror(address, tmp_path / "here")
    save(tmp_path / "here", 1)
    mirror._store = fsspec.AbstractFileSystem()
    mirror._store.cat_file = lambda *_, **__: (_ for _ in ()).throw(RuntimeError("key=SECRET"))
    mirror.try_to_push()
    assert (
        "failed and is tried again later: memory://" in (errors := capsys.readouterr().err)
        and "SECRET" not in errors
    )
    with pytest.raises(Unobtainable, match=r"a: RuntimeError$"):
        mirror.push()


@pytest.mark.parametrize(
    "place", ["s3://key:secret@bucket/x", "s3://bucket/../x", "ftp://h/x?sig=secret", "a::s3://b"]
)
def test_addresses_that_could_hold_a_key_or_lead_elsewhere(place):
    with pytest.raises(UserError, match="an address must be") as caught:
        working_folder(place)
    assert "secret" not in str(caught.value)


def test_addresses_that_are_folders_of_their_own():
    assert str(working_folder("sftp://host:22/x/y")) == "runs/sftp/host:22/x/y"
    assert str(working_folder("s3://bucket/runs/")) == "runs/s3/bucket/runs"
    assert working_folder("runs/a:b") == Path("runs/a:b")


@pytest.mark.deep
def test_a_run_at_an_address_trains_continues_without_its_folder_and_is_sampled(
    run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    options = [*TINY, "run_id=a", "callbacks.checkpoints.every_n_steps=2"]
    store, folder = f"file://{tmp_path}/store", Path(f"runs/file{tmp_path}/store")
    for steps in (3, 6):
        done = run("train", *options, f"runs_dir={store}", f"trainer.max_steps={steps}")
        assert done.code == 0, done.err
        assert done.out.count("(continued)") == (steps == 6)
        assert run("train", *options, "runs_dir=whole", f"trainer.max_steps={steps}").code == 0
        shutil.rmtree("runs")
    assert outcome(tmp_path / "store/digits/a") == outcome(tmp_path / "whole/digits/a")
    done = run("sample", f"ckpt={store}/digits/a", "num_samples=2", "device=cpu")
    assert done.code == 0 and done.folder == folder / "digits/a/samples", done.err
    run("sample", f"ckpt={store}/digits/b", "device=cpu").assert_refused(
        "no run and no model is there"
    )
    run("train", *options, "runs_dir=nose://b/x").assert_refused(
        "nose://b/x/digits/a", "ValueError"
    )
    assert not list(tmp_path.glob("*:"))

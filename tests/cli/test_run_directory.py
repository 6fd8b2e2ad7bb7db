"""Names of run directories, and which files a start removes or keeps."""

import os
from pathlib import Path

import pytest

from blackout.cli.run_directory import check_run, locked_run, run_directory, run_id
from blackout.errors import UserError
from blackout.files import PART
from blackout.training.export import check_replaceable


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "../a", "a\\b", "a\nb", "a" * 256])
def test_names_of_runs_and_experiments_cannot_leave_the_runs_folder(name, tmp_path):
    with pytest.raises(UserError, match="run_id must be a plain directory name"):
        run_id({"run_id": name})
    if name not in ("", ".", "a/b", "a\\b"):
        config = {"experiment_name": name, "run_id": "a", "runs_dir": str(tmp_path)}
        with pytest.raises(UserError, match="experiment_name must name a directory"):
            run_directory(config, "digits")


def test_a_start_removes_leftovers_of_killed_runs_and_no_file_being_written(tmp_path):
    run = tmp_path / "run"
    (run / "samples/final").mkdir(parents=True)
    (run / "checkpoints").mkdir()
    name = f"-{'0' * 32}{PART}"
    leftovers = [
        run / f".metrics{name}",
        run / f"checkpoints/.last{name}",
        run / f"samples/.final{name}.npz",
    ]
    leftovers += [run / f"samples/.step_0000010{name}", run / f"samples/final/.trajectory{name}"]
    unrelated_files = [
        run / f"samples/.grid{name}",
        run / f"samples/.samples{name}.npz",
        run / f"samples/.drawn{name}.batches",
    ]
    for path in (*leftovers, *unrelated_files):
        path.write_text("part")
    for path in unrelated_files[1:]:
        os.utime(path, (1, 1))
    with locked_run(run):
        assert not [path for path in leftovers if path.exists()]
        assert all(path.exists() for path in unrelated_files)


def test_unrelated_files_are_refused_and_settings_of_another_process_are_not(tmp_path, monkeypatch):
    config = {"experiment_name": "a", "run_id": "b", "runs_dir": str(tmp_path)}
    (settings_file := tmp_path / "a/b/config.yaml").parent.mkdir(parents=True)
    settings_file.write_text("{}")
    exists = Path.exists
    monkeypatch.setattr(
        Path, "exists", lambda path, **options: path != settings_file and exists(path, **options)
    )
    check_run(settings_file.parent, config)
    (settings_file.parent / "letters.txt").write_text("mine")
    with pytest.raises(
        UserError, match=r"is not a run directory, because it contains letters\.txt"
    ):
        check_run(settings_file.parent, config)


@pytest.mark.parametrize("name", ["checkpoints", "samples", "model"])
def test_a_file_in_place_of_a_folder_is_refused_before_training(name, tmp_path):
    (tmp_path / "a/b/checkpoints").mkdir(parents=True)
    if name == "checkpoints":
        (tmp_path / "a/b/checkpoints").rmdir()
    (tmp_path / "a/b" / name).write_text("mine")
    with pytest.raises(UserError, match=f"{name} is not a folder"):
        check_run(
            tmp_path / "a/b", {"experiment_name": "a", "run_id": "b", "runs_dir": str(tmp_path)}
        )


def test_a_pipe_in_the_folder_of_a_model_is_refused_before_training(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"blackout": "0"}')
    check_replaceable(tmp_path / "model")
    os.mkfifo(tmp_path / "model/pipe")
    with pytest.raises(UserError, match="pipe is a pipe or a device"):
        check_replaceable(tmp_path / "model")

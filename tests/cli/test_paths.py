"""A path with ~ means the user's home, as everywhere; no folder called ~ is made."""

import pytest

from blackout.cli.programs import run_train
from blackout.config.compose import compose
from blackout.config.settings import resolve_settings


@pytest.mark.parametrize(
    ("program", "name"), [("train", "runs_dir"), ("train", "data_dir"), ("sample", "out")]
)
def test_the_home_directory_is_expanded(monkeypatch, tmp_path, program, name):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = resolve_settings(compose(program, [f"{name}='~/folder'"]))
    assert config[name] == str(tmp_path / "folder")


def test_a_sweep_into_the_home_directory_says_what_to_type(monkeypatch, tmp_path, capsys):
    """Hydra itself makes the folder of a sweep, and would call it ~."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["train.py", "-m", "seed=1,2", "runs_dir='~/runs'"])
    with pytest.raises(SystemExit) as end:
        run_train()
    assert end.value.code == 2
    assert f"runs_dir={tmp_path / 'runs'}" in capsys.readouterr().err

"""Findings of one file do not hide each other, and the printed command is accepted."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from blackout.cli.inspect import main
from blackout.data.findings import findings
from tests.data.file_checks import (
    FRAMES,
    MATRIX,
    NAMES,
    table,
    write,
)

ROOT = Path(__file__).parents[2]


def test_strays_and_hot_pixels_do_not_hide_each_other() -> None:
    strays = torch.from_numpy(np.random.default_rng(1).poisson(5.0, (200, 8)))
    strays[17, 3] = 100_000
    strays[40, 2] = 60_000
    (stray,) = findings(strays)
    assert "2 of the counts are 60,000 to 100,000, the first in sample 17" in str(stray)
    frames = torch.from_numpy(np.random.default_rng(1).poisson(5.0, (60, 1, 12, 12)))
    frames[:, 0, 4, 5] += 200
    frames[:, 0, 4, 6] += 200
    (hot,) = findings(frames)
    assert "[4, 5], [4, 6]" in str(hot)
    frames[:, 0, 4, :] += 200  # a bright line is no fault
    assert list(findings(frames)) == []


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_clean_file_on_disk_has_no_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", FRAMES)
    main([str(tmp_path / "x.npy"), "dataset.in_memory=false"])
    out = capsys.readouterr().out
    assert "finding:" not in out and "dataset.in_memory=false" in out
    write(
        tmp_path / "x.csv", "," + table([[k, *row] for k, row in enumerate(MATRIX)], "a,b,c,d,e,f")
    )
    main([str(tmp_path / "x.csv")])
    assert "note:    the column without a name is left out" in capsys.readouterr().out


ODD_NAMES = (
    "a=b",
    "a b",
    "ä[1]",
    "x,y",
    "{z}",
    "it's",
    'q"t',
    "$HOME ${x}",
    "a\\b",
    "(1)",
    "#1",
    "~t",
    "null",
    "a\nb",
)


def test_the_printed_command_is_accepted_for_any_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shell splits what is printed, and Hydra reads the words."""
    from hydra import compose, initialize_config_dir

    from blackout.files import CONF

    with initialize_config_dir(str(CONF), version_base="1.3"):
        for name in ODD_NAMES:
            folder = tmp_path / name
            folder.mkdir()
            column = name.removeprefix("#")
            head = ",".join([f'"{column}"'.replace('q"t', 'q""t'), *NAMES])
            write(folder / "x.csv", table([[k, *row] for k, row in enumerate(MATRIX)], head))
            with pytest.raises(SystemExit):  # with a finding, the column of numbers
                main([str(folder / "x.csv")])
            (line,) = [
                line
                for line in capsys.readouterr().out.splitlines()
                if line.startswith("command: ")
            ]
            script = f"printf '%s\\0' {line.removeprefix('command: ')}"
            words = subprocess.run(
                ["bash", "-c", script], capture_output=True, check=True
            ).stdout.decode()
            settings = words.split("\0")[2:-1]
            config = compose("train", settings)
            assert config.dataset.path == str(folder / "x.csv")
            assert list(map(str, config.dataset.exclude)) == [column]
            main([str(folder / "x.csv"), *settings[2:]])
            assert "finding:" not in capsys.readouterr().out


@pytest.mark.deep
def test_the_printed_command_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a=b [ä], it's" / "x y.npy"
    path.parent.mkdir()
    np.save(path, MATRIX)
    main([str(path)])
    (line,) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("command: ")
    ]
    command = line.removeprefix("command: ").replace("python", shlex.quote(sys.executable), 1)
    command = f"{command} debug=fast runs_dir={shlex.quote(str(tmp_path / 'runs'))} run_id=a"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr

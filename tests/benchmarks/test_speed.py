"""Benchmarks of whole commands, and the picture of an offline W&B run."""

import json
import subprocess

import pytest
from PIL import Image

from benchmarks import paper_posteriors, speed, wandb_picture
from benchmarks.wandb_file import OfflineRun
from tests.cli.conftest import TINY, run  # noqa: F401 (a fixture)


def test_a_process_reports_its_own_cpu_seconds_and_memory(tmp_path):
    idle = speed.run(["-c", "pass"], tmp_path)
    busy = speed.run(["-c", "x = bytearray(2**28); sum(range(10**7))"], tmp_path)
    assert busy.seconds > idle.seconds + 0.02
    assert 0.2 < busy.memory - idle.memory < 0.4  # GiB; the array has a quarter
    with pytest.raises(subprocess.CalledProcessError):
        speed.run(["-c", "raise SystemExit(3)"], tmp_path)


def test_the_table_of_rates_has_samples_of_the_default_evaluations():
    row = {
        "case": "digits",
        "batch": 128,
        "precision": "32-true",
        "s per step": 0.5,
        "s per step of plain DDPM": 0.25,
        "s per evaluation": 0.001,
        "evaluations per sample": 25,
        "peak GiB": 1.24,
    }
    line = speed.table({"rows": [row]}).splitlines()[-1]
    assert line == "| digits | 128, 32-true | 256 | 512 | 1,000 | 40 (25) | 1.2 GiB |"


def test_evaluations_are_read_from_what_the_sampling_printed(tmp_path):
    (tmp_path / "log.txt").write_text("step 3\n832 samples, 20,800 evaluations\n")
    with pytest.raises(ValueError, match="network evaluations"):
        speed.evaluations_of(tmp_path)
    (tmp_path / "log.txt").write_text("8 samples of 1,000 network evaluations in out\n")
    assert speed.evaluations_of(tmp_path) == 1000


def test_the_table_of_a_paper_has_published_values_next_to_those_of_each_seed():
    rows = [
        {
            "method": method,
            "elements": elements,
            "seed": seed,
            "total_variation": 0.1 * seed + 0.01 * elements,
            "floor_total_variation": 0.05,
            "prior_total_variation": 0.5,
        }
        for method in paper_posteriors.METHODS
        for elements in paper_posteriors.ELEMENTS
        for seed in (1, 2)
    ]
    lines = paper_posteriors.table({"rows": rows}).splitlines()
    assert lines[3] == (
        "| SGDD as published | 0.170 ± 0.071 | 0.125 | 0.200 ± 0.071 | 0.222 "
        "| 0.250 ± 0.071 | 0.365 |"
    )
    assert lines[-1] == "| exact draws | 0.050 | - | 0.050 | - | 0.050 | - |"


def test_panels_are_those_with_values():
    layout = {"A": [{"lines": ["loss"]}, {"lines": ["fid"]}], "B": [{"pictures": ["samples"]}]}
    run = OfflineRun(history=[{"loss": 1.0}, {"samples/filenames": ["a.png"]}])  # noqa: F811
    panels = wandb_picture.panels_with_values(layout, run)
    assert panels == [layout["A"][0], layout["B"][0]]


def test_a_run_without_wandb_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        wandb_picture.main([str(tmp_path)])
    assert ended.value.code == 2 and "train with logger=wandb" in capsys.readouterr().err


@pytest.mark.deep
def test_an_offline_run_is_drawn(run, tmp_path):  # noqa: F811
    settings = ("logger=wandb", "logger.wandb.mode=offline", "trainer.max_steps=4")
    assert run("train", *TINY, *settings, f"runs_dir={tmp_path}", "run_id=a").code == 0
    wandb_picture.main([str(tmp_path / "digits" / "a"), "--out", str(tmp_path / "wandb.png")])
    with Image.open(tmp_path / "wandb.png") as picture:
        assert picture.width > 900


@pytest.mark.deep
@pytest.mark.parametrize(
    "benchmark, arguments",
    [(speed, []), (speed, ["--what", "start"]), (paper_posteriors, [])],
)
def test_quick_mode_writes_rows(benchmark, arguments, tmp_path, capsys):
    file = tmp_path / "results.json"
    benchmark.main(["--quick", "--repetitions", "1", "--json", str(file), *arguments])
    assert json.loads(file.read_text())["rows"]
    capsys.readouterr()

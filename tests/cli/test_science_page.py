"""Every command of docs/results/counts.md runs, in its order, at reduced size."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from benchmarks import real_counts, science_data
from tests.cli.conftest import ROOT

BLOCKS = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/results/counts.md").read_text(), re.DOTALL)
TRAINING = (
    "trainer.max_steps=2", "batch_size=8", "trainer.precision=32-true", "trainer.val_check_interval=2", "metrics=none",
    "validation_draws=1", "callbacks.progress=null", "callbacks.samples=null", "callbacks.checkpoints.every_n_steps=2",
    "sampler.num_steps=4",
)  # fmt: skip
SAMPLING = ("num_samples=3", "sampler.num_steps=4")
MAKERS = {"science_data": science_data.main, "real_counts": real_counts.main}


@pytest.mark.deep
@pytest.mark.parametrize("block", BLOCKS)
def test_commands_run(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: str) -> None:
    monkeypatch.chdir(tmp_path)
    for line in block.splitlines():
        python, program, *arguments = shlex.split(line)
        assert python == "python"
        if program == "-m":
            module = arguments[0].partition(".")[2]
            if module in MAKERS:  # the others need whole runs
                MAKERS[module]([*arguments[1:], "--number", "40"])
            continue
        name, reduced = Path(program).stem, TRAINING if program == "train.py" else SAMPLING
        outcome = run(name, *arguments, *reduced)
        assert outcome.code == 0, (line, outcome.err)

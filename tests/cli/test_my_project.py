"""The example of a user project works as its page says, outside of the repository."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from blackout.cli import choices
from tests.cli.conftest import ROOT, forget_modules

EXAMPLE = ROOT / "examples" / "my_project"
BLOCK = re.findall(r"```bash\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)[0]
COMMANDS = [shlex.split(line) for line in BLOCK.splitlines() if line.startswith("blackout")]
FEW_STEPS = ("debug=fast", "trainer.accelerator=cpu")


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    monkeypatch.chdir(folder)
    forget_modules("mine")  # other tests have a module of this name
    yield folder
    forget_modules("mine")


def test_a_user_experiment_trains_and_its_model_is_sampled(run, project, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(project))
    (listing,) = [words for words in COMMANDS if words[1] == "choices"]
    choices.main(listing[2:])
    assert "dataset=stars  photons of single stars" in capsys.readouterr().out
    (train,) = [words for words in COMMANDS if "run_id=bright" in words]
    outcome = run(*train[1:], *FEW_STEPS)
    assert outcome.code == 0, outcome.err
    assert "experiment=bright_stars" in outcome.out and "network=two_layers" in outcome.out
    assert "step 4: val/bits_per_dim" in outcome.out  # by the callback
    sample = COMMANDS[-1]
    outcome = run(*sample[1:], "num_samples=4", "device=cpu")
    assert outcome.code == 0, outcome.err


@pytest.mark.deep
def test_every_command_of_the_page_works_in_processes_of_its_own(project):
    environment = os.environ | {"PYTHONPATH": f".:{ROOT}", "OMP_NUM_THREADS": "1"}
    assert len(COMMANDS) == 5
    for words in COMMANDS:
        settings = FEW_STEPS if words[1] == "train" else ()
        command = [sys.executable, "-m", *words, *settings]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=project)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    assert (project / "runs/bright_stars/bright/samples-2").exists() or (
        project / "runs/bright_stars/bright/samples"
    )

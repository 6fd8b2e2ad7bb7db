"""Tables of published values: every cell composes, and only missing runs are started."""

import json
import os
import subprocess

import pytest
from hydra import compose, initialize_config_dir

from benchmarks import table
from tests.cli.conftest import ROOT


@pytest.mark.parametrize("name", sorted(path.stem for path in table.TABLES.glob("*.yaml")))
def test_every_cell_of_a_table_composes(name):
    content = table.read_table(name)
    trainings, samplings = table.jobs(name, content, "runs", [], [])
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for job in (*trainings, *samplings):
            config = compose(job.program, list(job.settings))
            if job.program == "train":
                assert job.result.parts[:3] == (
                    config.runs_dir,
                    config.experiment_name,
                    config.run_id,
                )
            else:
                assert config.evaluate and str(job.result) == f"{config.out}/metrics.json"


def test_a_table_runs_missing_jobs_and_prints_published_values(tmp_path, monkeypatch, capfd):
    scores = iter((4.771, 5.0, 6.0, 7.0))

    def instead(command, check):
        settings = dict(word.split("=", 1) for word in command[2:])
        result = (
            settings.get("out")
            or f"{settings['runs_dir']}/{settings['experiment_name']}/{settings['run_id']}"
        )
        if settings.get("sampler.correction.steps"):  # a signal asks this one to leave
            return subprocess.CompletedProcess(command, 75)
        os.makedirs(result)
        value = {"fid": next(scores), "is": 9.0} if "out" in settings else {}
        with open(f"{result}/metrics.json", "w") as file:
            json.dump({"values": value, "finished": True}, file)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(table.subprocess, "run", instead)
    words = ["blackout_cifar10", "--runs_dir", str(tmp_path)]
    for expected in (9, 0):  # the second time only the one that left is run
        with pytest.raises(SystemExit, match="75"):
            table.main(words)
        assert capfd.readouterr().out.count("$ ") == expected + 1
    table.main([*words, "--plan"])
    output = capfd.readouterr().out
    assert (
        output.count("done ") == 9 and output.count("to do") == 5
    )  # the one that left, and the rows below it
    assert "4.771 (4.77)" in output and "- (4.58)" in output
    with pytest.raises(SystemExit, match="2"):
        table.main(["unknown"])

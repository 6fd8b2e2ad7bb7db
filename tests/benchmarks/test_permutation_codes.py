"""The commands of the tables of codes compose, and their reports become rows."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from benchmarks import permutations
from benchmarks.permutation_codes import SUBJECTS, cycle_rows, ranking_rows
from blackout.files import CONF

pytestmark = pytest.mark.deep


@pytest.mark.parametrize("scale", ["cpu", "paper"])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_commands_compose(subject, scale):
    models = SUBJECTS[subject][0](scale)
    assert len({model.name for model in models}) == len(models)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for model in models:
            commands = model.commands(scale, Path("runs"), "data")
            config = OmegaConf.to_container(compose("train", commands.pop("")[1:]), resolve=True)
            assert config["family"]["_target_"].endswith("CodeFamily")
            for _, *settings in commands.values():
                sample_config = OmegaConf.to_container(compose("sample", settings), resolve=True)
                assert sample_config["out"].startswith(sample_config["ckpt"])


def test_commands_of_a_table_are_printed(capsys):
    permutations.main(["rankings", "--print"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 14 and all(line.startswith("python ") for line in lines)


def test_reports_become_rows():
    values = {"unique": 1.0, "valid": 1.0, "cyclic": 0.5}
    (row,) = cycle_rows("cycles, lehmer, masked", "1 of 5 passes", {"values": values})
    assert (row["passes"], row["cyclic"]) == (1, 0.5) and 0 < row["cyclic_of_perfect"] < 1
    assert (
        cycle_rows("cycles, lehmer, autoregressive", "5 of 5 passes", {"values": values})[0][
            "cyclic"
        ]
        == 0.5
    )
    report = {
        "values": {"ndcg_at_5": 0.7},
        "likelihood": {"rankings": {"popularity": {"ndcg_at_5": 0.6}}},
    }
    rows = ranking_rows("a", "4 observed, 1 pass", report)
    assert [row["model"] for row in rows] == ["a, 4 observed, 1 pass", "popularity, 4 observed"]

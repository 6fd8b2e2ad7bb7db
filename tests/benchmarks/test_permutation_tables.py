"""The commands of the tables of shuffles compose."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from benchmarks import permutations
from benchmarks.permutation_tables import SCALES, TABLES, runs
from blackout.files import CONF

pytestmark = pytest.mark.deep

# tables that share rows with others
EXPERIMENTS = {"table3": ["table2", "table6_irs"], "table6": ["table2", "table6_"]}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("table", TABLES)
def test_commands_of_every_table_compose(table, scale):
    table_runs = runs(table, scale)
    assert len({row.name for row in table_runs}) == len(table_runs)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        kinds = {
            tuple(s for s in row.train if s.startswith(("baseline", "loss=", "reverse"))): row
            for row in table_runs
        }
        for row in (table_runs[0], *kinds.values()):
            train, *samples = row.commands(scale, Path("runs"), "data").values()
            config = OmegaConf.to_container(compose("train", train[1:]), resolve=True)
            assert config["family"]["_target_"].endswith("ShuffleFamily") and len(samples) == len(
                row.evaluations
            )
            if scale == "paper" and "two_opt" not in row.name:
                is_baseline = row.name.endswith((", listmle", ", diffsort"))
                (first, *_) = row.train
                items = EXPERIMENTS.get(table, [table])
                assert first.startswith(tuple(f"experiment=symmetric/{item}" for item in items))
                assert (config["network"]["depth"] == 0) == is_baseline and config["trainer"][
                    "max_steps"
                ] >= 30_000


def test_commands_of_a_table_are_printed(capsys):
    permutations.main(["table3", "--print"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9 and all(line.startswith("python ") for line in lines)


def test_methods_of_the_comparison_are_listed_without_data(capsys):
    permutations.main(["fair", "--print", "--data-dir", "/nowhere"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 14 and 'fair --scale cpu --only "lehmer, masked"' in lines[1]

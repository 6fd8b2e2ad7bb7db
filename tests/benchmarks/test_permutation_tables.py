"""The commands of the tables are ones that the programs understand."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from benchmarks import permutations
from benchmarks.permutation_tables import SCALES, TABLES, runs
from blackout.files import CONF

pytestmark = pytest.mark.deep

EXPERIMENTS = {"table3": ["table2", "table6_irs"], "table6": ["table2", "table6_"]}
"""Of tables whose rows are those of others."""


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("table", TABLES)
def test_a_tables_commands_compose(table, scale):
    found = runs(table, scale)
    assert len({row.name for row in found}) == len(found)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        kinds = {tuple(s for s in row.train if s.startswith(("baseline", "loss=", "reverse"))): row for row in found}
        for row in (found[0], *kinds.values()):
            train, *samples = row.commands(scale, Path("runs"), "data").values()
            config = OmegaConf.to_container(compose("train", train[1:]), resolve=True)
            assert config["family"]["_target_"].endswith("ShuffleFamily") and len(samples) == len(row.asked)
            if scale == "paper" and "two_opt" not in row.name:
                alone, (first, *_) = row.name.endswith((", listmle", ", diffsort")), row.train
                items = EXPERIMENTS.get(table, [table])
                assert first.startswith(tuple(f"experiment=symmetric/{item}" for item in items))
                assert (config["network"]["depth"] == 0) == alone and config["trainer"]["max_steps"] >= 30_000


def test_a_table_is_shown(capsys):
    permutations.main(["table3", "--print"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9 and all(line.startswith("python ") for line in lines)


def test_the_methods_of_a_fair_comparison_are_shown_without_data(capsys):
    permutations.main(["fair", "--print", "--data-dir", "/nowhere"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 14 and 'fair --scale cpu --only "lehmer, masked"' in lines[1]

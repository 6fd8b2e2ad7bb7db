"""Every table of posterior samplers is made, with a minimal model or exact distributions."""

import json

import pytest

from benchmarks.posterior import MODEL_TABLES, TABLES, main
from tests.cli.conftest import TINY, run  # noqa: F401  (a fixture)

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("posterior")


@pytest.mark.parametrize("table", sorted({*TABLES, *MODEL_TABLES} - {"ratios"}))
def test_every_table_is_made(run, runs, table, tmp_path):  # noqa: F811
    if table in MODEL_TABLES and not (runs / "digits" / "a").exists():
        options = (*TINY, "trainer.max_steps=2", "run_id=a", f"runs_dir={runs}", "metrics=none")
        assert run("train", *options).code == 0
    model_options = [f"--model={runs / 'digits' / 'a'}"] if table in MODEL_TABLES else []
    main(["--quick", "--what", table, *model_options, "--json", str(tmp_path / "found.json")])
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert len(rows) == ROWS[table]


ROWS = {
    "speed": 2,
    "synthetic": 4,
    "dna": 5,
    "processes": 3,
    "faults": 22,
    "tasks": 30,
    "ablations": 22,
    "budgets": 5,
    "share": 3,
    "hidden": 10,
    "widths": 9,
}

"""Rows and table of the settings of posterior samplers."""

import json

import pytest

from benchmarks.posterior_constants import DEFAULTS, TABLES, main, table


def test_the_table_has_paired_differences_to_the_default():
    rows = [
        {"setting": "first_level", "value": value, "distance": distance, "perfect": 0.05}
        | {"distances": distances}
        for value, distance, distances in (
            ("1.0", 0.25, [0.2, 0.3]),
            ("3.0", 0.1, [0.1, 0.1]),
        )
    ]
    text = table({"rows": rows})
    assert "| first_level | 3.0: 0.100 | 1.0: +0.150 ± 0.050 | 0.050 |" in text


@pytest.mark.deep
@pytest.mark.parametrize("name", [name for name in TABLES if name != "sums"])
def test_each_table_has_a_row_of_the_default(name, tmp_path, capsys):
    file = tmp_path / "quick.json"
    main(["--quick", "--only", name, "--json", str(file)])
    rows = json.loads(file.read_text())["rows"]
    assert len([row for row in rows if row["value"] == DEFAULTS[row["setting"]]]) == 1
    main(["--quick", "--only", name, "--json", str(file)])
    assert json.loads(file.read_text())["rows"] == rows
    capsys.readouterr()

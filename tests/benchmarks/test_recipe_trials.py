"""benchmarks.recipe_trials trains and judges the variants of a recipe."""

import json

import pytest

from benchmarks import recipe_trials


def test_an_unknown_variant_is_refused(capsys):
    with pytest.raises(SystemExit) as error:
        recipe_trials.main(["judge", "digits", "--variants", "head=binary"])
    assert error.value.code == 2
    assert "head=binary must be one of current, head=binned" in capsys.readouterr().err


@pytest.mark.deep
def test_a_variant_is_trained_and_judged(tmp_path, capsys):
    file = tmp_path / "trials.json"
    options = ["digits", "--quick", "--models", str(tmp_path), "--variants", "head=binned"]
    recipe_trials.main(["train", *options])
    recipe_trials.main(["judge", *options, "--guidance", "1", "--json", str(file)])
    results = json.loads(file.read_text(encoding="utf-8"))
    rows = results["digits_val"]["rows"]
    assert [row["method"] for row in rows] == ["training images", "head=binned"]
    assert recipe_trials.table(results, "digits_val") in capsys.readouterr().out

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from blackout.files import replacing, write_json


@pytest.mark.parametrize("durably", [False, True])
def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, durably: bool) -> None:
    path = tmp_path / "new" / "file.txt"
    with replacing(path, durably) as part:
        part.write_text("one")
        assert not path.exists()

    def interrupted() -> None:
        with replacing(path, durably) as part:
            part.write_text("tw")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "one" and list(path.parent.iterdir()) == [path]


def test_writers_of_a_shared_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "cache.npz"
    with replacing(path, durably=True) as one, replacing(path, durably=True) as other:
        assert one != other and one.suffix == other.suffix == ".npz"
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"


def test_json_has_no_infinity(tmp_path: Path) -> None:
    write_json({"a": [1.5, math.nan], "b": (math.inf, "text")}, tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [1.5, None], "b": [None, "text"]}

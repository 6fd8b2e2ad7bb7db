"""What a start removes of those before it, and what it leaves to others."""

import os

from blackout.files import PART
from blackout.programs.run_directory import running


def test_a_start_removes_what_killed_ones_left_and_nothing_that_is_being_written(tmp_path):
    run = tmp_path / "run"
    (run / "samples/final").mkdir(parents=True)
    (run / "checkpoints").mkdir()
    name = f"-{'0' * 32}{PART}"
    gone = [run / f".metrics{name}", run / f"checkpoints/.last{name}", run / f"samples/.final{name}.npz"]
    gone += [run / f"samples/.step_0000010{name}", run / f"samples/final/.trajectory{name}"]
    kept = [run / f"samples/.grid{name}", run / f"samples/.samples{name}.npz", run / f"samples/.drawn{name}.batches"]
    for path in (*gone, *kept):
        path.write_text("part")
    for path in kept[1:]:
        os.utime(path, (1, 1))
    with running(run):
        assert not [path for path in gone if path.exists()]
        assert all(path.exists() for path in kept)

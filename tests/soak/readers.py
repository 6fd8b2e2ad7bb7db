"""Load a model repeatedly from a run that saves 200 checkpoints.

Every read must succeed, and the run must not be affected.

    python -m tests.soak.readers
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.soak import forks
from tests.soak.kills import TINY

STEPS = 200  # training steps, with a checkpoint after each


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    forks.preload()
    from blackout import load_model
    from blackout.errors import UserError

    options = [
        option
        for option in TINY
        if not option.startswith(("trainer.max_steps", "callbacks.checkpoints", "callbacks.samp"))
    ]
    options += [
        f"trainer.max_steps={STEPS}",
        "callbacks.checkpoints.every_n_steps=1",
        "callbacks.samples=null",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        results = []
        reads = 0
        for run_id in ("alone", "read"):
            arguments = [
                *options,
                "trainer.val_check_interval=50",
                f"runs_dir={scratch}",
                f"run_id={run_id}",
            ]
            child = forks.start("train", arguments, Path(scratch) / f"{run_id}.txt")
            run = Path(scratch) / "digits" / run_id
            finished = 0
            while run_id == "read" and not finished:
                finished, status = os.waitpid(child, os.WNOHANG)
                if (run / "checkpoints/last.ckpt").exists():
                    try:
                        load_model(run)
                    except UserError as error:
                        sys.exit(f"read {reads} failed: {error}")
                    reads += 1
            code = os.waitstatus_to_exitcode(status) if finished else forks.wait(child, 600)
            assert code == 0, (Path(scratch) / f"{run_id}.txt").read_text()
            from tests.soak.result import result

            results.append(result(run))
            assert not list(run.rglob("damaged*"))
        assert results[0] == results[1]
    print(f"{reads} reads during {STEPS} checkpoints: all succeeded, and the run was not affected")


if __name__ == "__main__":
    main()

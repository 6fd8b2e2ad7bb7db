"""The programs behind `train.py` and `sample.py`, for models of any family."""

import blackout.programs.settings  # noqa: F401  (whoever composes conf/ needs it)


def put_off_torchmetrics() -> None:
    """Do nothing; `blackout.programs.cli` still calls it."""

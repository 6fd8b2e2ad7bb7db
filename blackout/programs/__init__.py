"""The programs behind `train.py` and `sample.py`, for models of any family."""

import blackout.programs.settings  # noqa: F401  (whoever composes conf/ needs it)

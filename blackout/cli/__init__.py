"""The programs behind `train.py` and `sample.py`, for models of any family."""

"""Standard deviation of classifier tests for perfect samples.

    python -m benchmarks.classifier_errors --json FILE

Both sets are Poisson counts of ten elements. `stated` is `c2st_auc_error`, the error that a
cross-validated classifier of either kind should have; forests have 100 trees.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from benchmarks.measure import arguments, report
from blackout.evaluation.classifier_tests import classifier_test, null_auc_error

REPEATS = {60: 100, 200: 60, 1000: 24}  # of each classifier, by the number of samples in either set
NUM_ELEMENTS = 10
NUM_TREES = 100


def rows(quick: bool) -> list[dict[str, Any]]:
    """Return a row for each number of samples and each classifier."""
    rng = np.random.default_rng(0)
    table = []
    for number, repeats in {20: 2}.items() if quick else REPEATS.items():
        for name, linear in (("forest", False), ("regression", True)):
            values = []
            for _ in range(repeats):
                x, y = rng.poisson(3.0, (2, number, NUM_ELEMENTS))
                values.append(classifier_test(x, y, linear=linear, trees=NUM_TREES)[0])
            deviation = float(np.std(values, ddof=1))
            stated = null_auc_error(number)
            table.append(
                {
                    "n": number,
                    "classifier": name,
                    "repeats": repeats,
                    "mean": float(np.mean(values)),
                    "deviation": deviation,
                    "its error": deviation / math.sqrt(2 * (repeats - 1)),
                    "stated": stated,
                    "ratio": deviation / stated,
                }
            )
            print(f"{number} {name}: {deviation / stated:.2f}", flush=True)
    return table


def main(argv: list[str] | None = None) -> None:
    """Print the table, and write it as JSON if asked for."""
    options = arguments(__doc__).parse_args(argv)
    torch.set_num_threads(options.threads)
    report("deviation of classifier tests among perfect samples", rows(options.quick), options)


if __name__ == "__main__":
    main()

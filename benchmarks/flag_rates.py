"""False alarms of flags: `python -m benchmarks.flag_rates --json FILE`.

Flows: perfect samples of enumerated targets, with the equal weights of a perfect sampler, are
checked as in `sample.py` and `blackout anneal`; a column for each flag counts the sets of samples
that had it. Posterior chains: the largest R-hat of independent samples is compared with the limit
at which `sample.py` warns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.measure import arguments, report
from blackout.flows.diagnostics import check_estimates
from blackout.flows.targets import Ising, Potts, SpinGlass, Target, enumerate_states
from blackout.flows.weights import estimate_target, exact_references
from blackout.posterior.diagnostics import r_hat, r_hat_limit
from blackout.posterior.measurement_checks import COMPARED_COLUMNS, R_HAT_LEVEL
from blackout.random import fold_seed

CRITICAL = 0.4406868
NUM_SAMPLES = 1024
FLAGS = (
    "missed_mode",
    "annealing_disagrees",
    "exact_value_mismatch",
    "infinite_variance",
    "low_ess",
)
CHECK_KEY = 13  # separates the seed of the checks


def flow_rows(num_draws: int) -> list[dict[str, Any]]:
    """Return a row of each target: how many sets of perfect samples were flagged, by flag."""
    targets: dict[str, Target] = {
        "Ising 4x4, critical": Ising(4, CRITICAL),
        "Ising 4x4, ordered": Ising(4, 0.7),
        "spin glass 4x4": SpinGlass(4),
        "Potts q = 3, 3x3, critical": Potts(3, 3, math.log1p(3**0.5)),
    }
    rows = []
    for name, target in targets.items():
        states, log_density = enumerate_states(target)
        log_z = torch.logsumexp(log_density, 0)
        counts: Counter[str] = Counter()
        for seed in range(num_draws):
            generator = torch.Generator().manual_seed(seed)
            chosen = torch.multinomial(
                log_density.softmax(0), NUM_SAMPLES, True, generator=generator
            )
            weights = log_z.expand(NUM_SAMPLES).clone()
            values = estimate_target(target, states[chosen], weights, log_density[chosen])
            values |= exact_references(target)
            flags = check_estimates(
                target, states[chosen], weights, values, fold_seed(seed, CHECK_KEY)
            )
            counts.update([*flags, *(["any"] if flags else [])])
        row = {
            "case": name,
            "draws": num_draws,
            "any": counts["any"],
            **{flag: counts[flag] for flag in FLAGS},
        }
        print(row, flush=True)
        rows.append(row)
    return rows


def chain_rows(num_draws: int) -> list[dict[str, Any]]:
    """Return a row of each number of chains and sweeps: how many runs of exact chains were
    flagged."""
    rng = np.random.default_rng(0)
    rows = []
    for chains, sweeps in ((4, 30), (8, 30), (12, 12)):
        num_statistics = len(COMPARED_COLUMNS)
        limit = r_hat_limit(chains, sweeps, num_statistics, R_HAT_LEVEL)
        flagged = 0
        for _ in range(num_draws):
            values = rng.poisson(2.0, (num_statistics, chains, sweeps)).astype(float)
            flagged += max(map(r_hat, values)) > limit
        case = f"R-hat, {chains} chains of {sweeps} sweeps, limit {limit:.3f}"
        row = {"case": case, "draws": num_draws, "any": flagged, **dict.fromkeys(FLAGS, 0)}
        print(row, flush=True)
        rows.append(row)
    return rows


def table(results: Mapping[str, Any]) -> str:
    """Return how many draws of each case were flagged, by any flag and by each that was raised."""
    rows = results["rows"]
    names = [flag for flag in FLAGS if any(row[flag] for row in rows)]
    lines = [
        f"| perfect draws | draws | flagged | {' | '.join(f'`{name}`' for name in names)} |",
        "|---" * (3 + len(names)) + "|",
    ]
    for row in rows:
        cells = [row["case"], row["draws"], row["any"], *(row[name] for name in names)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Print the table, and write it as JSON if asked for."""
    parser = arguments(__doc__)
    parser.add_argument("--draws", type=int, default=100, help="of every case")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    num_draws = 2 if options.quick else options.draws
    rows = flow_rows(num_draws) + chain_rows(num_draws)
    report("false alarms among perfect draws", rows, options)


if __name__ == "__main__":
    main()

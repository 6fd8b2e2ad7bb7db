"""What the tables of the docs say of the kernels' errors, to be compared with what `blackout.laws` finds."""

from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
SAMPLERS, PROCESSES = "results/sampling.md", "results/processes.md"
LINES = {
    ("pure_death", "pixel pair", "fisher grid"): (SAMPLERS, "| Fisher |"),
    ("pure_death", "pixel pair", "logit grid"): (SAMPLERS, "| logit 7 to -10 |"),
    ("pure_death", "three pixels", "logit grid"): (SAMPLERS, "| three pixels of 5 levels"),
    ("pure_death", "five bits", "logit grid"): (SAMPLERS, "| five pixels of 2 levels"),
    ("pure_death", "exclusive pair", "logit grid"): (SAMPLERS, "| two pixels, one always black"),
    ("birth_death", "one pixel", "logit grid"): (PROCESSES, "| `birth_death` | (`birth_death_bridge`)"),
    ("uniform", "two pixels", "logit grid"): (PROCESSES, "| `uniform` | ."),
    ("absorbing", "two pixels", "logit grid"): (PROCESSES, "| `absorbing` | ."),
    ("ordinal", "two pixels", "logit grid"): (PROCESSES, "| `ordinal`, nearest neighbours |"),
    ("generator, halving", "two pixels", "logit grid"): (PROCESSES, "| `generator`, the halving one | ."),
    ("discrete_uniform", "two pixels", "steps grid"): (PROCESSES, "| `discrete_uniform`, 12"),
    ("discrete_absorbing", "two pixels", "steps grid"): (PROCESSES, "| `discrete_absorbing`, likewise |"),
}
"""Process, toy and grid of a study -> page and beginning of its line."""
ELSEWHERE = {("pixel pair", "posterior_trapezoidal")}
"""What the line of a study leaves out."""


def untrue(study, row):
    """The line that should have a row's errors but has others; None where it has them, or there is no such line."""
    page, beginning = LINES.get((study.subject.process, study.subject.name, study.grid_name), (None, None))
    if page is None or (study.subject.name, row.kernel) in ELSEWHERE:
        return None
    (line,) = [line for line in (DOCS / page).read_text().splitlines() if line.startswith(beginning)]
    return None if " ".join(map(_digits, row.errors)) in line else (line, row)


def _digits(error):
    """Three digits after the point, or two that count."""
    return (f"{error:.3f}" if error >= 0.00995 else f"{error:.4f}").removeprefix("0")

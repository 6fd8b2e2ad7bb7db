"""What a family of models offers to the programs: protocols of data sources, draws and scores.

A family needs its own folder and files in `conf/` only. The programs, the run directory, resuming,
preemption, loggers, sweeps and export see a model through these protocols and
`blackout.training.family.ComponentFamily`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from blackout.errors import UserError, refuse

if TYPE_CHECKING:
    from PIL import Image

Split: TypeAlias = Literal["train", "val", "test"]
"""Training data; validation data, on which checkpoints and hyper-parameters are chosen; test data,
which no choice has seen and on which final numbers are reported."""
SPLIT_NAMES: Mapping[Split, str] = {"train": "training", "val": "validation", "test": "test"}
"""Split -> its name in messages."""
Samples: TypeAlias = Mapping[str, Tensor]
"""Arrays by name with a row for every sample: `samples`, and others such as `log_weight`."""
Drawn: TypeAlias = Iterator[tuple[Tensor, Samples]]
"""Batches of (indices [b], their samples)."""
Watch: TypeAlias = Callable[[int, int, Tensor], None]
"""Called with (step, number of steps, state) at the start of a batch, step 0, and after steps."""


class Source(Protocol):
    """Protocol of a data source: data in memory or on disk, synthetic objects, or an energy."""

    @property
    def name(self) -> str:
        """Short name, for logs and directories."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Plain values that fill arguments of components by name: shape, num_sites, mean, ..."""

    def __str__(self) -> str:
        """Return one line for the summary of a run: sizes, shape, range."""

    def size(self, split: Split) -> int | None:
        """Return the number of samples of a split; None if it is unlimited.

        Without validation data it is 0, and there is no validation during training.
        """

    def batch(
        self, split: Split, index: Tensor, augment: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return samples by number.

        Args:
            split: of the samples.
            index: their numbers, int64 [b].
            augment: uniforms [b], one per sample, for random mirroring and the like; None leaves
                samples as they are.
        """

    def fingerprint(self, split: Split) -> str:
        """Return a hash of the content and order of a split, equal only for equal data."""

    def to(self, device: torch.device) -> Source:
        """Return the same source with its training data on `device`, if it has any."""


@runtime_checkable
class Conditional(Source, Protocol):
    """Protocol of a source whose samples have classes and covariates, on which models condition."""

    condition: Mapping[str, Any]

    def select_condition(self, labels: Tensor) -> Conditional:
        """Return the part of the source whose samples have these labels, int64 [c].

        Generated samples take the labels in turn.
        """


@dataclass(frozen=True)
class OutputNames:
    """Names and units of the results of a draw in `sample.py`.

    Args:
        folder: below the run directory, unless the user chooses another.
        file: of the samples, an .npz, without suffix.
        array: of the samples in that file.
        picture: of the first samples, a .png, without suffix.
        shape: of one sample in the file; None for its own, with images [C, H, W] as [H, W, C].
        units: offset and gain; the file holds offset + gain x counts.
    """

    folder: str = "samples"
    file: str = "samples"
    array: str = "samples"
    picture: str = "grid"
    shape: tuple[int, ...] | None = None
    units: tuple[int, int] = (0, 1)


class Outputs(Protocol):
    """Protocol of further results of a draw: estimates from all samples, and additional files."""

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add a batch, on the CPU, with its indices, int64 [b].

        Batches come in order, on process 0 only.
        """

    def write(self, directory: Path) -> dict[str, Any]:
        """Write files into an existing directory.

        Returns:
            For metrics.json: `values`, numbers by name, and how they were made.
        """


Better: TypeAlias = Literal["lower", "higher", "reference", ""]
"""Which of two values of a metric is better: the one closer to the reference value, or neither."""


@dataclass(frozen=True)
class MetricDescription:
    """Unit of a metric, and whether lower or higher values are better.

    Args:
        unit: such as "bits per dimension"; empty for a plain number.
        better: empty where no value is better than another, such as for an estimated mean.
    """

    unit: str = ""
    better: Better = ""


@dataclass(frozen=True)
class References:
    """Reference values of scores, which reports show next to them.

    Args:
        suffixes: a score `x` is shown next to `x_<suffix>` of the same report.
        bounds: score that bounds another one -> that one's name; they share reference values.
        ideal: the value of a perfect model, or its expected value, by name of the score without
            `val/` or `test/`. Shown if a score has no other reference value.
        metrics: what the scores mean, by name without `val/` or `test/`.
    """

    suffixes: tuple[str, ...] = ("exact", "of_perfect", "of_truth", "ceiling")
    bounds: Mapping[str, str] = field(default_factory=dict)
    ideal: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, MetricDescription] = field(default_factory=dict)


class Draw(Protocol):
    """Base class of draws: how a model draws samples 0, 1, 2, ... of a seed.

    Families derive from it. The defaults suit a draw whose results are a file and a picture.
    """

    names: OutputNames = OutputNames()
    """Names of the results."""
    fewest: int = 1
    """Smallest number of samples if the user does not choose one."""
    resumable: bool = False
    """Whether drawing a batch has no result but its samples, so that it need not be repeated."""
    condition: Mapping[str, Any] = {}
    """What the samples are conditioned on, such as classes or a measurement; empty for nothing."""
    references: References = References()
    """Reference values of the scores of this draw."""

    if TYPE_CHECKING:  # a property here would be the default of the fields of subclasses

        @property
        def batch_size(self) -> int:
            """Number of samples drawn together, unless the caller chooses another."""

        @property
        def steps(self) -> int:
            """Number of steps of a batch, as `watch` counts them."""

        @property
        def nfe(self) -> int:
            """Number of network function evaluations per sample."""

        @property
        def description(self) -> Mapping[str, Any]:
            """The sampler as plain values, for metrics.json."""

    def rows(self, num_samples: int) -> int:
        """Return the total number of samples if the user requests `num_samples`.

        A family may draw so many for each of several measurements.
        """
        return num_samples

    def outputs(self, seed: int) -> Outputs | None:
        """Return the writer of further results of the samples of a seed; None without any."""
        return None

    def metadata(self, seed: int) -> Mapping[str, Any]:
        """Return numbers and arrays by name, which are saved next to the samples."""
        return {}

    def compared_with(self, source: Source) -> Source:
        """Return the part of a source that the samples are compared with.

        Raises:
            UserError: no data are known under the condition of the samples.
        """
        if self.condition:
            names = ", ".join(self.condition)
            problem = f"no held-out data are known under {names}"
            raise UserError(f"evaluate=true: {problem}: omit one of the two")
        return source

    def batches(
        self,
        indices: Tensor,
        seed: int,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> Drawn:
        """Draw the samples with these numbers in batches.

        The random numbers of sample k are a function of (seed, k) alone. The rounding of the
        network's outputs can depend on the shape of the batch, the device and the processor.

        Args:
            indices: numbers of the samples, int64 [n].
            seed: of the samples.
            batch_size: None for the draw's own.
            watch: called with every state.

        Yields:
            (indices [b], their samples).
        """

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """Return samples laid out in a grid; None if there is nothing to see."""


class Scores(Protocol):
    """Accumulated scores of `num_samples` samples, from any number of processes."""

    num_samples: int

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add samples with their numbers, int64 [b]."""

    def compute(self) -> dict[str, float]:
        """Return all scores by name, the same on every process; every process must call it."""

    def reset(self) -> None:
        """Remove all samples."""

    def provenance(self) -> dict[str, Any]:
        """Return how the scores are made, as plain values that agree for comparable scores.

        `metric_descriptions` has `unit` and `better` of each score, see `MetricDescription`.
        """


class Scorer(Protocol):
    """Protocol of a choice of scores, which makes `Scores` for a data source."""

    def begin(
        self,
        source: Source,
        num_samples: int,
        device: torch.device | str = "cpu",
        split: Split = "test",
    ) -> Scores:
        """Return empty `Scores` for samples that are compared with `source`, after all checks.

        Args:
            source: the data.
            num_samples: number of samples that are scored.
            device: where scores are computed.
            split: the data that samples are compared with: "val" for scores during training, on
                which a checkpoint may be chosen, and "test" for final ones. Scores whose reference
                is the training data ignore it.

        Raises:
            UserError: weights, files, sizes or scores that do not fit.
        """

    def held_out(
        self, source: Source, num_samples: int, device: torch.device | str = "cpu"
    ) -> dict[str, Any] | None:
        """Return the scores of at most `num_samples` held-out samples; None if they are too few."""

    def baseline(
        self, source: Source, num_samples: int, device: torch.device | str = "cpu"
    ) -> dict[str, Any] | None:
        """Return the scores and the `name` of the strongest simple model of the data, or None."""

    def read(self, path: Path, source: Source) -> Samples:
        """Return the samples in a file or folder, checked against `source`.

        Raises:
            UserError: unreadable, or not samples of such a source.
        """


def refuse_unknown(request: Mapping[str, Any], *options: str) -> None:
    """Refuse settings of `sample.py` that a model family does not support.

    Args:
        request: as `ComponentFamily.draw` receives it.
        options: names of those it has.

    Raises:
        UserError: another option.
    """
    for name in request:
        allowed = f"one of {', '.join(options)}" if options else "it has none"
        message = f"{name}: no such setting of this model's sampling; {allowed}"
        refuse(name not in (*options, "num_samples"), message)

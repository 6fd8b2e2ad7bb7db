"""What a family of models offers to the programs: protocols of sources, draws and scores, and what else it may offer.

A family touches its own folder and `conf/`. The programs, the run directory, resume, preemption, guards, loggers,
sweeps and export see a model through these and `blackout.training.family.ComponentFamily` alone.
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
"""Training data, validation data, by which checkpoints and hyper-parameters are chosen, and test data, which no choice
has seen and on which final numbers are reported."""
SPLIT_NAMES: Mapping[Split, str] = {"train": "training", "val": "validation", "test": "test"}
"""The splits in words."""
Samples: TypeAlias = Mapping[str, Tensor]
"""Named arrays with one row per sample: `samples`, and whatever else the family has (`log_weight`, `order`)."""
Drawn: TypeAlias = Iterator[tuple[Tensor, Samples]]
"""(indices [b], their samples), a batch at a time."""
Watch: TypeAlias = Callable[[int, int, Tensor], None]
"""Called with (step, number of steps, state) at the start of a batch, step 0, and after each of its steps."""


class Source(Protocol):
    """What a model is trained on: a dataset in memory, objects made on the fly from their index, or an energy."""

    @property
    def name(self) -> str:
        """Short, for logs and directories."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Plain values that components ask for by parameter name: shape, num_sites, mean, ..."""

    def __str__(self) -> str:
        """One line for the summary of a run: sizes, shape, range."""

    def size(self, split: Split) -> int | None:
        """Number of samples of a split; None where there is no end of them.

        A source without validation data has 0 of them: then there is no validation during training.
        """

    def batch(self, split: Split, index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        """The samples with these numbers.

        Args:
            index: int64 [b].
            augment: uniforms [b], one per sample, for random mirroring and the like; None leaves samples as they are.
        """

    def fingerprint(self, split: Split) -> str:
        """A hash of the split's content and order: two sources with one fingerprint are the same."""

    def to(self, device: torch.device) -> Source:
        """The same source with its training data kept on `device`, if it has any."""


@runtime_checkable
class Conditional(Source, Protocol):
    """A source whose samples may have classes by which samples in a file are told apart."""

    condition: Mapping[str, Any]

    def select_condition(self, labels: Tensor) -> Conditional:
        """The part of it under the condition of labels, int64 [c], that samples take in turn."""


@dataclass(frozen=True)
class OutputNames:
    """What `sample.py` calls the results of a draw.

    Args:
        folder: where they are, below the run directory, unless the user says otherwise.
        file: the .npz of the samples, without suffix.
        array: the array `samples` in it.
        picture: the .png of the first samples, without suffix.
        shape: of one sample in the file; None for its own, images [C, H, W] as [H, W, C].
        units: offset and gain: the file holds offset + gain x counts.
    """

    folder: str = "samples"
    file: str = "samples"
    array: str = "samples"
    picture: str = "grid"
    shape: tuple[int, ...] | None = None
    units: tuple[int, int] = (0, 1)


class Outputs(Protocol):
    """What a draw leaves besides its samples: estimates from all of them, and files of its own."""

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Take a batch, on the CPU, with its indices, int64 [b]; batches come in order, on process 0 only."""

    def write(self, directory: Path) -> dict[str, Any]:
        """Write files into an existing directory.

        Returns:
            For metrics.json: `values`, numbers by name, and how they were made.
        """


@dataclass(frozen=True)
class References:
    """Values that scores are shown next to, by the names of the scores.

    Args:
        suffixes: a score `x` is shown next to `x_<suffix>` of the same report.
        bounds: scores that bound another one, and its name; they share its reference values.
        ideal: the value of a perfect model, or its expected value, by name of the score without `val/`
            or `test/`. Shown where a score has no other reference value.
    """

    suffixes: tuple[str, ...] = ("exact", "of_perfect", "of_truth", "ceiling")
    bounds: Mapping[str, str] = field(default_factory=dict)
    ideal: Mapping[str, float] = field(default_factory=dict)


class Draw(Protocol):
    """One way of drawing samples 0, 1, 2, ... of a seed: a model with a sampler, labels, observed elements.

    A family's own are subclasses, for which most of it is as they need it: a file of samples, a grid, and nothing else.
    """

    names: OutputNames = OutputNames()
    """What the results are called."""
    fewest: int = 1
    """Samples that are drawn at least where the user does not say how many."""
    resumable: bool = False
    """Whether a batch's samples are all that drawing it leaves, so that they need not be drawn again."""
    condition: Mapping[str, Any] = {}
    """What the samples are given, such as classes or a measurement, as plain values; empty for nothing."""
    references: References = References()
    """The reference values that the scores of this draw have."""

    if TYPE_CHECKING:  # fields of subclasses have these names: a property here would be their default

        @property
        def batch_size(self) -> int:
            """Samples drawn together unless the caller says otherwise."""

        @property
        def steps(self) -> int:
            """How many steps a batch takes, as `watch` counts them."""

        @property
        def nfe(self) -> int:
            """Number of network function evaluations per sample."""

        @property
        def description(self) -> Mapping[str, Any]:
            """The sampler as plain values, for metrics.json."""

    def rows(self, num_samples: int) -> int:
        """Samples in all where the user asks for `num_samples`, which may be of each measurement: as many."""
        return num_samples

    def outputs(self, seed: int) -> Outputs | None:
        """What is to be made of the samples of a seed besides their file: nothing."""
        return None

    def about(self, seed: int) -> Mapping[str, Any]:
        """Numbers and arrays by name that the file of the samples of a seed holds beside them: none."""
        return {}

    def compared_with(self, source: Source) -> Source:
        """What of a source the samples are scored against, what it holds under their condition: all, without one.

        Raises:
            UserError: it holds nothing under it, or it is not known what.
        """
        if self.condition:
            given = ", ".join(self.condition)
            raise UserError(f"evaluate=true: no held-out data are known under {given}: leave out one of the two")
        return source

    def batches(self, indices: Tensor, seed: int, batch_size: int | None = None, watch: Watch | None = None) -> Drawn:
        """Draw the samples named by `indices`, int64 [n], a batch at a time.

        The random numbers of sample k are a function of (seed, k) alone. The rounding of the network's
        outputs can depend on the shape of the batch, the device and the kind of processor.

        Yields:
            (indices [b], their samples).
        """

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """Some samples laid out in a grid; None where there is nothing to see."""


class Scores(Protocol):
    """Accumulated scores of `num_samples` samples, from any number of processes."""

    num_samples: int

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add samples with their numbers, int64 [b]."""

    def compute(self) -> dict[str, float]:
        """All scores by name, the same on every process; every process must call it."""

    def reset(self) -> None:
        """Forget all samples."""

    def provenance(self) -> dict[str, Any]:
        """How the scores are made, as plain values: what must agree for two of them to be comparable."""


class Scorer(Protocol):
    """A choice of scores, not yet applied to anything."""

    def begin(
        self, source: Source, num_samples: int, device: torch.device | str = "cpu", split: Split = "test"
    ) -> Scores:
        """Accumulators for that many samples compared with `source`; what cannot work fails here.

        Args:
            source: the data.
            num_samples: how many samples are scored.
            device: where scores are computed.
            split: the data that samples are compared with: "val" for scores during training, by which a checkpoint may
                be chosen, and "test" for final ones. Scores whose reference is the training data ignore it.

        Raises:
            UserError: weights, files, sizes or scores that do not fit.
        """

    def held_out(self, source: Source, num_samples: int, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The same scores of the source's own held-out samples, at most `num_samples`; None if they are too few."""

    def baseline(self, source: Source, num_samples: int, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The same scores of the strongest model that is fitted to the training samples, with its `name`, or None."""

    def read(self, path: Path, source: Source) -> Samples:
        """Samples in a file or folder, checked against `source`.

        Raises:
            UserError: unreadable, or not samples of such a source.
        """


def refuse_unknown(request: Mapping[str, Any], *options: str) -> None:
    """Refuse settings of `sample.py` that a family does not have.

    Args:
        request: as `ComponentFamily.draw` receives it.
        options: names of those it has.

    Raises:
        UserError: another option.
    """
    for name in request:
        refuse(name not in (*options, "num_samples"), f"{name}: no such option")

"""Samples as an AnnData file, with the features, columns and layers of the data they imitate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from blackout.data.formats import write_h5ad
from blackout.data.labels import decode_labels
from blackout.version import install_command

Array: TypeAlias = NDArray[Any]
# maps counts [n, D] to features of a network, float32 [n, width], or to None if it has none
Latent: TypeAlias = Callable[[Tensor], Array | None]


class Batch(NamedTuple):
    """A batch of samples in the form of the file."""

    rows: Any  # sparse matrix [b, D]
    indices: Array  # numbers of the samples, int64 [b]
    latent: Array | None  # [b, width]
    columns: dict[str, Array]  # of the table of samples, [b] each


@dataclass
class AnnotatedSamples:
    """Collects samples [b, D] as sparse rows and writes `samples.h5ad`.

    Args:
        facts: of the data, see `CountData.facts`: `features`, and where there are `covariates`,
            `class_names`, `class_values`, `layer` and `units` (offset and gain of the file).
        metadata: numbers and texts that the file holds besides its tables.
        covariates: values that the samples were drawn for, by column.
        latent: a representation of the samples.
    """

    facts: Mapping[str, Any]
    metadata: Mapping[str, Any]
    covariates: Mapping[str, Any]
    latent: Latent
    _batches: list[Batch] = field(default_factory=list)

    def update(self, samples: Mapping[str, Tensor], indices: Tensor) -> None:
        """Add samples with their numbers, int64 [b]."""
        from scipy.sparse import csr_matrix  # only here: it takes long to import

        counts = samples["samples"].cpu()
        offset, gain = self.facts.get("units") or (0, 1)
        columns = {}
        if "classes" in samples:
            columns = self._decode_columns(samples["classes"].cpu().numpy())
        rows = csr_matrix(counts.numpy().astype(np.int32) * gain + offset)
        self._batches.append(Batch(rows, indices.numpy(), self.latent(counts), columns))

    def write(self, directory: Path) -> dict[str, Any]:
        """Write `samples.h5ad`, or warn that the library is not installed.

        Returns:
            Scores of the samples: none.
        """
        from scipy.sparse import vstack  # only here: it takes long to import

        rows = vstack([batch.rows for batch in self._batches], format="csr")
        indices = np.concatenate([batch.indices for batch in self._batches])
        columns = {}
        for name in self._batches[0].columns:
            columns[name] = np.concatenate([batch.columns[name] for batch in self._batches])
        latent = [batch.latent for batch in self._batches if batch.latent is not None]
        layer = self.facts.get("layer")
        try:
            write_h5ad(
                directory / "samples.h5ad",
                rows,
                indices,
                self.facts["features"],
                columns,
                layers={layer: rows} if layer else {},
                obsm={"X_blackout": np.concatenate(latent)} if latent else {},
                uns=dict(self.metadata),
            )
        except ImportError:
            advice = install_command("science")
            warnings.warn(f"samples.h5ad is written by anndata: {advice}", stacklevel=2)
        return {}

    def _decode_columns(self, labels: Array) -> dict[str, Array]:
        """Return the covariates and classes that labels [b] stand for, by column."""
        levels_by_name = self.facts.get("covariates") or {}
        sizes = [len(values) for values in levels_by_name.values()]
        class_labels, *levels = decode_labels(labels, sizes)
        columns = {}
        for (name, values), level in zip(levels_by_name.items(), levels, strict=True):
            columns[name] = np.asarray(values)[level]
            value = self.covariates.get(name)
            if isinstance(value, int | float):  # the value itself, not those of levels around it
                columns[name] = np.full(len(labels), float(value))
        class_names = self.facts.get("class_names")
        class_columns = self.facts.get("class_values")
        if not class_columns:
            class_columns = {"class": class_names} if class_names else {}
        for name, values in class_columns.items():
            columns[name] = np.asarray(values)[class_labels]
        return columns

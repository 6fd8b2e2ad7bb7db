"""Samples as AnnData, beside their .npz, where the data came from it: an .h5ad with the names of the features."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from blackout.family import Samples
from blackout.files import replacing


@dataclass
class AnnotatedSamples:
    """Takes samples [b, D] as sparse rows and writes `samples.h5ad`.

    Args:
        features: names of the D elements.
        classes: names of the classes; none for models without.
        covariates: values of the levels of each covariate, which labels count fastest.
        about: numbers for `uns`.
    """

    features: Sequence[str]
    classes: Sequence[str]
    covariates: Mapping[str, Sequence[float]]
    about: Mapping[str, int]
    _rows: list[Any] = field(default_factory=list)
    _columns: dict[str, list[Any]] = field(default_factory=dict)

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Take the next samples."""
        from scipy.sparse import csr_matrix

        self._rows.append(csr_matrix(samples["samples"].cpu().numpy().astype(np.int32)))
        columns = {"index": indices.numpy()}
        if "classes" in samples:
            columns |= self._conditions(samples["classes"].cpu().numpy())
        for name, values in columns.items():
            self._columns.setdefault(name, []).append(values)

    def _conditions(self, labels: Any) -> dict[str, Any]:
        found = {}
        for name, values in reversed(list(self.covariates.items())):
            found[name] = np.asarray(values)[labels % len(values)]
            labels = labels // len(values)
        known = len(labels) > 0 and labels.max() < len(self.classes)
        return {**found, "class": np.asarray(self.classes)[labels]} if known else found

    def write(self, directory: Path) -> dict[str, Any]:
        """Write samples.h5ad; without the library a warning says so."""
        try:
            import anndata
            import pandas
        except ImportError:
            warnings.warn('samples.h5ad is written by anndata: pip install "blackout[science]"', stacklevel=2)
            return {}
        from scipy.sparse import vstack

        observed = pandas.DataFrame({name: np.concatenate(parts) for name, parts in self._columns.items()})
        observed.index = observed.pop("index").astype(str)
        made = anndata.AnnData(vstack(self._rows, format="csr"), obs=observed, uns=dict(self.about))
        made.var_names = list(self.features)
        with replacing(directory / "samples.h5ad") as part:
            made.write_h5ad(part)
        return {}

"""Scores of permutations: how many are valid and different, and what their data say of each of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.distributed import sum_over_processes
from blackout.errors import UserError
from blackout.family import Samples
from blackout.permutations.coded.data import Judge, PermutationData
from blackout.permutations.group import identity_like, is_permutation


class CodeScorer:
    """Valid and unique shares, and the figures of single samples that the data define (cyclic, ndcg_at_5, ...)."""

    def begin(self, source: PermutationData, num_samples: int, device: torch.device | str = "cpu") -> PermutationScores:
        """Accumulators for that many samples."""
        if not isinstance(source, PermutationData):
            raise UserError(f"metrics: scores of permutations need permutations, not {source.name}")
        return PermutationScores(source, num_samples)

    def held_out(
        self, source: PermutationData, num_samples: int, device: torch.device | str = "cpu"
    ) -> dict[str, Any] | None:
        """The same of the held-out samples."""
        size = min(num_samples, source.size("test") or 0)
        index = torch.arange(size)
        batch = source.batch("test", index)
        scores = self.begin(source, size)
        scores.update({"samples": batch["x"], "target": batch["x"], **batch}, index)
        return {"num_samples": size, **scores.compute()}

    def read(self, path: Path, source: PermutationData) -> Samples:
        """Permutations in an `.npz` that `sample.py` wrote, or an `.npy` file [N, n].

        Raises:
            UserError: anything else.
        """
        try:
            loaded = np.load(path, allow_pickle=False)
        except Exception as error:  # NumPy's parsers raise half a dozen types on damaged files
            raise UserError(f"{path}: not a readable .npy or .npz file") from error
        arrays = {"permutation": loaded} if isinstance(loaded, np.ndarray) else {k: loaded[k] for k in loaded.files}
        x = arrays.pop("permutation", None)
        if x is None or x.dtype.kind not in "iu" or x.ndim != 2 or x.shape[1] != source.length:
            raise UserError(f"{path}: integers [N, {source.length}], the array `permutation`, are needed")
        return {"samples": torch.from_numpy(x.astype(np.int64)), **{k: torch.from_numpy(v) for k, v in arrays.items()}}


class PermutationScores:
    """Accumulated scores, from any number of processes.

    Args:
        source: what is compared with.
        num_samples: n; samples are numbered 0..n-1 over all processes.
    """

    def __init__(self, source: PermutationData, num_samples: int) -> None:
        self.num_samples, self._source = num_samples, source
        self.reset()

    def reset(self) -> None:
        """Forget all samples."""
        self._all = torch.zeros(self.num_samples, self._source.length, dtype=torch.int64)
        self._sums: dict[str, Tensor] = {}

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add samples [b, n] with their numbers."""
        here = {name: values.cpu() for name, values in samples.items()}
        x = here["samples"]
        valid = is_permutation(x) if "valid" not in here else here["valid"]
        self._all[indices.cpu()] = x
        figures: dict[str, Tensor] = {"valid": valid.double()}
        if self._source.judge is not None:
            figures |= _judged(self._source.judge, here, is_permutation(x))
        for name, values in figures.items():
            counted = torch.stack([values.nan_to_num(0.0).sum(), (~values.isnan()).sum().double()])
            self._sums[name] = self._sums.get(name, torch.zeros(2, dtype=torch.float64)) + counted

    def compute(self) -> dict[str, float]:
        """Means over samples, and the share of different ones with that of a perfect sampler, where it is known."""
        everything = sum_over_processes(self._all.clone())
        values: dict[str, float] = {}
        if self._source.kind is None:
            values["unique"] = len(everything.unique(dim=0)) / self.num_samples
        if self._source.members is not None:
            values["unique_of_perfect"] = expected_unique(len(self._source.members), self.num_samples)
        for name in sorted(self._sums):
            total, count = sum_over_processes(self._sums[name].clone()).tolist()
            values[name] = total / count if count else math.nan
        return values

    def provenance(self) -> dict[str, Any]:
        """What was compared with."""
        return {"scores": "permutations", "scored": self.num_samples, "data": self._source.fingerprint("test")}


def _judged(judge: Judge, samples: Samples, whole: Tensor) -> dict[str, Tensor]:
    """Figures of the samples that are permutations; 0 for the others, which the judge sees as the identity."""
    x = samples["samples"]
    x = torch.where(whole.unsqueeze(1), x, identity_like(x))
    return {name: value.masked_fill(~whole, 0.0) for name, value in judge({**samples, "samples": x}).items()}


def expected_unique(size: int, draws: int) -> float:
    """Expected share of different values among uniform draws from `size` of them."""
    return size * -math.expm1(draws * math.log1p(-1 / size)) / draws if size > 1 else 1 / draws

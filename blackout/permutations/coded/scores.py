"""Scores of sampled permutations."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.component import component
from blackout.data.formats import load_arrays
from blackout.distributed import sum_over_processes
from blackout.errors import UserError, refuse
from blackout.permutations.coded.data import PermutationData
from blackout.permutations.group import identity_like, is_permutation
from blackout.permutations.metrics import SAMPLE_METRICS, expected_unique_share, rearrange
from blackout.protocols import Samples, Split


@component("metrics")
class CodeScorer:
    """Scores of sampled permutations.

    These are the shares of valid and of unique samples, and the scores of single samples that the
    data set defines.
    """

    def begin(
        self,
        source: PermutationData,
        num_samples: int,
        device: torch.device | str = "cpu",
        split: Split = "test",
    ) -> PermutationScores:
        """Return accumulators for samples.

        Raises:
            UserError: another kind of data, or an empty split.
        """
        if not isinstance(source, PermutationData):
            raise UserError(
                f"metrics=permutations needs a dataset of permutations, and {source.name} is none"
            )
        refuse(
            not source.size(split),
            f"metrics: {source.name} has no {split} data to compare samples with",
        )
        return PermutationScores(source, num_samples, split)

    def held_out(
        self, source: PermutationData, num_samples: int, device: torch.device | str = "cpu"
    ) -> dict[str, Any]:
        """Return the scores of test permutations."""
        index = torch.arange(min(num_samples, source.size("test") or 0))
        batch = source.batch("test", index)
        scores = self.begin(source, len(index))
        scores.update({"samples": batch["x"], "target": batch["x"], **batch}, index)
        return {"num_samples": len(index), "values": scores.compute()}

    def baseline(
        self, source: PermutationData, num_samples: int, device: torch.device | str = "cpu"
    ) -> None:
        """Return None: classical models are compared by their likelihood."""

    def read(self, path: Path, source: PermutationData) -> Samples:
        """Read permutations from an `.npz` of `sample.py`, or from an `.npy` file [N, n].

        Raises:
            UserError: another format.
        """
        loaded = load_arrays(path)
        arrays = loaded if isinstance(loaded, dict) else {"permutation": loaded}
        x = arrays.pop("permutation", None)
        if x is None or x.dtype.kind not in "iu" or x.ndim != 2 or x.shape[1] != source.length:
            raise UserError(
                f"{path}: must have an array `permutation` of integers [N, {source.length}]"
            )
        columns = {name: torch.from_numpy(values) for name, values in arrays.items()}
        return {"samples": torch.from_numpy(x.astype(np.int64)), **columns}


class PermutationScores:
    """Accumulated scores of samples, from any number of processes.

    Args:
        source: with which samples are compared.
        num_samples: total; samples are numbered 0..num_samples-1 over all processes.
        split: of the source, whose contexts the samples have.
    """

    def __init__(self, source: PermutationData, num_samples: int, split: Split = "test") -> None:
        self.num_samples = num_samples
        self._source = source
        self._split = split
        self.reset()

    def reset(self) -> None:
        """Remove all samples."""
        self._samples = torch.zeros(self.num_samples, self._source.length, dtype=torch.int64)
        self._sums: dict[str, Tensor] = {}  # sum and count of every score, float64 [2]

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add samples [b, n] with their indices int64 [b]."""
        batch = {name: values.cpu() for name, values in samples.items()}
        x = batch["samples"]
        valid = is_permutation(x)
        self._samples[indices.cpu()] = x
        scores: dict[str, Tensor] = {"valid": batch.get("valid", valid).double()}
        if self._source.sample_scores is not None:
            # rows that are no permutations are scored as the identity, and then set to 0
            batch["samples"] = torch.where(valid.unsqueeze(1), x, identity_like(x))
            for name, values in self._source.sample_scores(batch).items():
                scores[name] = values.masked_fill(~valid, 0.0)
        for name, values in scores.items():
            has_value = ~values.isnan()
            batch_sums = torch.stack([values.nan_to_num(0.0).sum(), has_value.sum().double()])
            earlier_sums = self._sums.get(name, torch.zeros(2, dtype=torch.float64))
            self._sums[name] = earlier_sums + batch_sums

    def compute(self) -> dict[str, float]:
        """Return mean scores, and the share of distinct samples with that of a perfect sampler.

        References: Severo et al. 2025, section 5.2; see `expected_unique_share`.
        """
        samples = sum_over_processes(self._samples.clone())
        values: dict[str, float] = {}
        if self._source.kind is None:
            values["unique"] = len(samples.unique(dim=0)) / self.num_samples
        if self._source.members is not None:
            num_members = len(self._source.members)
            values["unique_of_perfect"] = expected_unique_share(num_members, self.num_samples)
        for name in sorted(self._sums):
            total, count = sum_over_processes(self._sums[name].clone()).tolist()
            values[name] = total / count if count else math.nan
        return values

    def figure(self) -> Any:
        """Return a figure of how often items precede others, in held-out orders and in samples.

        The result is None for puzzles.
        """
        # imported here, because loading a model does not need Pillow
        from blackout.permutations.plots import precedence_figure, precedence_shares

        source = self._source
        if source.kind not in (None, "rankings"):
            return None
        size = source.size(self._split) or 0
        num_items = source.num_tokens or source.length
        num_samples = len(self._samples)
        held_out_index = torch.linspace(0, size - 1, min(size, num_samples)).long()
        sample_index = torch.arange(num_samples) % size
        shares: dict[str, Tensor] = {}
        for name, index in (("held out", held_out_index), ("samples", sample_index)):
            batch = source.batch(self._split, index)
            x = self._samples if name == "samples" else batch["x"].cpu()
            valid = is_permutation(x)
            items = batch["items"].cpu() if "items" in batch else identity_like(x)
            shares[name] = precedence_shares(rearrange(items[valid], x[valid]), num_items)
        return precedence_figure(shares, source.item_names)

    def provenance(self) -> dict[str, Any]:
        """Return the data with which samples were compared."""
        return {
            "scores": "permutations",
            "scored": self.num_samples,
            "metric_descriptions": {name: asdict(score) for name, score in SAMPLE_METRICS.items()},
            "data": self._source.fingerprint(self._split),
        }

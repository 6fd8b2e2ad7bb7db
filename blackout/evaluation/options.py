"""The scores, their names and their constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blackout.errors import UserError
from blackout.evaluation.extractors import Extractor

SCORES = ("fd", "is", "kd", "prc", "classes")
INCEPTION_NAMES = {"fd": "fid", "kd": "kid"}
"""Names of the distances with Inception features, and only with these."""


@dataclass(frozen=True)
class ScoreOptions:
    """Constants of the scores, by default those of the papers and of torch-fidelity.

    Attributes:
        splits: parts of the Inception Score.
        kernel_subsets: random subsets of the kernel distance.
        kernel_subset_size: samples per subset.
        neighbours: k of precision and recall.
        density_neighbours: k of density and coverage.
        recognised_above: class probability from which a sample counts as recognised.
        seed: seed of shuffles and subsets.

    Raises:
        UserError: a constant out of range.
    """

    splits: int = 10
    kernel_subsets: int = 100
    kernel_subset_size: int = 1000
    neighbours: int = 3
    density_neighbours: int = 5
    recognised_above: float = 0.8
    seed: int = 2020

    def __post_init__(self) -> None:
        least = {"splits": 1, "kernel_subsets": 1, "kernel_subset_size": 2, "neighbours": 1, "density_neighbours": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise UserError(f"metrics.options.{name}={getattr(self, name)}: it must be at least {bound}")
        if not 0 <= self.recognised_above < 1:
            raise UserError(f"metrics.options.recognised_above={self.recognised_above}: it must be in [0, 1)")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"metrics.options.seed={self.seed}: it must be in 0..4294967295")


def general_names(scores: Sequence[str]) -> tuple[str, ...]:
    """The chosen scores with fd for `fid` and kd for `kid`.

    Raises:
        UserError: no score, an unknown one, or one named twice.
    """
    general = {name: score for score, name in INCEPTION_NAMES.items()}
    chosen = tuple(general.get(score, score) for score in scores)
    if not chosen or set(chosen) - set(SCORES) or len(set(chosen)) < len(chosen):
        options = f"{', '.join(SCORES)} (with Inception also fid, kid)"
        raise UserError(f"metrics.scores={list(scores)}: name one or more of {options}, each once")
    return chosen


def check_scores(scores: Sequence[str], extractor: Extractor) -> tuple[str, ...]:
    """The chosen scores in their general names, if the extractor can give them.

    Raises:
        UserError: FID or KID without Inception, or a score that needs logits without these.
    """
    chosen = general_names(scores)
    if not extractor.canonical and set(scores) & set(INCEPTION_NAMES.values()):
        advice = f"with the extractor {extractor.name} write fd and kd"
        raise UserError(f"metrics.scores={list(scores)}: FID and KID are defined by Inception features only; {advice}")
    if extractor.num_classes is None and {"is", "classes"} & set(chosen):
        raise UserError(f"metrics.scores={list(scores)}: is and classes need logits; {extractor.name} gives none")
    return chosen


def reported_name(score: str, extractor: Extractor) -> str:
    """Name of a score in results: plain with Inception features, otherwise ending in the extractor's name."""
    return INCEPTION_NAMES.get(score, score) if extractor.canonical else f"{score}_{extractor.name}"

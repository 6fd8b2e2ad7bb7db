"""Scores of generated images (FID, Inception Score, KID, precision and recall) and counts, with their provenance."""

from blackout.evaluation.class_scores import ClassShares, InceptionScore
from blackout.evaluation.count_baselines import baseline_bits
from blackout.evaluation.count_scores import CountScorer, CountScores
from blackout.evaluation.features import FeatureStatistics
from blackout.evaluation.frechet import frechet_distance
from blackout.evaluation.image_scores import ImageScores
from blackout.evaluation.images import to_uint8
from blackout.evaluation.kernel import kernel_distance
from blackout.evaluation.neighbours import precision_recall
from blackout.evaluation.options import ScoreOptions
from blackout.evaluation.reference import Reference, dataset_reference, file_reference, write_reference
from blackout.evaluation.report import over_seeds
from blackout.evaluation.scorer import Scorer, score_all

__all__ = [
    "ClassShares", "CountScorer", "CountScores", "FeatureStatistics", "ImageScores", "InceptionScore", "Reference",
    "ScoreOptions", "Scorer", "baseline_bits", "dataset_reference", "file_reference", "frechet_distance",
    "kernel_distance", "over_seeds", "precision_recall", "score_all", "to_uint8", "write_reference",
]  # fmt: skip

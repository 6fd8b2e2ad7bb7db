"""Scores of generated images (FID, Inception Score, KID, precision and recall) and counts, with their provenance."""

from blackout.evaluation.baselines import baseline_bits, copula_samples
from blackout.evaluation.count_scores import CountScorer, CountScores
from blackout.evaluation.extractors import Classifier, Inception, ModuleExtractor, to_uint8
from blackout.evaluation.fid import FeatureStatistics, frechet_distance
from blackout.evaluation.image_scores import (
    ClassShares,
    ImageScores,
    InceptionScore,
    Scorer,
    over_seeds,
    precision_recall,
    score_all,
)
from blackout.evaluation.reference import Reference, dataset_reference, file_reference, write_reference

__all__ = [
    "ClassShares", "Classifier", "CountScorer", "CountScores", "FeatureStatistics", "ImageScores",
    "Inception", "InceptionScore", "ModuleExtractor", "Reference", "Scorer",
    "baseline_bits", "copula_samples", "dataset_reference", "file_reference", "frechet_distance", "over_seeds",
    "precision_recall", "score_all", "to_uint8", "write_reference",
]  # fmt: skip

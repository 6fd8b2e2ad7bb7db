"""Scores of generated images (FID, Inception Score, KID, precision and recall) and of counts."""

from blackout.evaluation.baselines import baseline_bits, copula_samples
from blackout.evaluation.count_scores import CountScorer, CountScores
from blackout.evaluation.extractors import Classifier, Inception, ModuleExtractor, to_uint8
from blackout.evaluation.fid import FeatureStatistics, frechet_distance
from blackout.evaluation.image_scores import (
    ClassShares,
    ImageScores,
    InceptionScore,
    Scorer,
    compute_scores,
    precision_recall,
    summarise_seeds,
)
from blackout.evaluation.reference import (
    Reference,
    dataset_reference,
    file_reference,
    write_reference,
)

__all__ = [
    "ClassShares",
    "Classifier",
    "CountScorer",
    "CountScores",
    "FeatureStatistics",
    "ImageScores",
    "Inception",
    "InceptionScore",
    "ModuleExtractor",
    "Reference",
    "Scorer",
    "baseline_bits",
    "compute_scores",
    "copula_samples",
    "dataset_reference",
    "file_reference",
    "frechet_distance",
    "precision_recall",
    "summarise_seeds",
    "to_uint8",
    "write_reference",
]

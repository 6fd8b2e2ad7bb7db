"""Scores of generated images (FID, Inception Score, KID, precision and recall) and of counts.

- Images: `image_scorer` has the settings (`metrics=inception`), `image_scores` accumulates samples.
  `extractors` has the networks of features, `reference` the statistics of real images. The scores
  are in `fid`, `inception_score`, `kernel_distance`, `precision_recall` and `class_shares`.
- Counts: `count_scorer` has the settings (`metrics=counts`), `count_scores` accumulates samples,
  and `count_comparison` compares them with real counts, by `classifier_tests` and `count_pairs`.
- Both: `baselines` are fitted models to beat, `cache` keeps files between runs, and `seed_summary`
  summarises several runs.
"""

from blackout.evaluation.baselines import baseline_bits, copula_samples
from blackout.evaluation.class_shares import ClassShares
from blackout.evaluation.count_scorer import CountScorer
from blackout.evaluation.count_scores import CountScores
from blackout.evaluation.extractors import Classifier, Inception, ModuleExtractor, to_uint8
from blackout.evaluation.fid import FeatureStatistics, frechet_distance
from blackout.evaluation.image_scorer import ImageScorer
from blackout.evaluation.image_scores import ImageScores, compute_scores
from blackout.evaluation.inception_score import InceptionScore
from blackout.evaluation.precision_recall import precision_recall
from blackout.evaluation.reference import (
    Reference,
    dataset_reference,
    file_reference,
    write_reference,
)
from blackout.evaluation.seed_summary import summarise_seeds

__all__ = [
    "ClassShares",
    "Classifier",
    "CountScorer",
    "CountScores",
    "FeatureStatistics",
    "ImageScorer",
    "ImageScores",
    "Inception",
    "InceptionScore",
    "ModuleExtractor",
    "Reference",
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

"""Callbacks of training, one in each file, except those that save or stop a run.

StepProgressBar    a bar, or plain lines where the output is no terminal
SampleGrid         pictures of the same samples
Throughput         samples per second
Scores             scores of samples during training, and of the final model
"""

from blackout.training.callbacks.progress_bar import StepProgressBar
from blackout.training.callbacks.sample_grid import SampleGrid, draw_first
from blackout.training.callbacks.scores import Scores, reference_scores, score_samples
from blackout.training.callbacks.throughput import Throughput

__all__ = [
    "SampleGrid",
    "Scores",
    "StepProgressBar",
    "Throughput",
    "draw_first",
    "reference_scores",
    "score_samples",
]

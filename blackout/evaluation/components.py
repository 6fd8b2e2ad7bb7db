"""The scores that a model file may name: those whose networks are in this package, or tensors at a fixed address."""

from __future__ import annotations

from blackout.addresses import Table

TABLE = Table(
    made={"metrics": ("CountScorer", "Scorer"), "options": ("ScoreOptions",)},
    passed={"extractor": ("extractors.Classifier", "extractors.Inception")},
    asked={
        "extractors.DINOv2": "metrics=dinov2",
        "extractors.ModuleExtractor": "metrics=custom",
        "extractors.ScriptExtractor": "metrics=custom metrics/extractor=script",
    },
)

"""Networks whose features the scores compare."""

from blackout.evaluation.extractors.base import Extractor, Features, ModuleExtractor
from blackout.evaluation.extractors.classifier import Classifier
from blackout.evaluation.extractors.fidelity import DINOv2, Inception
from blackout.evaluation.extractors.script import ScriptExtractor

__all__ = ["Classifier", "DINOv2", "Extractor", "Features", "Inception", "ModuleExtractor", "ScriptExtractor"]

"""Seconds to score 10,000 images, for the extractor and the rest: `python -m benchmarks.scores`.

The Inception network has random weights, which take as long as the real ones and need no download.
The rest uses random features: sums while images arrive, and the scores at the end.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.measure import arguments, interleaved, peak_memory, report, summary
from blackout.evaluation.extractors import Features, Inception, ModuleExtractor
from blackout.evaluation.image_scores import ImageScores
from blackout.evaluation.reference import Reference

SCORES = (["fd"], ["is"], ["kd"], ["prdc"], ["fd", "is", "kd", "prdc"])


class Ready(ModuleExtractor):
    """An extractor with precomputed features [N, F] and logits [N, K], returned in order."""

    def __init__(self, features: Tensor, logits: Tensor) -> None:
        super().__init__(nn.Identity(), "ready", features.shape[1], logits.shape[1])
        self.features = features
        self.logits = logits
        self.at = 0

    def __call__(self, images: Tensor) -> Features:
        part = slice(self.at, self.at + len(images))
        self.at = part.stop % len(self.features)
        return Features(self.features[part], self.logits[part])

    def to(self, device: torch.device | str) -> Self:
        """Move the features."""
        super().to(device)
        self.features, self.logits = self.features.to(device), self.logits.to(device)
        return self


def random_inception() -> ModuleExtractor:
    with tempfile.TemporaryDirectory() as folder:
        write_inception_weights(Path(folder) / "weights.pth")
        return Inception(Path(folder) / "weights.pth")


def write_inception_weights(path: Path, seed: int = 0) -> None:
    """Write weights for torch-fidelity's Inception, He-initialised for features of size O(1)."""
    from torch_fidelity import FeatureExtractorInceptionV3, feature_extractor_inceptionv3

    weights: dict[str, Tensor] = {}

    def keep(module: nn.Module, _: object) -> None:
        weights.update(nn.Module.state_dict(module))

    with (
        torch.random.fork_rng(devices=[]),
        mock.patch.object(
            feature_extractor_inceptionv3, "load_state_dict_from_url", return_value={}
        ),
        mock.patch.object(FeatureExtractorInceptionV3, "load_state_dict", keep),
    ):
        torch.manual_seed(seed)
        FeatureExtractorInceptionV3("inception-v3-compat", ["2048"])
        for name, value in weights.items():
            if name.endswith("conv.weight"):
                nn.init.kaiming_normal_(value)
    torch.save(weights, path)


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--images", type=int, default=64, help="for the extractor; its time is scaled to 10,000"
    )
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    warnings.simplefilter("ignore", UserWarning)  # few images in quick mode
    images, total, width, repetitions = (
        (2, 50, 16, 1) if options.quick else (options.images, 10_000, 2048, 0)
    )
    repetitions = repetitions or options.repetitions

    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(
        0, 256, (images, 3, 32, 32), generator=generator, dtype=torch.uint8
    ).to(device)
    inception = random_inception().to(device)
    cases: dict[str, Callable[[], Any]] = {
        "extractor: Inception": lambda: [
            inception(batch) for batch in pictures.split(options.batch)
        ]
    }
    fake, real = (torch.randn(total, width, generator=generator) + shift for shift in (0.0, 0.1))
    logits = torch.randn(total, 1008, generator=generator)
    reference = Reference(real.double().mean(0), torch.cov(real.T.double()), total, real)
    counts = torch.zeros(total, 3, 1, 1, dtype=torch.uint8, device=device)
    indices = torch.arange(total, device=device)
    for scores in SCORES:
        extractor = Ready(fake, logits)
        accumulators = ImageScores(extractor.to(device), total, scores, reference)

        def score_features(accumulators: ImageScores = accumulators) -> dict[str, float]:
            accumulators.reset()
            accumulators.update({"samples": counts}, indices)
            return accumulators.compute()

        cases[f"rest: {', '.join(scores)}"] = score_features
    timings = {
        name: summary(seconds) for name, seconds in interleaved(cases, repetitions, device).items()
    }
    rows = []
    for name, timing in timings.items():
        scale = 10_000 / (images if name.startswith("extractor") else total)
        rows.append(
            {
                "part": name,
                "s per 10,000 images": timing["median"] * scale,
                "least s": timing["least"] * scale,
            }
        )
    report(f"scores, features [n, {width}]", rows, options, peak_GiB=round(peak_memory(device), 2))


if __name__ == "__main__":
    main()

"""Extractors of torch-fidelity: the reference implementation of the FID's Inception network, and DINOv2."""

from __future__ import annotations

from http.client import HTTPException
from pathlib import Path

import torch
from torch import Tensor, nn

from blackout.distributed import first_process_first
from blackout.errors import UserError
from blackout.evaluation.extractors.base import ModuleExtractor

DINOV2_WIDTHS = {"s": 384, "b": 768, "l": 1024, "g": 1536}


class Inception(ModuleExtractor):
    """Inception-v3 of 2015 as torch-fidelity ports it: the network by which FID, IS and KID are defined.

    Features are the 2048 values after the last pooling; logits those without bias, as in the original Inception Score.
    Images are resized to 299 x 299 bilinearly as by TensorFlow 1; values made with another resizing, in which libraries
    differ most, are not comparable.

    Args:
        weights: file with the network's state (torch-fidelity's `weights-inception-2015-12-05-*.pth`); by default
            torch-fidelity downloads it on first use into PyTorch's hub folder.

    Raises:
        UserError: no such file, not such weights, or nothing to download from.
    """

    canonical = True

    def __init__(self, weights: str | Path | None = None) -> None:
        from torch_fidelity import FeatureExtractorInceptionV3
        from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

        cached = Path(torch.hub.get_dir()) / "checkpoints" / URL_INCEPTION_V3.rsplit("/", 1)[-1]
        path = Path(weights) if weights is not None else cached
        if weights is not None and not path.is_file():
            raise UserError(f"metrics.extractor.weights={path}: there is no such file")
        with first_process_first():
            if not path.is_file():
                _download(URL_INCEPTION_V3, cached)
            _check_tensors_only(path)
        try:
            network = FeatureExtractorInceptionV3(
                "inception-v3-compat", ["2048", "logits_unbiased"], feature_extractor_weights_path=str(path)
            )
        except (RuntimeError, KeyError, TypeError) as error:
            raise UserError(f"{path} does not hold the weights of torch-fidelity's Inception-v3") from error
        super().__init__(network, "inception", 2048, 1008, "299x299 bilinear as TensorFlow 1 (torch-fidelity)")


class DINOv2(ModuleExtractor):
    """Features of DINOv2 through torch-fidelity, for the Frechet distance that Stein et al. (2023) propose.

    Their FD-DINOv2 is that of `size="l"`, resized to 224 x 224 bicubically; torch-fidelity resizes bilinearly as
    TensorFlow 1, so the two are not comparable. The code and the weights come from `facebookresearch/dinov2` through
    PyTorch's hub on first use, and that code is executed.

    Args:
        size: s, b, l or g.

    Raises:
        UserError: another size, or nothing to download from.
    """

    def __init__(self, size: str = "l") -> None:
        if size not in DINOV2_WIDTHS:
            raise UserError(f"metrics.extractor.size={size}: allowed are {', '.join(DINOV2_WIDTHS)}")
        from torch_fidelity import FeatureExtractorDinoV2

        hub = Path(torch.hub.get_dir())
        with first_process_first():
            try:
                network = FeatureExtractorDinoV2(f"dinov2-vit-{size}-14", ["dinov2"])
            except Exception as error:  # the hub passes on whatever the download or its code raises
                repository = f"the repository facebookresearch/dinov2 at {hub / 'facebookresearch_dinov2_main'}"
                weights = f"dinov2_vit{size}14_pretrain.pth into {hub / 'checkpoints'}"
                advice = f"without a network connection, put {repository} and {weights}"
                raise UserError(f"DINOv2 could not be loaded ({_brief(error)}); {advice}") from error
        name, resize = (
            "dinov2" if size == "l" else f"dinov2_{size}",
            "224x224 bilinear as TensorFlow 1 (torch-fidelity)",
        )
        super().__init__(_First(network), name, DINOV2_WIDTHS[size], resize=resize)


class _First(nn.Module):
    """The only entry of the tuple that a torch-fidelity extractor returns."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network(images)[0]
        return features


def _download(url: str, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # PyTorch's names of weights end with the first digits of their SHA-256
        torch.hub.download_url_to_file(url, str(path), hash_prefix=path.stem.rsplit("-", 1)[-1], progress=True)
    except RuntimeError as error:
        raise UserError(f"the Inception weights at {url} are not what they were: {error}") from error
    except (OSError, HTTPException) as error:  # URLError is an OSError
        advice = f"fetch {url} and put it at {path}, or pass metrics.extractor.weights=<file>"
        raise UserError(f"the Inception weights could not be downloaded ({_brief(error)}); {advice}") from error


def _check_tensors_only(path: Path) -> None:
    """Refuse what PyTorch's safe loader does not accept, because torch-fidelity unpickles without restriction."""
    try:
        torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # garbage fails in the loader in many ways
        raise UserError(f"{path} is damaged or is not a file of PyTorch weights") from error


def _brief(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

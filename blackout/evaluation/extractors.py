"""Networks whose features the scores compare: any module, and Inception of torch-fidelity."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from blackout.component import component
from blackout.distributed import first_process_first
from blackout.errors import Unobtainable, UserError, summary
from blackout.files import tensors_hash


class Features(NamedTuple):
    """Features [B, F] and, where the network classifies, logits [B, K]; both float32."""

    features: Tensor
    logits: Tensor | None


@component(passed=("extractor",), ask="metrics=custom")
class ModuleExtractor:
    """Any `nn.Module` that takes uint8 images [B, 3, H, W] and returns features, or (features, logits).

    The module scales and resizes its input itself. It is put in eval mode, frozen, and run in full float32 whatever
    mixed precision or TF32 setting the training uses, so that scores do not depend on these.

    Args:
        module: the network.
        name: short name for the scores (letters, digits and _).
        num_features: F, the width of its features.
        num_classes: K, the width of its logits; None when it returns features alone.
        resize: how the module resizes, in words.

    Raises:
        UserError: a name with other characters, or `inception`.
    """

    canonical = False
    """True for the network by which FID and KID are defined; only its scores have these names."""

    def __init__(
        self,
        module: nn.Module,
        name: str,
        num_features: int,
        num_classes: int | None = None,
        resize: str = "by the module",
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_]+", name) or (name == "inception" and not self.canonical):
            advice = "use letters, digits and _, but not 'inception', FID's own"
            raise UserError(f"metrics.extractor.name={name!r}: {advice}")
        self.module = module.eval()
        for parameter in module.parameters():  # a scripted module has no requires_grad_ of its own
            parameter.requires_grad_(False)
        self.name, self.num_features, self.num_classes, self.resize = name, num_features, num_classes, resize
        self.device = torch.device("cpu")

    @cached_property
    def identity(self) -> str:
        """SHA-256 (hex) of the module's class and state; features with different identities never mix."""
        kind = type(self.module)
        return tensors_hash(f"{kind.__module__}.{kind.__qualname__}", self.module.state_dict())

    def to(self, device: torch.device | str) -> Self:
        """Move the module to a device; returns itself."""
        self.device = torch.device(device)
        self.module.to(self.device)
        return self

    def __call__(self, images: Tensor) -> Features:
        """Features of uint8 images [B, 3, H, W].

        Raises:
            UserError: the module returns something else than was declared.
        """
        with torch.no_grad(), full_float32(self.device):
            output = self.module(images.to(self.device))
        parts = [*output, None][:2] if isinstance(output, tuple | list) else [output, None]
        for what, part, width in zip(("features", "logits"), parts, (self.num_features, self.num_classes), strict=True):
            shape = (len(images), width)
            if width is not None and (not isinstance(part, Tensor) or part.shape != shape):
                got = list(part.shape) if isinstance(part, Tensor) else type(part).__name__
                raise UserError(f"extractor {self.name}: the {what} should be {list(shape)}, but are {got}")
        features, logits = parts
        return Features(features.float(), None if self.num_classes is None else logits.float())


@contextmanager
def full_float32(device: torch.device | str) -> Iterator[None]:
    """No autocast and no TF32 inside: both would change features by about 0.1 %."""
    cudnn: Any = torch.backends.cudnn  # its parts conv and rnn are made at run time
    settings = (cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul)
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = "ieee"
        with torch.autocast(torch.device(device).type, enabled=False):
            yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value


@component(passed=("extractor",))
class Inception(ModuleExtractor):
    """Inception-v3 of 2015 [Szegedy 2016] as torch-fidelity ports it: the network by which FID, IS and KID are defined.

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
            try:  # because torch-fidelity unpickles without restriction
                torch.load(path, weights_only=True, map_location="cpu")
            except Exception as error:  # garbage fails in the loader in many ways
                raise UserError(f"{path} is damaged or is not a file of PyTorch weights") from error
        try:
            network = FeatureExtractorInceptionV3(
                "inception-v3-compat", ["2048", "logits_unbiased"], feature_extractor_weights_path=str(path)
            )
        except (RuntimeError, KeyError, TypeError) as error:
            raise UserError(f"{path} does not hold the weights of torch-fidelity's Inception-v3") from error
        super().__init__(network, "inception", 2048, 1008, "299x299 bilinear as TensorFlow 1 (torch-fidelity)")


def _download(url: str, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # PyTorch's names of weights end with the first digits of their SHA-256
        torch.hub.download_url_to_file(url, str(path), hash_prefix=path.stem.rsplit("-", 1)[-1], progress=True)
    except RuntimeError as error:
        raise UserError(f"the Inception weights at {url} are not what they were: {error}") from error
    except (OSError, HTTPException) as error:  # URLError is an OSError
        advice = f"fetch {url} and put it at {path}, or pass metrics.extractor.weights=<file>"
        raise Unobtainable(f"the Inception weights could not be downloaded ({summary(error)}); {advice}") from error

"""Networks whose features the scores compare: any module, Inception of torch-fidelity, a classifier of grey images.

And the 8-bit RGB images that they read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from blackout.component import component
from blackout.data import CountData
from blackout.distributed import first_process_first
from blackout.errors import Unobtainable, UserError, refuse, summary
from blackout.evaluation.cache import cache_dir, keep, key_hash
from blackout.files import save_tensors, tensors_hash

RECIPE = 1
"""Of the classifier, to be increased with every change to network or training: cached ones are then not used."""

WIDTH = 64
STEPS = 500


def to_uint8(counts: Tensor, max_count: int) -> Tensor:
    """Map counts 0..max_count to 0..255: round(255 x / max_count), halves upwards.

    Exact (integer arithmetic) for every `max_count`; the identity for 255, {0, 255} for 1. Ours
    (tests/evaluation/test_images.py).

    Args:
        counts: integer tensor of any shape, values in 0..max_count.
        max_count: the largest count the data can hold, at least 1.

    Returns:
        uint8 tensor of the same shape.

    Raises:
        UserError: no integers, none at all, or a value outside 0..max_count.
    """
    refuse(max_count < 1, f"max_count is {max_count}; it must be at least 1")
    if counts.dtype.is_floating_point or counts.dtype.is_complex or counts.dtype is torch.bool:
        raise UserError(f"images must be integer counts in 0..{max_count}, never scaled floats, not {counts.dtype}")
    refuse(counts.numel() == 0, f"the batch of images is empty (shape {tuple(counts.shape)})")
    if counts.dtype is torch.uint8 and max_count == 255:
        return counts
    low, high = (int(v) for v in torch.aminmax(counts))
    refuse(low < 0 or high > max_count, f"image values lie in {low}..{high}, but the counts must be in 0..{max_count}")
    return ((510 * counts.long() + max_count) // (2 * max_count)).to(torch.uint8)


def to_rgb(images: Tensor) -> Tensor:
    """uint8 [B, 1 or 3, H, W] -> uint8 [B, 3, H, W]; grey is repeated.

    Raises:
        UserError: another dtype, number of dimensions or number of channels.
    """
    refuse(images.dtype is not torch.uint8, f"images must be uint8, not {images.dtype}")
    if images.dim() != 4 or images.shape[1] not in (1, 3):
        raise UserError(f"images must be [B, 1 or 3, H, W], but their shape is {tuple(images.shape)}")
    return images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images


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
        refuse(weights is not None and not path.is_file(), f"metrics.extractor.weights={path}: there is no such file")
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


@component(passed=("extractor",))
class Classifier(ModuleExtractor):
    """A convolutional classifier of a labelled grey dataset; its features are the layer before the logits.

    For digits and MNIST it gives distances in a space that separates the classes, in seconds and without a download.
    They have its name (`fd_digits`) and compare models of these data with each other only. It is trained on the full
    training split, with the validation data that were taken from it, so that its features do not depend on these.
    The seed is fixed, and the network is kept in the cache folder; the weights, and with them `identity`, can differ
    in the last bits between kinds of machine.

    Args:
        source: gives the labelled data, as `blackout.data.digits` does.
        seed: seed of initialisation and order of batches.
        cache: folder for the trained classifier; by default the user's cache folder.

    Raises:
        UserError: the data are not grey images with labels.
    """

    def __init__(self, source: Callable[[], CountData], seed: int = 0, cache: str | Path | None = None) -> None:
        data = source().merge_validation()
        if data.train_labels is None or data.num_classes is None or len(data.shape) != 3 or data.shape[0] != 1:
            found = f"{data.name} has shape {data.shape} and {data.num_classes or 'no'} classes"
            raise UserError(f"metrics.extractor.source: a classifier needs labelled grey images, but {found}")
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
            network = _Network(data.shape[-2:], data.num_classes)
        labels = key_hash({"labels": data.train_labels.tolist()})
        key = {"recipe": RECIPE, "seed": seed, "data": data.fingerprint("train"), "labels": labels}
        folder = cache_dir() if cache is None else Path(cache)
        path = folder / f"classifier-{data.name}-{key_hash(key)}.safetensors"
        with first_process_first():
            if not _load(network, path):
                _train(network, data, seed)
                keep(path, lambda part: save_tensors(network.state_dict(), part))
        size = f"{data.shape[1]}x{data.shape[2]}"
        super().__init__(network, data.name, WIDTH, data.num_classes, f"{size} bilinear, antialiased; none at {size}")


class _Network(nn.Module):
    """Two convolutions and two linear layers: uint8 [B, 3, H, W] -> features [B, WIDTH], logits [B, K]."""

    def __init__(self, size: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.size = size
        self.conv1 = nn.Conv2d(1, 16, 3, stride=1 if min(size) < 16 else 2, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.hidden = nn.Linear(32 * 16, WIDTH)
        self.logits = nn.Linear(WIDTH, num_classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images uint8 [B, 3, H, W] -> features [B, WIDTH] and logits [B, K]; scaled to [-1, 1].

        Ours (tests/evaluation/test_extractors.py).
        """
        x = images.float().mean(dim=1, keepdim=True) / 127.5 - 1
        if x.shape[-2:] != self.size:
            x = F.interpolate(x, self.size, mode="bilinear", antialias=True)
        x = F.relu(self.conv1(x))
        x = F.adaptive_avg_pool2d(F.relu(self.conv2(x)), 4)
        features = F.relu(self.hidden(x.flatten(1)))
        return features, self.logits(features)


def _train(network: _Network, data: CountData, seed: int) -> None:
    """Train on the CPU without touching the global random state."""
    assert data.train_labels is not None  # checked by the caller
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter, generator=generator)
        else:
            nn.init.zeros_(parameter)
    images = to_uint8(data.train[:], data.max_count)
    height, width = data.shape[-2:]
    batch = 128
    steps = max(STEPS, 2 * len(images) // batch)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=steps)
    order = torch.empty(0, dtype=torch.int64)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # faster for such a small network, and the order of its sums is then fixed
    try:
        with torch.inference_mode(False), torch.enable_grad():
            for _ in range(steps):
                if len(order) < batch:
                    order = torch.cat([order, torch.randperm(len(images), generator=generator)])
                chosen, order = order[:batch], order[batch:]
                top, left = (1 - torch.randint(-1, 2, (2,), generator=generator)).tolist()
                x = F.pad(images[chosen], (1, 1, 1, 1))[..., top : top + height, left : left + width]
                real = F.cross_entropy(network(to_rgb(x))[1], data.train_labels[chosen], label_smoothing=0.02)
                doubtful = network(to_rgb(_scrambled(x, generator)))[1].log_softmax(dim=1)
                loss = real - 0.5 * doubtful.mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    finally:
        torch.set_num_threads(threads)


def _scrambled(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images of no class: every pixel from another image of the batch, under a random dimming down to black.

    Trained to be undecided about them (outlier exposure, [Hendrycks 2019, section 3]), the classifier does not mistake
    noise or a black image, the commonest failures of a generative model, for a digit.

    Args:
        images: uint8 [B, 1, H, W], as is what is returned.
    """
    flat = images.flatten(1)
    donors = torch.randint(len(flat), flat.shape, generator=generator)
    levels = torch.rand(len(flat), 1, generator=generator)
    levels[::8] = 0
    return (flat.gather(0, donors) * levels).to(torch.uint8).view_as(images)


def _load(network: _Network, path: Path) -> bool:
    """Whether `network` now is the cached classifier; not when there is none or it is damaged."""
    try:
        network.load_state_dict(load_file(path))
        return True
    except (OSError, SafetensorError, RuntimeError):  # missing, cut short, or of other layers: it is trained anew
        return False

"""Feature extractors: any module, torch-fidelity's Inception, or a classifier of grey images.

Also the conversion of counts to the 8-bit RGB images that they take.
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
from blackout.evaluation.cache import cache_dir, key_hash, write_cache_file
from blackout.files import hash_tensors, save_tensors
from blackout.representation import format_arguments

INCEPTION_FEATURES = 2048
INCEPTION_CLASSES = 1008

# the small classifier
RECIPE = 1  # increase it with every change of network or training, so that cached ones are not used
WIDTH = 64  # features
STEPS = 500  # training steps, at least two epochs
BATCH_SIZE = 128
MAX_LEARNING_RATE = 6e-3
WEIGHT_DECAY = 0.01
LABEL_SMOOTHING = 0.02
OUTLIER_WEIGHT = 0.5  # of the loss on images without a class


def to_uint8(counts: Tensor, max_count: int) -> Tensor:
    """Map counts 0..max_count to 0..255: round(255 x / max_count), halves upwards.

    Integer arithmetic makes it exact. It is the identity for 255, and {0, 255} for 1.

    Args:
        counts: integer tensor of any shape, values in 0..max_count.
        max_count: largest possible count, at least 1.

    Returns:
        uint8 tensor of the same shape.

    Raises:
        UserError: no integers, an empty tensor, or a value outside 0..max_count.

    References: this project; checked in tests/evaluation/test_images.py.

    Example:
        >>> to_uint8(torch.tensor([0, 8, 16]), 16).tolist()
        [0, 128, 255]
    """
    refuse(max_count < 1, f"max_count must be at least 1, not {max_count}")
    is_float = counts.dtype.is_floating_point or counts.dtype.is_complex
    if is_float or counts.dtype is torch.bool:
        raise UserError(
            f"images must be integer counts in 0..{max_count}, never scaled floats, "
            f"not {counts.dtype}"
        )
    refuse(counts.numel() == 0, f"the batch of images is empty (shape {tuple(counts.shape)})")
    if counts.dtype is torch.uint8 and max_count == 255:
        return counts
    smallest, largest = (int(value) for value in torch.aminmax(counts))
    refuse(
        smallest < 0 or largest > max_count,
        f"image values are from {smallest} to {largest}, but counts must be in 0..{max_count}",
    )
    return ((510 * counts.long() + max_count) // (2 * max_count)).to(torch.uint8)


def to_rgb(images: Tensor) -> Tensor:
    """Repeat grey channels: uint8 [B, 1 or 3, H, W] -> uint8 [B, 3, H, W].

    Raises:
        UserError: another dtype, number of dimensions or number of channels.
    """
    refuse(images.dtype is not torch.uint8, f"images must be uint8, not {images.dtype}")
    if images.dim() != 4 or images.shape[1] not in (1, 3):
        raise UserError(f"images must be [B, 1 or 3, H, W], not of shape {tuple(images.shape)}")
    return images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images


class Features(NamedTuple):
    """Output of an extractor.

    Attributes:
        features: float32 [B, F].
        logits: float32 [B, K], or None if the network is no classifier.
    """

    features: Tensor
    logits: Tensor | None


@component(partial_for=("extractor",), command_line="metrics=custom")
class ModuleExtractor:
    """Any `nn.Module` that takes uint8 images [B, 3, H, W] and returns features, or also logits.

    The module scales and resizes its input itself. It is put in eval mode and frozen. It runs in
    full float32, so that scores do not depend on the mixed precision or TF32 setting of the
    training.

    Args:
        module: the network.
        name: short name for the scores: letters, digits and _.
        num_features: F, the width of its features.
        num_classes: K, the width of its logits; None if it returns features alone.
        resize: how the module resizes, in words.

    Raises:
        UserError: a name with other characters, or `inception`.
    """

    # whether FID and KID are defined by this network; only its scores have these names
    canonical = False

    __repr__ = format_arguments

    def __init__(
        self,
        module: nn.Module,
        name: str,
        num_features: int,
        num_classes: int | None = None,
        resize: str = "by the module",
    ) -> None:
        is_valid = re.fullmatch(r"[A-Za-z0-9_]+", name)
        if not is_valid or (name == "inception" and not self.canonical):
            raise UserError(
                f"metrics.extractor.name={name!r}: use letters, digits and _, but not 'inception', "
                "which is the network of FID"
            )
        self.module = module.eval()
        for parameter in module.parameters():  # a scripted module has no requires_grad_ of its own
            parameter.requires_grad_(False)
        self.name = name
        self.num_features = num_features
        self.num_classes = num_classes
        self.resize = resize
        self.device = torch.device("cpu")

    @cached_property
    def identity(self) -> str:
        """The SHA-256 (hex) of the module's class and state.

        Statistics with another identity are refused. Files of other programs have none, and only
        their number of features is checked.
        """
        kind = type(self.module)
        return hash_tensors(f"{kind.__module__}.{kind.__qualname__}", self.module.state_dict())

    def to(self, device: torch.device | str) -> Self:
        """Move the module to a device, and return the extractor."""
        self.device = torch.device(device)
        self.module.to(self.device)
        return self

    def __call__(self, images: Tensor) -> Features:
        """Return the features of uint8 images [B, 3, H, W].

        Raises:
            UserError: the module does not return what its settings declare.
        """
        with torch.no_grad(), full_float32(self.device):
            output = self.module(images.to(self.device))
        features: Any = output
        logits: Any = None
        if isinstance(output, tuple | list):
            features, logits = [*output, None][:2]
        self._check("features", features, (len(images), self.num_features))
        if self.num_classes is None:
            return Features(features.float(), None)
        self._check("logits", logits, (len(images), self.num_classes))
        return Features(features.float(), logits.float())

    def _check(self, name: str, output: Any, shape: tuple[int, int]) -> None:
        """Refuse an output that is not a tensor of a shape."""
        if isinstance(output, Tensor) and output.shape == shape:
            return
        actual = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UserError(
            f"extractor {self.name}: {name} must be a tensor of shape {list(shape)}, not {actual}"
        )


@contextmanager
def full_float32(device: torch.device | str) -> Iterator[None]:
    """Switch off autocast and TF32, which would change features by about 0.1 %."""
    cudnn: Any = torch.backends.cudnn  # its attributes conv and rnn are made at run time
    backends = (cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul)
    precisions = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        with torch.autocast(torch.device(device).type, enabled=False):
            yield
    finally:
        for backend, precision in zip(backends, precisions, strict=True):
            backend.fp32_precision = precision


@component(partial_for=("extractor",))
class Inception(ModuleExtractor):
    """Inception-v3 of 2015 as ported by torch-fidelity, the network that defines FID, IS and KID.

    Features are the 2048 values after the last pooling. Logits are without bias, as in the original
    Inception Score. Images are resized to 299 x 299 bilinearly, as by TensorFlow 1; scores with
    another resizing, in which libraries differ most, are not comparable.

    Args:
        weights: file with the network's weights (torch-fidelity's
            `weights-inception-2015-12-05-*.pth`); None downloads it on first use to PyTorch's hub
            folder.

    Raises:
        UserError: no such file, other weights, or a failed download.

    References: Szegedy et al. 2016.
    """

    canonical = True

    __repr__ = format_arguments

    def __init__(self, weights: str | Path | None = None) -> None:
        from torch_fidelity import FeatureExtractorInceptionV3
        from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

        # 1. The file of weights.
        hub_file = Path(torch.hub.get_dir()) / "checkpoints" / URL_INCEPTION_V3.rsplit("/", 1)[-1]
        path = hub_file if weights is None else Path(weights).expanduser()
        refuse(
            weights is not None and not path.is_file(),
            f"metrics.extractor.weights={path}: no such file",
        )
        with first_process_first():
            if not path.is_file():
                _download(URL_INCEPTION_V3, hub_file)
            # torch-fidelity unpickles without restriction, so the file is checked first
            try:
                torch.load(path, weights_only=True, map_location="cpu")
            except Exception as error:  # a damaged file can fail in many ways
                raise UserError(
                    f"{path} is damaged or is not a file of PyTorch weights: "
                    f"remove it, and fetch {URL_INCEPTION_V3} again"
                ) from error

        # 2. The network.
        layers = [f"{INCEPTION_FEATURES}", "logits_unbiased"]
        try:
            network = FeatureExtractorInceptionV3(
                "inception-v3-compat", layers, feature_extractor_weights_path=str(path)
            )
        except (RuntimeError, KeyError, TypeError) as error:
            raise UserError(
                f"{path} does not have the weights of Inception-v3: "
                "omit metrics.extractor.weights to download them"
            ) from error
        resize = "299x299 bilinear as TensorFlow 1 (torch-fidelity)"
        super().__init__(network, "inception", INCEPTION_FEATURES, INCEPTION_CLASSES, resize)


def _download(url: str, path: Path) -> None:
    """Download weights, and check their hash.

    Raises:
        UserError: another file than expected.
        Unobtainable: no connection, or no permission to write.
    """
    # PyTorch's names of weights end with the first digits of their SHA-256
    hash_prefix = path.stem.rsplit("-", 1)[-1]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), hash_prefix=hash_prefix, progress=True)
    except RuntimeError as error:
        raise UserError(
            f"the Inception weights at {url} have another hash than expected: {error}"
        ) from error
    except (OSError, HTTPException) as error:  # URLError is an OSError
        raise Unobtainable(
            f"the Inception weights could not be downloaded ({summary(error)}); fetch {url} and "
            f"put it at {path}, or pass metrics.extractor.weights=<file>"
        ) from error


@component(partial_for=("extractor",))
class Classifier(ModuleExtractor):
    """A small convolutional classifier of labelled grey images; its features precede the logits.

    For digits and MNIST it gives distances in a space that separates the classes, in seconds and
    without a download. These have its name (`frechet_distance_digits`) and compare models of these
    data with each other only. It is trained on the full training split, including validation data
    that were taken from it, so that features do not depend on them. The seed is fixed, and the
    network is cached. Its weights, and with them `identity`, can differ in the last bits between
    kinds of machine.

    Args:
        source: returns the labelled data, as `blackout.data.digits` does.
        seed: of initialisation and order of batches.
        cache: folder for the trained classifier; None for the user's cache folder.

    Raises:
        UserError: data that are not grey images with labels.
    """

    def __init__(
        self, source: Callable[[], CountData], seed: int = 0, cache: str | Path | None = None
    ) -> None:
        # 1. The data.
        data = source().merge_validation()
        is_grey = len(data.shape) == 3 and data.shape[0] == 1
        if data.train_labels is None or data.num_classes is None or not is_grey:
            raise UserError(
                "metrics.extractor.source: a classifier needs labelled grey images, but "
                f"{data.name} has shape {data.shape} and {data.num_classes or 'no'} classes"
            )

        # 2. The network, from the cache or trained.
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
            network = _Network(data.shape[-2:], data.num_classes)
        key = {
            "recipe": RECIPE,
            "seed": seed,
            "data": data.fingerprint("train"),
            "labels": key_hash({"labels": data.train_labels.tolist()}),
        }
        folder = cache_dir() if cache is None else Path(cache).expanduser()
        path = folder / f"classifier-{data.name}-{key_hash(key)}.safetensors"
        with first_process_first():
            if not _load(network, path):
                _train(network, data, seed)
                write_cache_file(path, lambda part: save_tensors(network.state_dict(), part))

        size = f"{data.shape[1]}x{data.shape[2]}"
        resize = f"{size} bilinear, antialiased; none at {size}"
        super().__init__(network, data.name, WIDTH, data.num_classes, resize)


class _Network(nn.Module):
    """Two convolutions and two linear layers: uint8 [B, 3, H, W] -> [B, WIDTH], logits [B, K].

    Args:
        size: height and width to which images are resized.
        num_classes: K.
    """

    def __init__(self, size: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.size = size
        self.conv1 = nn.Conv2d(1, 16, 3, stride=1 if min(size) < 16 else 2, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.hidden = nn.Linear(32 * 16, WIDTH)
        self.logits = nn.Linear(WIDTH, num_classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [B, WIDTH] and logits [B, K] of images, uint8 [B, 3, H, W].

        References: this project; checked in tests/evaluation/test_extractors.py.
        """
        x = images.float().mean(dim=1, keepdim=True) / 127.5 - 1
        if x.shape[-2:] != self.size:
            x = F.interpolate(x, self.size, mode="bilinear", antialias=True)
        x = F.relu(self.conv1(x))
        x = F.adaptive_avg_pool2d(F.relu(self.conv2(x)), 4)
        features = F.relu(self.hidden(x.flatten(1)))
        return features, self.logits(features)


def _train(network: _Network, data: CountData, seed: int) -> None:
    """Train a classifier on the CPU without changing the global random state.

    The loss is the cross-entropy of randomly shifted images, and an outlier loss; see
    `_make_outliers`.
    """
    assert data.train_labels is not None  # checked by the caller

    # 1. Initialise.
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter, generator=generator)
        else:
            nn.init.zeros_(parameter)
    images = to_uint8(data.train[:], data.max_count)
    num_steps = max(STEPS, 2 * len(images) // BATCH_SIZE)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=MAX_LEARNING_RATE, total_steps=num_steps
    )

    # 2. Train on one thread: faster for such a small network, and the order of sums is fixed.
    order = torch.empty(0, dtype=torch.int64)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            for _ in range(num_steps):
                if len(order) < BATCH_SIZE:
                    order = torch.cat([order, torch.randperm(len(images), generator=generator)])
                rows = order[:BATCH_SIZE]
                order = order[BATCH_SIZE:]
                x = _shift(images[rows], generator)
                logits = network(to_rgb(x))[1]
                loss = F.cross_entropy(
                    logits, data.train_labels[rows], label_smoothing=LABEL_SMOOTHING
                )
                outlier_logits = network(to_rgb(_make_outliers(x, generator)))[1]
                loss = loss - OUTLIER_WEIGHT * outlier_logits.log_softmax(dim=1).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    finally:
        torch.set_num_threads(num_threads)


def _shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return images, uint8 [B, 1, H, W], shifted together by at most one pixel each way."""
    height, width = images.shape[-2:]
    top, left = (1 - torch.randint(-1, 2, (2,), generator=generator)).tolist()
    padded = F.pad(images, (1, 1, 1, 1))
    return padded[..., top : top + height, left : left + width]


def _make_outliers(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return images without a class: every pixel from another image of the batch, dimmed.

    One of eight is black. Trained to be undecided about them, the classifier does not take noise or
    a black image, the most common failures of generative models, for a digit.

    Args:
        images: uint8 [B, 1, H, W].
        generator: random numbers.

    Returns:
        uint8 [B, 1, H, W].

    References: Hendrycks et al. 2019, section 3 (outlier exposure).
    """
    flat = images.flatten(1)
    donors = torch.randint(len(flat), flat.shape, generator=generator)
    brightness = torch.rand(len(flat), 1, generator=generator)
    brightness[::8] = 0
    return (flat.gather(0, donors) * brightness).to(torch.uint8).view_as(images)


def _load(network: _Network, path: Path) -> bool:
    """Load the cached classifier, and return whether that worked."""
    try:
        network.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError):  # missing, damaged, or of other layers
        return False
    return True

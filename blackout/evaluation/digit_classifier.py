"""A small classifier of grey images, trained once on real data: an extractor that needs no download."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from blackout.component import component
from blackout.data import CountData
from blackout.distributed import first_process_first
from blackout.errors import UserError
from blackout.evaluation.extractors import ModuleExtractor
from blackout.evaluation.features import cache_dir, keep, key_hash, to_rgb, to_uint8
from blackout.files import save_tensors

RECIPE = 1
"""To be increased with every change to the network or its training: older cached classifiers are then not used."""

WIDTH = 64
STEPS = 500


@component(passed=("extractor",))
class Classifier(ModuleExtractor):
    """A convolutional classifier of a labelled grey dataset; its features are the layer before the logits.

    For digits and MNIST it gives distances in a space that separates the classes, in seconds and without a download.
    They have its name (`fd_digits`) and compare models of these data with each other only. It is trained on the
    training split with a fixed seed and kept in the cache folder; the weights, and with them `identity`, can differ in
    the last bits between kinds of machine.

    Args:
        source: gives the labelled data, as `blackout.data.digits` does.
        seed: seed of initialisation and order of batches.
        cache: folder for the trained classifier; by default the user's cache folder.

    Raises:
        UserError: the data are not grey images with labels.
    """

    def __init__(self, source: Callable[[], CountData], seed: int = 0, cache: str | Path | None = None) -> None:
        data = source()
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
        images: uint8 [B, 1, H, W].
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
    except (OSError, SafetensorError, RuntimeError):
        return False

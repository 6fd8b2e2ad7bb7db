"""References: statistics and features of the real images that samples are compared with."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.data import CountData
from blackout.data.formats import load_arrays
from blackout.data.on_disk import DiskCounts
from blackout.distributed import SampleRows, all_true, my_batches, writes_for_its_machine
from blackout.errors import UserError, ensure, refuse
from blackout.evaluation.cache import cache_dir, key_hash, write_cache_file
from blackout.evaluation.extractors import ModuleExtractor, to_rgb, to_uint8
from blackout.evaluation.fid import FeatureStatistics, frechet_distance
from blackout.protocols import Source, Split
from blackout.representation import format_fields
from blackout.safe_reading import reading

FORMAT = 1  # version of cached files; increase it when their meaning changes


@dataclass(frozen=True, eq=False)
class Reference:
    """Statistics of real images by an extractor.

    Attributes:
        mu: mean of the features, float64 [F].
        sigma: unbiased covariance, float64 [F, F].
        num_samples: number of images, or None if an imported file does not have it.
        features: of every image, float32 [n, F], or None if they were not requested.
        origin: provenance of data and extractor, as plain values.
    """

    mu: Tensor
    sigma: Tensor
    num_samples: int | None
    features: Tensor | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)

    __repr__ = format_fields


def dataset_reference(
    data: CountData,
    split: Split,
    extractor: ModuleExtractor,
    with_features: bool = False,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    cache: str | Path | None = None,
) -> Reference:
    """Return the reference of a dataset's split, from the cache if possible.

    The training split includes validation data that were taken from it, as in published scores.
    The name of the cached file is a hash of data, split, image size, and extractor with weights and
    resizing. A damaged file is replaced. Several processes share the work.

    Args:
        data: dataset of images [N, 1 or 3, H, W].
        split: "train", "val" or "test".
        extractor: on `device`.
        with_features: also keep every image's features, for the kernel distance and precision and
            recall.
        batch_size: images per call of the extractor.
        device: where statistics are accumulated.
        cache: folder of cached files; None for the user's cache folder.

    Raises:
        UserError: another split, or data that are not images.
    """
    # 1. The images.
    if split not in ("train", "val", "test"):
        raise UserError(f"metrics.reference={split} must be train, test or the path of a .npz file")
    data = check_images(data)
    if split == "train":
        data = data.merge_validation()
    counts: Tensor | DiskCounts = getattr(data, split)
    if len(counts) < 2:
        raise UserError(
            f"{data.name}: a reference needs at least 2 images, but the {split} split has "
            f"{len(counts)}"
        )

    # 2. The cached file of this origin.
    origin = {
        "dataset": data.name,
        "split": split,
        "data": data.fingerprint(split),
        "shape": list(data.shape),
        "max_count": data.max_count,
        **extractor_origin(extractor),
    }
    if data.condition:
        origin["condition"] = dict(data.condition)
    folder = cache_dir() if cache is None else Path(cache).expanduser()
    path = folder / f"reference-{key_hash(origin)}.npz"
    cached = _load_cached(path, origin, with_features)
    if all_true(cached is not None) and cached is not None:
        return cached

    # 3. Statistics and features, in batches over all processes.
    statistics = FeatureStatistics(extractor.num_features).to(device)
    rows = SampleRows((len(counts), extractor.num_features)) if with_features else None
    for indices in my_batches(len(counts), batch_size):
        features = extractor(to_rgb(to_uint8(counts[indices], data.max_count))).features
        statistics.update(features)
        if rows is not None:
            rows.update(features, indices)
    mu, sigma, n = statistics.compute()
    # torchmetrics squeezes the statistics of a single feature
    mu = mu.cpu().view(extractor.num_features)
    sigma = sigma.cpu().view(extractor.num_features, extractor.num_features)
    all_features = None if rows is None else rows.gather()
    computed = Reference(mu, sigma, n, all_features, origin)
    if writes_for_its_machine():
        write_cache_file(path, lambda part: write_reference(part, computed))
    return computed


def file_reference(path: str | Path, extractor: ModuleExtractor) -> Reference:
    """Return statistics from a .npz file with `mu` [F] and `sigma` [F, F], as FID programs write.

    Files written by this package name their extractor, and are refused for any other.

    Raises:
        UserError: no such file or arrays, or statistics of another width or extractor.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(
            f"metrics.reference={path}: no such file; allowed are train, test and the "
            "path of a .npz file"
        )
    arrays = load_arrays(path)
    if not isinstance(arrays, dict) or {"mu", "sigma"} - arrays.keys():
        content = sorted(arrays) if isinstance(arrays, dict) else "one array"
        raise UserError(f"{path} must contain the arrays mu and sigma, not {content}")
    with reading(path, "not a readable .npz file of statistics"):
        reference = _parse_arrays(arrays)
        mu = reference.mu
        width = extractor.num_features
        refuse(
            mu.shape != (width,),
            f"{path}: mu has shape {list(mu.shape)}, but {extractor.name} has {width} features",
        )
        frechet_distance(mu, reference.sigma, mu, reference.sigma)  # refuses invalid covariances
    identity = reference.origin.get("identity")
    if identity is None:  # a file of another program
        trace = float(reference.sigma.trace())
        statistics_hash = key_hash({"mu": mu.tolist(), "trace": trace})
        origin = {
            "file": path.name,
            "statistics": statistics_hash,
            "made_by": "unknown extractor",
        }
        return Reference(mu, reference.sigma, reference.num_samples, None, origin)
    if identity != extractor.identity:
        raise UserError(
            f"{path} was made with another extractor: "
            f"{reference.origin.get('extractor')} ({identity[:12]}), not "
            f"{extractor.name} ({extractor.identity[:12]})"
        )
    return reference


def extractor_origin(extractor: ModuleExtractor) -> dict[str, Any]:
    """Return an extractor's provenance, as plain values."""
    return {
        "format": FORMAT,
        "extractor": extractor.name,
        "identity": extractor.identity,
        "num_features": extractor.num_features,
        "resize": extractor.resize,
    }


def write_reference(path: Path, reference: Reference) -> None:
    """Write a reference as .npz: mu, sigma, n, origin and, if present, features."""
    arrays = {"mu": reference.mu.numpy(), "sigma": reference.sigma.numpy()}
    if reference.num_samples is not None:
        arrays["n"] = np.array(reference.num_samples)
    if reference.features is not None:
        arrays["features"] = reference.features.numpy()
    origin = np.array(json.dumps(dict(reference.origin)))
    with path.open("wb") as file:  # to a path NumPy would append .npz
        np.savez(file, origin=origin, **arrays)  # type: ignore[arg-type]


def _parse_arrays(arrays: dict[str, Any]) -> Reference:
    """Return the reference of the arrays of a file; KeyError and ValueError for missing ones."""
    return Reference(
        mu=torch.from_numpy(np.asarray(arrays["mu"], dtype=np.float64)),
        sigma=torch.from_numpy(np.asarray(arrays["sigma"], dtype=np.float64)),
        num_samples=int(arrays["n"]) if "n" in arrays else None,
        features=torch.from_numpy(arrays["features"]) if "features" in arrays else None,
        origin=json.loads(str(arrays["origin"])) if "origin" in arrays else {},
    )


def _load_cached(path: Path, origin: dict[str, Any], with_features: bool) -> Reference | None:
    """Return a cached reference; None if it is missing, lacks features or has another origin."""
    if not path.is_file():
        return None
    try:
        arrays = load_arrays(path)
        reference = _parse_arrays(arrays if isinstance(arrays, dict) else {})
        ensure(dict(reference.origin) == origin, "its origin does not match its name")
    except (ValueError, KeyError) as error:
        warnings.warn(f"{path} is damaged and will be replaced ({error})", stacklevel=3)
        return None
    if with_features and reference.features is None:
        return None
    return reference


def check_images(source: Source) -> CountData:
    """Return a source if it is a dataset of images of counts, grey or colour.

    Raises:
        UserError: another source.
    """
    if not isinstance(source, CountData):
        raise UserError(
            f"{source.name}: image scores need a dataset of counts, not a {type(source).__name__}"
        )
    if len(source.shape) != 3 or source.shape[0] not in (1, 3):
        raise UserError(
            f"{source.name}: image scores need images [1 or 3, H, W], not samples of shape "
            f"{source.shape}"
        )
    return source

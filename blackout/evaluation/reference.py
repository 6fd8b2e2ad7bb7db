"""References: statistics and, where needed, features of the real images that samples are compared with.

Also which sources these can be of.
"""

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
from blackout.data.file_formats import load_arrays
from blackout.data.on_disk import Rows
from blackout.distributed import SampleRows, all_true, my_batches, writes_for_its_machine
from blackout.errors import UserError, ensure, refuse
from blackout.evaluation.cache import cache_dir, keep, key_hash
from blackout.evaluation.extractors import ModuleExtractor, to_rgb, to_uint8
from blackout.evaluation.fid import FeatureStatistics, frechet_distance
from blackout.files import reading
from blackout.protocols import Source, Split

FORMAT = 1
"""To be increased when the meaning of cached files changes: older ones are then computed anew."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Real images seen through an extractor.

    Attributes:
        mu: mean of the features, float64 [F].
        sigma: unbiased covariance, float64 [F, F].
        num_samples: number of images, or None where an imported file does not say.
        features: features of every image, float32 [n, F], or None where they were not requested.
        origin: its provenance: data and extractor, as plain values.
    """

    mu: Tensor
    sigma: Tensor
    num_samples: int | None
    features: Tensor | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)


def dataset_reference(
    data: CountData,
    split: Split,
    extractor: ModuleExtractor,
    with_features: bool = False,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    cache: str | Path | None = None,
) -> Reference:
    """Reference of a dataset's split, from the cache where it was computed before.

    The training data are the full training split, with the validation data that were taken from it, as published
    scores have it.

    The cached file is named by a hash of data, split, size of the images, and extractor with its weights and resizing;
    a damaged file is computed anew. Several processes share the extraction.

    Args:
        data: the dataset, of images [N, 1 or 3, H, W].
        split: "train", "val" or "test".
        extractor: gives the features, on `device` already.
        with_features: also keep every image's features, as the kernel distance and precision/recall need.
        batch_size: images per call of the extractor.
        device: where statistics are accumulated.
        cache: folder of the cached files; by default the user's cache folder.

    Raises:
        UserError: another split, or data that are not images.
    """
    if split not in ("train", "val", "test"):
        raise UserError(f"metrics.reference={split}: allowed are train, test and the path of a .npz file")
    data = count_images(data).undivided() if split == "train" else count_images(data)
    counts: Tensor | Rows = getattr(data, split)
    if len(counts) < 2:
        raise UserError(f"{data.name}: a reference needs at least 2 images, but its {split} split has {len(counts)}")
    of_data = {"dataset": data.name, "split": split, "data": data.fingerprint(split)}
    of_counts = {"shape": list(data.shape), "max_count": data.max_count}
    under = {"condition": dict(data.condition)} if data.condition else {}
    origin = {**of_data, **of_counts, **under, **extractor_origin(extractor)}
    path = (cache_dir() if cache is None else Path(cache)) / f"reference-{key_hash(origin)}.npz"
    cached = _load_cached(path, origin, with_features)
    if all_true(cached is not None) and cached is not None:
        return cached
    statistics = FeatureStatistics(extractor.num_features).to(device)
    rows = SampleRows((len(counts), extractor.num_features)) if with_features else None
    for indices in my_batches(len(counts), batch_size):
        features = extractor(to_rgb(to_uint8(counts[indices], data.max_count))).features
        statistics.update(features)
        if rows is not None:
            rows.update(features, indices)
    mu, sigma, n = statistics.compute()
    computed = Reference(mu.cpu(), sigma.cpu(), n, rows.gather() if rows is not None else None, origin)
    if writes_for_its_machine():
        keep(path, lambda part: write_reference(part, computed))
    return computed


def file_reference(path: str | Path, extractor: ModuleExtractor) -> Reference:
    """Statistics from a .npz file with arrays `mu` [F] and `sigma` [F, F], as most FID programs write.

    Files that this package wrote also say which extractor made them, and are refused for any other.

    Raises:
        UserError: no such file, no such arrays, statistics of another width or of another extractor.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"metrics.reference={path}: there is no such file (allowed: train, test, or a .npz file)")
    arrays = load_arrays(path)
    if not isinstance(arrays, dict) or {"mu", "sigma"} - arrays.keys():
        found = sorted(arrays) if isinstance(arrays, dict) else "one array"
        raise UserError(f"{path}: the arrays mu and sigma are expected, not {found}")
    with reading(path, "not a readable .npz file of statistics"):
        reference = _read(arrays)
        mu, sigma, width = reference.mu, reference.sigma, extractor.num_features
        refuse(mu.shape != (width,), f"{path}: mu is {list(mu.shape)}, but {extractor.name} has {width} features")
        frechet_distance(mu, sigma, mu, sigma)  # refuses what is no Gaussian
    made_by = reference.origin.get("identity")
    if made_by is None:
        digest = key_hash({"mu": mu.tolist(), "trace": float(sigma.trace())})
        origin = {"file": path.name, "statistics": digest, "made_by": "unknown extractor"}
        return Reference(mu, sigma, reference.num_samples, None, origin)
    if made_by != extractor.identity:
        theirs = f"{reference.origin.get('extractor')} ({made_by[:12]})"
        ours = f"{extractor.name} ({extractor.identity[:12]})"
        raise UserError(f"{path} was made with another extractor: {theirs}, not {ours}")
    return reference


def extractor_origin(extractor: ModuleExtractor) -> dict[str, Any]:
    """An extractor's provenance, as plain values."""
    about = {"extractor": extractor.name, "identity": extractor.identity}
    return {"format": FORMAT, **about, "num_features": extractor.num_features, "resize": extractor.resize}


def write_reference(path: Path, reference: Reference) -> None:
    """Write a reference as .npz: mu, sigma, n, origin and, if present, features."""
    arrays = {"mu": reference.mu.numpy(), "sigma": reference.sigma.numpy()}
    if reference.num_samples is not None:
        arrays["n"] = np.array(reference.num_samples)
    if reference.features is not None:
        arrays["features"] = reference.features.numpy()
    with path.open("wb") as file:  # given a name, NumPy would append .npz to it
        np.savez(file, origin=np.array(json.dumps(dict(reference.origin))), **arrays)  # type: ignore[arg-type]


def _read(arrays: dict[str, Any]) -> Reference:
    return Reference(
        mu=torch.from_numpy(np.asarray(arrays["mu"], dtype=np.float64)),
        sigma=torch.from_numpy(np.asarray(arrays["sigma"], dtype=np.float64)),
        num_samples=int(arrays["n"]) if "n" in arrays else None,
        features=torch.from_numpy(arrays["features"]) if "features" in arrays else None,
        origin=json.loads(str(arrays["origin"])) if "origin" in arrays else {},
    )


def _load_cached(path: Path, origin: dict[str, Any], with_features: bool) -> Reference | None:
    """The cached reference; None when there is none, it lacks the features, or it is another one."""
    if not path.is_file():
        return None
    try:
        arrays = load_arrays(path)
        reference = _read(arrays if isinstance(arrays, dict) else {})
        ensure(dict(reference.origin) == origin, "it does not hold what its name says")
    except (ValueError, KeyError) as error:
        warnings.warn(f"{path} is damaged and is computed anew ({error})", stacklevel=3)
        return None
    return None if with_features and reference.features is None else reference


def count_images(source: Source) -> CountData:
    """The source, if it is a dataset of images of counts, grey or colour.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(source, CountData):
        raise UserError(f"{source.name}: image scores need a dataset of counts, not a {type(source).__name__}")
    if len(source.shape) != 3 or source.shape[0] not in (1, 3):
        raise UserError(f"{source.name}: scores need images [1 or 3, H, W], but a sample has shape {source.shape}")
    return source

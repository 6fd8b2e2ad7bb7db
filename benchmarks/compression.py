"""Lossless compression rates compared with the bound: `python -m benchmarks.compression RUN COUNTS
[...]`.

It prints a line for each run directory (or model) with a file of unseen counts: the rates that
`blackout compress` reports for itself and `xz -9e`, and those of PNG and WebP (lossless, slowest
method). The latter encode all arrays as one image of tiles, if they have at most eight bits, so
that no headers of single images are counted. Times are CPU seconds, including the command's bound
and its check of decoding.
"""

from __future__ import annotations

import argparse
import io
import math
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from blackout.training.loading import load_trained


def row(run: Path, file: Path, options: argparse.Namespace) -> str:
    """Return one line of the table."""
    counts = np.load(file)[: options.number]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "counts.npy"
        np.save(source, counts)
        start = time.process_time()
        model, family = load_trained(run, {"data_dir": "data"})
        codec = family.codec(model)
        report = codec.encode(
            source, Path(folder) / "counts.bits", options.steps, options.batch_size
        )
        seconds = time.process_time() - start
    bound = f"{report.bound.value:.3f} ± {report.bound.standard_error:.3f}"
    sizes = (report.model_bytes, report.xz_bytes)
    rates = [f"{8 * size / report.elements:.3f}" for size in sizes]
    images = [sheet(counts, kind) for kind in ("png", "webp")]
    cells = [run.name, f"{len(counts):,}", bound, *rates, *images, f"{seconds:.0f}"]
    return f"| {' | '.join(cells)} |"


def sheet(counts: np.ndarray, kind: str) -> str:
    """Return bits per dimension of counts [n, 1, height, width] as one image, or a dash."""
    if counts.ndim != 4 or counts.shape[1] != 1 or counts.max() > 255:
        return "-"
    n, _, height, width = counts.shape
    across = math.isqrt(n)
    tiles = counts[: n // across * across, 0].astype(np.uint8).reshape(-1, across, height, width)
    image = Image.fromarray(tiles.transpose(0, 2, 1, 3).reshape(-1, across * width))
    out = io.BytesIO()
    image.save(out, "png", optimize=True) if kind == "png" else image.convert("RGB").save(
        out, "webp", lossless=True, quality=100, method=6, exact=True
    )
    return f"{8 * len(out.getvalue()) / tiles.size:.3f}"


def main(argv: list[str] | None = None) -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", nargs="+", type=Path, metavar="RUN COUNTS")
    parser.add_argument("--number", type=int, default=1000, help="arrays of each file")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch_size", type=int, default=64)
    options = parser.parse_args(argv)
    if len(options.pairs) % 2:
        parser.error("every run needs a file of counts")
    print("| run | arrays | the bound | this | xz -9e | PNG | WebP | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for run, file in zip(options.pairs[::2], options.pairs[1::2], strict=True):
        print(row(run, file, options), flush=True)


if __name__ == "__main__":
    main()

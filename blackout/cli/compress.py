"""Compress counts without loss, using a trained model, and decompress them.

  blackout compress encode runs/digits/<run_id> counts.npy --out counts.bits
  blackout compress decode runs/digits/<run_id> counts.bits --out counts.npy

Decoding needs the same model, the same kind of machine and the same versions. Every part is decoded
again while it is encoded, and decoded counts are compared with a hash. If xz makes the counts
smaller, its result is kept. Models with classes code without them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from blackout.errors import CommandParser, escaped, run_command
from blackout.training.loading import load_trained


def main(words: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandParser(
        prog="blackout compress",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=["encode", "decode"])
    parser.add_argument("model", type=Path, help="run directory, .ckpt file or exported model")
    parser.add_argument(
        "file",
        type=Path,
        help="counts (.npy, or .npz with the array samples), or a compressed file",
    )
    parser.add_argument("--out", type=Path, required=True, help="a new file")
    parser.add_argument(
        "--steps",
        type=int,
        default=100,
        help="steps of the sampler; more give smaller files and take longer (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=64,
        help="samples per network evaluation (default: %(default)s)",
    )
    run_command(_run, parser, words)


def _run(options: argparse.Namespace) -> None:
    start = time.perf_counter()
    model, family = load_trained(options.model, {"data_dir": "data"})
    codec = family.codec(model)
    if options.action == "decode":
        samples = codec.decode(options.file, options.out)
        print(f"wrote {samples:,} samples to {escaped(options.out)}")
        return
    report = codec.encode(options.file, options.out, options.steps, options.batch_size)
    print(format_sizes(report))
    seconds = time.perf_counter() - start
    print(f"wrote {escaped(options.out)} and decoded it again in {seconds:.0f} s")


def format_sizes(report: Any) -> str:
    """Return one line with the sizes of an encoding report, in bytes and bits per dimension."""
    sizes = {"file": report.file_bytes}
    if report.file_bytes != report.model_bytes:
        sizes["with the model"] = report.model_bytes
    sizes["with xz"] = report.xz_bytes
    columns = []
    for name, size in sizes.items():
        bits = 8 * size / report.elements
        columns.append(f"{name} {size:,} bytes ({bits:.3f} bits per dimension)")
    bound = f"{report.bound.value:.3f} ± {report.bound.standard_error:.3f} bits per dimension"
    return f"{report.samples:,} samples: {', '.join(columns)}; expected {bound}"


if __name__ == "__main__":
    main()

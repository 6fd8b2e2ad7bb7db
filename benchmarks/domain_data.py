r"""Data sets in the formats of two domains of split Gibbs sampling: `python -m
benchmarks.domain_data OUT`.

    enhancers.csv          like DRAKES' gosai_all.csv: `seq`, 200 letters, and three activities
    train.npy, test.npy    like the piano rolls of tauLDR: 256 steps of 129 names [N, 256], shuffled
    descramble_key.txt     a line `name pitch` for each of them

The data are generated from known distributions (benchmarks/exact_distributions.py). The activities
`hepg2`, `k562` and `sknsh` count the occurrences of a word of the cell line, CGTA for hepg2, plus
noise. Guidance towards high activities must therefore find the words.

    python train.py dataset=counts dataset.path=OUT/enhancers.csv dataset.sequences=seq \
        dataset.labels=hepg2 process=uniform network=transformer
    python sample.py ckpt=<run> operator=classifier operator.label=9 operator.scale=30 \
        posterior=sgdd "operator.classifier={_target_: \
        benchmarks.learned_classifier.LearnedClassifier}"
    python train.py dataset=counts dataset.path=OUT/train.npy process=uniform network=transformer
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import torch

from benchmarks.exact_distributions import Dna, melody
from blackout.random import SampleStreams

WORDS = {"hepg2": "CGTA", "k562": "GATA", "sknsh": "CAGC"}


def activity(sequences: list[str], word: str) -> np.ndarray:
    """Return how often a word occurs in each sequence."""
    return np.array(
        [sum(sequence.startswith(word, k) for k in range(len(sequence))) for sequence in sequences]
    )


def enhancers(path: Path, number: int, seed: int = 0) -> None:
    """Write sequences with their activities."""
    chain = Dna(200).chain
    rng = np.random.default_rng(seed)
    x = chain.draw(
        torch.ones(number, 200, 4, dtype=torch.float64),
        SampleStreams(seed, torch.arange(number)).step(0),
    )
    sequences = ["".join("ACGT"[name] for name in row) for row in x.tolist()]
    columns = [activity(sequences, word) + 0.3 * rng.normal(size=number) for word in WORDS.values()]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["seq", *WORDS])
        writer.writerows(
            zip(sequences, *(np.round(column, 4).tolist() for column in columns), strict=True)
        )


def melodies(folder: Path, number: int, seed: int = 0) -> None:
    """Write two splits of melodies, and the meaning of their names."""
    key = np.random.default_rng(seed).permutation(129)
    chain = melody(256)
    for split, (name, n) in enumerate({"train": number, "test": max(1, number // 10)}.items()):
        weights = torch.ones(n, 256, 129, dtype=torch.float64)
        pitches = chain.draw(
            weights, SampleStreams(seed + 1 + split, torch.arange(n)).step(0)
        ).numpy()
        np.save(folder / f"{name}.npy", np.argsort(key)[pitches].astype(np.int64))
    lines = (f"{name} {pitch}" for name, pitch in enumerate(key))
    (folder / "descramble_key.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--number", type=int, default=5000, help="sequences, and melodies to train on"
    )
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    enhancers(options.out / "enhancers.csv", options.number)
    melodies(options.out, options.number)


if __name__ == "__main__":
    main()

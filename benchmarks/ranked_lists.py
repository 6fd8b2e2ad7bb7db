"""Learning to rank compared with LightGBM: `python -m benchmarks.ranked_lists lists.svm`.

`--make` creates such a file. LightGBM, which is not a dependency, learns from the training lists of
`dataset=items dataset.path=lists.svm`, stops by the validation lists, and is evaluated on the same
test lists, like the best single number of an item. The model's scores are those of

    python train.py family=shuffle dataset=items dataset.path=lists.svm baseline=listmle
    python sample.py ckpt=... dataset=items dataset.path=lists.svm num_samples=... evaluate=true
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from blackout.permutations.datasets import RankedLists, read_ranked_lists
from blackout.permutations.metrics import ndcg_scores

_FEATURES = 12
_LEVELS = (0.5, 0.75, 0.9, 0.97)


def made_up(lists: int = 1000, seed: int = 0) -> str:
    """Return lists of 5 to 40 items of 12 numbers, with relevance 0 to 4.

    The relevance follows a sum, products and a peak of the numbers, and noise.
    """
    rng = np.random.default_rng(seed)
    lines = list[str]()
    weights = rng.normal(size=_FEATURES)
    for query in range(lists):
        x = rng.normal(size=(rng.integers(5, 41), _FEATURES)) + 0.5 * rng.normal(size=_FEATURES)
        worth = x @ weights / 3 + x[:, 0] * x[:, 1] + 1.5 * np.exp(-((x[:, 2] - 1) ** 2))
        worth += 0.5 * rng.normal(size=len(x))
        levels = (worth[:, None] > np.quantile(worth, _LEVELS)).sum(1)
        for level, item in zip(levels, x, strict=True):
            lines.append(
                f"{level} qid:{query} " + " ".join(f"{k}:{v:.4f}" for k, v in enumerate(item, 1))
            )
    return "\n".join(lines) + "\n"


def evaluate(scores: Tensor, relevance: Tensor, lists: Tensor) -> dict[str, float]:
    """Return the mean NDCG of lists of items [L, n] by scores, [N]; the last item is padding."""
    order = torch.cat([scores, scores.new_tensor([-torch.inf])])[lists].argsort(
        dim=1, descending=True, stable=True
    )
    figures = ndcg_scores(order, relevance[lists].clamp(min=0))
    return {name: round(float(values.mean()), 4) for name, values in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--make", action="store_true", help="write a made-up file first")
    parser.add_argument("--rounds", type=int, default=1000, help="of boosting at most")
    options = parser.parse_args()
    if options.make:
        options.file.write_text(made_up(), encoding="utf-8")
    import lightgbm
    from sklearn.datasets import load_svmlight_file

    x, labels, _ = load_svmlight_file(str(options.file), query_id=True)
    numbers, relevance, _ = lists_file = read_ranked_lists(options.file)
    source = RankedLists(options.file.stem, lists_file, 0.1, 0.1, 0)
    train, validation, test = (source._lists[split] for split in ("train", "val", "test"))
    single_number_scores = [
        evaluate(sign * numbers[:, k], relevance, test)
        for k in range(x.shape[1])
        for sign in (1, -1)
    ]
    print(
        "best number of an item:", max(single_number_scores, key=lambda scores: scores["ndcg_at_5"])
    )
    begun = time.process_time()
    parts = []
    for lists in (train, validation):
        is_item = lists < len(labels)
        rows = lists[is_item].numpy()
        parts.append(
            lightgbm.Dataset(
                x[rows], labels[rows], group=is_item.sum(1).numpy(), free_raw_data=False
            )
        )
    settings = {
        "objective": "lambdarank",
        "metric": "ndcg",
        "eval_at": [5],
        "learning_rate": 0.05,
        "num_threads": 1,
        "verbosity": -1,
        "seed": 0,
    }
    stop = lightgbm.early_stopping(50, verbose=False)
    trees = lightgbm.train(settings, parts[0], options.rounds, parts[1:], callbacks=[stop])
    seconds = time.process_time() - begun
    predictions = torch.from_numpy(np.asarray(trees.predict(x)))
    print(
        f"LightGBM, {trees.best_iteration} trees, {seconds:.1f} CPU s:",
        evaluate(predictions, relevance, test),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""A run compared with baselines: `python -m benchmarks.count_baselines cells.h5ad --labels type
--run RUN`.

Every baseline is trained on the training split until it stops, and evaluated on the test split. The
columns are

- CPU seconds of fitting and sampling (for a run: of sampling);
- bits per dimension of test data;
- the AUC with which a random forest and gradient boosting distinguish samples from as many test
  data (0.5: not at all);
- the distance between the distributions of totals, and the ratio of their means;
- the fraction of test samples with the class of most of their 15 nearest training samples, in the
  latent representation of the method. Principal components are the simple baseline (`training`).

Methods:

    training    training counts as samples: the scores of correct samples
    copula      Gaussian copula with the empirical marginals; it has no likelihood of counts
    mixture     independent negative binomial counts, by EM with shapes from moments; the number of
                components is chosen on a tenth of the training data
    scvi        scvi-tools' SCVI with its defaults and a latent library size, sampled from the
                prior; bits by importance weights; needs `pip install scvi-tools`
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import gammaln, logsumexp
from scipy.stats import ks_2samp

from blackout import load_model
from blackout.data import CountData, counts
from blackout.diffusion.latent_features import latent_features
from blackout.evaluation.baselines import copula_samples
from blackout.evaluation.classifier_tests import classifier_test
from blackout.networks import ResidualMLP

Array = npt.NDArray[Any]
COMPONENTS = (1, 2, 4, 8, 16, 32)  # numbers of components that are tried
SHAPES = (0.05, 1000.0)  # limits of shapes
ROUNDS = 20  # iterations of EM
NEIGHBOURS = 15  # of the classifier in the latent space
DIRECTIONS = 30  # principal components
NUM_SAMPLES = 500  # per method
SCVI_LR = 1e-3  # default of scvi-tools


class Mixture:
    """A mixture of independent negative binomial counts.

    Every component and element has a mean, every element a shape.
    """

    def __init__(self, x: Array, components: int, seed: int = 0) -> None:
        from sklearn.cluster import KMeans

        labels = KMeans(components, n_init=3, random_state=seed).fit_predict(np.log1p(x))
        responsible = np.eye(components)[labels]
        overall = (x.sum(0) + 1) / (len(x) + 1)
        for _ in range(ROUNDS):
            size = responsible.sum(0)
            self.weight = (size + 1) / (len(x) + components)
            self.mean = (responsible.T @ x + overall) / (size[:, None] + 1)
            # by moments: the variance within components is m + m^2 / shape
            square = size @ self.mean**2
            excess = (
                (x**2).sum(0)
                - 2 * (self.mean * (responsible.T @ x)).sum(0)
                + square
                - size @ self.mean
            )
            self.shape = (square / excess.clip(1e-9)).clip(*SHAPES)
            joint = self._joint(x)
            responsible = np.exp(joint - logsumexp(joint, 1, keepdims=True))

    def _joint(self, x: Array) -> Array:
        """Return log probabilities of a component and the counts, [n, K]."""
        shape_term = (gammaln(x + self.shape) - gammaln(self.shape) - gammaln(x + 1)).sum(1)
        scaled = self.mean / self.shape
        linear = x @ np.log(scaled / (1 + scaled)).T - np.log1p(scaled) @ self.shape
        log_probs: Array = np.log(self.weight) + shape_term[:, None] + linear
        return log_probs

    def bits(self, x: Array) -> float:
        """Return the mean bits per dimension."""
        return float(-logsumexp(self._joint(x), 1).mean() / x.shape[1] / np.log(2))

    def sample(self, number: int, seed: int = 0) -> Array:
        """Return samples [number, D]."""
        random = np.random.default_rng(seed)
        mean = self.mean[random.choice(len(self.weight), number, p=self.weight / self.weight.sum())]
        return random.poisson(random.gamma(self.shape, mean / self.shape))

    def latent(self, x: Array) -> Array:
        """Return normalised log responsibilities [n, K]."""
        joint = self._joint(x)
        return joint - logsumexp(joint, 1, keepdims=True)


def mixture(data: CountData) -> dict[str, Any]:
    """Fit the best number of components."""
    x = flat(data.train)
    is_held_out = np.arange(len(x)) % 10 == 0
    bits_by_components = {
        k: Mixture(x[~is_held_out], k).bits(x[is_held_out]) for k in COMPONENTS if k < len(x) / 4
    }
    best = Mixture(x, min(bits_by_components, key=bits_by_components.__getitem__))
    return {
        "name": f"mixture of {len(best.weight)}",
        "bits": best.bits(flat(data.test)),
        "samples": best.sample(NUM_SAMPLES),
        "latent": best.latent,
    }


def copula(data: CountData) -> dict[str, Any]:
    """Sample from the copula."""
    return {"samples": flat(copula_samples(data.train, NUM_SAMPLES))}


def training(data: CountData) -> dict[str, Any]:
    """Select evenly spaced training counts, and fit their principal components."""
    from sklearn.decomposition import PCA

    x = flat(data.train)
    scale = np.median(x.sum(1))

    def normalised(counts: Array) -> Array:
        logarithms: Array = np.log1p(counts * scale / counts.sum(1, keepdims=True).clip(1))
        return logarithms

    components = PCA(min(DIRECTIONS, *x.shape), random_state=0).fit(normalised(x))
    rows = np.linspace(0, len(x) - 1, min(NUM_SAMPLES, len(x))).astype(int)
    return {"samples": x[rows], "latent": lambda counts: components.transform(normalised(counts))}


def scvi(
    data: CountData,
    seed: int = 0,
    lr: float = SCVI_LR,
    num_samples: int = NUM_SAMPLES,
) -> dict[str, Any]:
    """Train with the defaults of scvi-tools: as many epochs, without early stopping.

    Args:
        data: with all three splits.
        seed: of the training and of the samples.
        lr: learning rate.
        num_samples: that are drawn from the prior.
    """
    import anndata
    import scvi as library

    library.settings.seed = seed
    warnings.filterwarnings("ignore")

    def to_anndata(counts: Any) -> Any:
        table = anndata.AnnData(flat(counts).astype(np.float32))
        library.model.SCVI.setup_anndata(table)
        return table

    # 1. Train.
    start_time = time.process_time()
    train = to_anndata(data.train)
    model = library.model.SCVI(train, use_observed_lib_size=False)
    model.train(
        enable_progress_bar=False,
        accelerator="cpu",
        plan_kwargs={"lr": lr},
    )
    training_seconds = time.process_time() - start_time

    # 2. Bits per dimension of held-out counts.
    def bits(counts: Any) -> float:
        nats = -model.get_marginal_ll(to_anndata(counts), n_mc_samples=500, return_mean=True)
        return float(nats) / counts[0].numel() / math.log(2)

    # 3. Samples.
    module = model.module
    random = torch.Generator().manual_seed(seed)
    start_time = time.process_time()
    with torch.no_grad():
        z = torch.randn(num_samples, module.n_latent, generator=random)
        mean = module.library_log_means[0, 0]
        variance = module.library_log_vars[0, 0]
        library_size = mean + variance.sqrt() * torch.randn(num_samples, 1, generator=random)
        samples = module.generative(z, library_size, torch.zeros(num_samples, 1, dtype=torch.long))[
            "px"
        ].sample()
    sampling_seconds = time.process_time() - start_time

    def latent(counts: Array) -> Array:
        held = anndata.AnnData(counts.astype(np.float32))
        library.model.SCVI.setup_anndata(held)
        return np.asarray(model.get_latent_representation(held))

    return {
        "samples": samples.numpy().astype(np.int64),
        "bits": bits(data.test),
        "bits of validation data": bits(data.val),
        "latent": latent,
        "training CPU s": training_seconds,
        "sampling CPU s": sampling_seconds,
    }


def run(path: Path, data: CountData) -> dict[str, Any]:
    """Sample from a trained model with its sampler, and read its final bits."""
    model: Any = load_model(path)
    values = json.loads((path / "metrics.json").read_text(encoding="utf-8"))["values"]
    bits = values.get("bits_per_dim_test", values.get("test/bits_per_dim"))
    bits = bits["value"] if isinstance(bits, dict) else bits
    has_mlp = any(isinstance(part, ResidualMLP) for part in model.averaged.modules())
    latent = (
        (lambda counts: latent_features(model, torch.from_numpy(counts)).numpy())
        if has_mlp
        else None
    )
    return {
        "name": path.name,
        "samples": flat(model.sample(NUM_SAMPLES, seed=1)),
        "bits": bits,
        "latent": latent,
    }


def flat(counts: Any) -> Array:
    """Return counts as an array [n, D]."""
    rows: Array = counts[:].flatten(1).numpy().astype(np.int64)
    return rows


def boosting(a: Array, b: Array, seed: int = 0) -> float:
    """Return the cross-validated AUC of gradient boosting on equal numbers of both."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    number = min(len(a), len(b))
    x = np.concatenate([a[:number], b[:number]])
    y = np.repeat([0, 1], number)
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    p = cross_val_predict(
        HistGradientBoostingClassifier(random_state=seed), x, y, cv=folds, method="predict_proba"
    )
    return float(roc_auc_score(y, p[:, 1]))


def agreement(latent: Callable[[Array], Array], data: CountData) -> float:
    """Return the fraction of test samples with the class of most of their training neighbours."""
    from sklearn.neighbors import KNeighborsClassifier

    assert data.train_labels is not None and data.test_labels is not None
    machine = KNeighborsClassifier(NEIGHBOURS).fit(
        latent(flat(data.train)), data.train_labels.numpy()
    )
    return float(machine.score(latent(flat(data.test)), data.test_labels.numpy()))


def row(name: str, result: dict[str, Any], seconds: float, data: CountData) -> str:
    """Return a line of the table."""
    samples = result["samples"]
    real = flat(data.test)
    bits = result.get("bits")
    number = min(len(samples), len(real))
    forest = classifier_test(samples[:number], real[:number])[0]
    totals = ks_2samp(samples.sum(1), real.sum(1), method="asymp").statistic
    has_classes = result.get("latent") is not None and data.train_labels is not None
    cells = [
        result.get("name", name),
        f"{seconds:.0f}",
        "" if bits is None else f"{bits:.3f}",
        f"{forest:.3f}",
        f"{boosting(samples, real):.3f}",
        f"{totals:.3f}",
        f"{samples.mean() / real.mean():.2f}",
        f"{agreement(result['latent'], data):.3f}" if has_classes else "",
    ]
    return "| " + " | ".join(cells) + " |"


def main(argv: list[str] | None = None) -> None:
    """Evaluate all methods and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="of counts, as for dataset.path")
    parser.add_argument("--labels", help="column with the class of every sample")
    parser.add_argument("--run", type=Path, nargs="*", default=[], help="trained on the file")
    methods: dict[str, Callable[[CountData], dict[str, Any]]] = {
        "training": training,
        "copula": copula,
        "mixture": mixture,
        "scvi": scvi,
    }
    parser.add_argument("--methods", nargs="*", choices=list(methods), default=list(methods))
    options = parser.parse_args(argv)
    data = counts(options.file, labels=options.labels)
    print(
        "| method | CPU s | bits | forest AUC | boosting AUC | totals KS | mean | class accuracy |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in [*options.methods, *options.run]:
        start_time = time.process_time()
        result = run(name, data) if isinstance(name, Path) else methods[name](data)
        print(row(str(name), result, time.process_time() - start_time, data), flush=True)


if __name__ == "__main__":
    main()

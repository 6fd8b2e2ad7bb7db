"""A run beside rivals on its counts: `python -m benchmarks.count_rivals cells.h5ad --labels type --run RUN`.

Every rival is trained to its own end on the training split and judged on the held-out one. Columns: processor seconds
of fitting and drawing (of a run: of drawing); held-out bits per dimension; how well a random forest and gradient
boosting tell samples from held-out counts (.5: not at all), as many of both; distance of the totals' distributions and
ratio of their means; the share of held-out samples whose class most of their 15 nearest training samples have in the
method's own latent representation, of which principal components are the simple rival (`training`).

    training    training counts in place of samples: what samples that are right score
    copula      Gaussian copula with the elements' own distributions; it has no likelihood of counts
    mixture     of independent negative binomial counts, EM with shapes by moments; components by the likelihood of a
                tenth of training
    scvi        scvi-tools' SCVI with its own defaults and a latent library size; drawn from its prior, as an
                unconditional model is, its bits by importance weights; needs `pip install scvi-tools`
"""

from __future__ import annotations

import argparse
import json
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
from blackout.evaluation.count_scores import classifier_test
from blackout.networks import ResidualMLP

Array = npt.NDArray[Any]
COMPONENTS, SHAPES, ROUNDS = (1, 2, 4, 8, 16, 32), (0.05, 1000.0), 20
NEIGHBOURS, DIRECTIONS, DRAWN = 15, 30, 500


class Mixture:
    """Of independent negative binomial counts: a mean of every component and element, a shape of every element."""

    def __init__(self, x: Array, components: int, seed: int = 0) -> None:
        from sklearn.cluster import KMeans

        labels = KMeans(components, n_init=3, random_state=seed).fit_predict(np.log1p(x))
        responsible, overall = np.eye(components)[labels], (x.sum(0) + 1) / (len(x) + 1)
        for _ in range(ROUNDS):
            size = responsible.sum(0)
            self.weight = (size + 1) / (len(x) + components)
            self.mean = (responsible.T @ x + overall) / (size[:, None] + 1)
            square = size @ self.mean**2  # by moments: the variance within components is m + m^2 / shape
            excess = (x**2).sum(0) - 2 * (self.mean * (responsible.T @ x)).sum(0) + square - size @ self.mean
            self.shape = (square / excess.clip(1e-9)).clip(*SHAPES)
            joint = self._joint(x)
            responsible = np.exp(joint - logsumexp(joint, 1, keepdims=True))

    def _joint(self, x: Array) -> Array:
        """Log probabilities of a component and the counts [n, K]."""
        own = (gammaln(x + self.shape) - gammaln(self.shape) - gammaln(x + 1)).sum(1)
        scaled = self.mean / self.shape
        linear = x @ np.log(scaled / (1 + scaled)).T - np.log1p(scaled) @ self.shape
        made: Array = np.log(self.weight) + own[:, None] + linear
        return made

    def bits(self, x: Array) -> float:
        """Per dimension."""
        return float(-logsumexp(self._joint(x), 1).mean() / x.shape[1] / np.log(2))

    def sample(self, number: int, seed: int = 0) -> Array:
        """[number, D]."""
        random = np.random.default_rng(seed)
        mean = self.mean[random.choice(len(self.weight), number, p=self.weight / self.weight.sum())]
        return random.poisson(random.gamma(self.shape, mean / self.shape))

    def latent(self, x: Array) -> Array:
        """Log responsibilities [n, K], normalised."""
        joint = self._joint(x)
        return joint - logsumexp(joint, 1, keepdims=True)


def mixture(data: CountData) -> dict[str, Any]:
    """The best number of components."""
    x = flat(data.train)
    held = np.arange(len(x)) % 10 == 0
    tried = {k: Mixture(x[~held], k).bits(x[held]) for k in COMPONENTS if k < len(x) / 4}
    best = Mixture(x, min(tried, key=tried.__getitem__))
    return {
        "name": f"mixture of {len(best.weight)}", "bits": best.bits(flat(data.test)), "samples": best.sample(DRAWN),
        "latent": best.latent,
    }  # fmt: skip


def copula(data: CountData) -> dict[str, Any]:
    """Samples alone."""
    return {"samples": flat(copula_samples(data.train, DRAWN))}


def training(data: CountData) -> dict[str, Any]:
    """Evenly spaced training counts; and their principal components."""
    from sklearn.decomposition import PCA

    x = flat(data.train)
    scale = np.median(x.sum(1))

    def normalised(of: Array) -> Array:
        made: Array = np.log1p(of * scale / of.sum(1, keepdims=True).clip(1))
        return made

    found = PCA(min(DIRECTIONS, *x.shape), random_state=0).fit(normalised(x))
    chosen = np.linspace(0, len(x) - 1, min(DRAWN, len(x))).astype(int)
    return {"samples": x[chosen], "latent": lambda of: found.transform(normalised(of))}


def scvi(data: CountData) -> dict[str, Any]:
    """Trained as scvi-tools does by default, with early stopping on a tenth of the training split."""
    import anndata
    import scvi as library

    library.settings.seed = 0
    warnings.filterwarnings("ignore")
    train, test = (anndata.AnnData(flat(of).astype(np.float32)) for of in (data.train, data.test))
    library.model.SCVI.setup_anndata(train)
    model = library.model.SCVI(train, use_observed_lib_size=False)
    model.train(early_stopping=True, enable_progress_bar=False, accelerator="cpu")
    library.model.SCVI.setup_anndata(test)
    nats = -model.get_marginal_ll(test, n_mc_samples=500, return_mean=True)
    module, random = model.module, torch.Generator().manual_seed(0)
    with torch.no_grad():
        z = torch.randn(DRAWN, module.n_latent, generator=random)
        mean, variance = module.library_log_means[0, 0], module.library_log_vars[0, 0]
        library_size = mean + variance.sqrt() * torch.randn(DRAWN, 1, generator=random)
        drawn = module.generative(z, library_size, torch.zeros(DRAWN, 1, dtype=torch.long))["px"].sample()

    def latent(of: Array) -> Array:
        held = anndata.AnnData(of.astype(np.float32))
        library.model.SCVI.setup_anndata(held)
        return np.asarray(model.get_latent_representation(held))

    bits = float(nats) / data.test[0].numel() / np.log(2)
    return {"samples": drawn.numpy().astype(np.int64), "bits": bits, "latent": latent}


def run(path: Path, data: CountData) -> dict[str, Any]:
    """A trained model, by its own sampler, and its closing bits."""
    model: Any = load_model(path)
    values = json.loads((path / "metrics.json").read_text(encoding="utf-8"))["values"]
    bits = values.get("bits_per_dim_test", values.get("test/bits_per_dim"))
    bits = bits["value"] if isinstance(bits, dict) else bits
    perceptron = any(isinstance(part, ResidualMLP) for part in model.averaged.modules())
    latent = (lambda of: latent_features(model, torch.from_numpy(of)).numpy()) if perceptron else None
    return {"name": path.name, "samples": flat(model.sample(DRAWN, seed=1)), "bits": bits, "latent": latent}


def flat(of: Any) -> Array:
    """[n, D]."""
    rows: Array = of[:].flatten(1).numpy().astype(np.int64)
    return rows


def boosting(a: Array, b: Array, seed: int = 0) -> float:
    """Area under the ROC curve of gradient boosting, cross-validated, of as many of both."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    number = min(len(a), len(b))
    x, y = np.concatenate([a[:number], b[:number]]), np.repeat([0, 1], number)
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    p = cross_val_predict(HistGradientBoostingClassifier(random_state=seed), x, y, cv=folds, method="predict_proba")
    return float(roc_auc_score(y, p[:, 1]))


def agreement(latent: Callable[[Array], Array], data: CountData) -> float:
    """Share of held-out samples with the class of most of their neighbours among the training samples."""
    from sklearn.neighbors import KNeighborsClassifier

    assert data.train_labels is not None and data.test_labels is not None
    machine = KNeighborsClassifier(NEIGHBOURS).fit(latent(flat(data.train)), data.train_labels.numpy())
    return float(machine.score(latent(flat(data.test)), data.test_labels.numpy()))


def row(name: str, found: dict[str, Any], seconds: float, data: CountData) -> str:
    """A line of the table."""
    samples, real, bits = found["samples"], flat(data.test), found.get("bits")
    number = min(len(samples), len(real))
    forest = classifier_test(samples[:number], real[:number])[0]
    totals = ks_2samp(samples.sum(1), real.sum(1), method="asymp").statistic
    known = found.get("latent") is not None and data.train_labels is not None
    cells = [
        found.get("name", name), f"{seconds:.0f}", "" if bits is None else f"{bits:.3f}", f"{forest:.3f}",
        f"{boosting(samples, real):.3f}", f"{totals:.3f}",
        f"{samples.mean() / real.mean():.2f}",
        f"{agreement(found['latent'], data):.3f}" if known else "",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="of counts, as for dataset.path")
    parser.add_argument("--labels", help="column with the class of every sample")
    parser.add_argument("--run", type=Path, nargs="*", default=[], help="trained on the file")
    methods: dict[str, Callable[[CountData], dict[str, Any]]] = {
        "training": training, "copula": copula, "mixture": mixture, "scvi": scvi
    }  # fmt: skip
    parser.add_argument("--methods", nargs="*", choices=list(methods), default=list(methods))
    given = parser.parse_args(argv)
    data = counts(given.file, labels=given.labels)
    print("| method | CPU s | bits | forest AUC | boosting AUC | totals KS | mean | class accuracy |")
    print("|---|---|---|---|---|---|---|---|")
    for name in [*given.methods, *given.run]:
        began = time.process_time()
        found = run(name, data) if isinstance(name, Path) else methods[name](data)
        print(row(str(name), found, time.process_time() - began, data), flush=True)


if __name__ == "__main__":
    main()

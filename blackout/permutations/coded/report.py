"""Evaluation of coded models: scores of samples, likelihoods, distances, and baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.comparisons import Baseline, SampleValues
from blackout.component import component
from blackout.data.formats import load_arrays
from blackout.distributed import sum_over_processes
from blackout.errors import UserError, refuse
from blackout.permutations.coded.data import PermutationData
from blackout.permutations.coded.datasets.ratings import ranking_scores
from blackout.permutations.coded.decoding import Order, Passes
from blackout.permutations.coded.likelihood import MAX_EXACT_ITEMS, exact_mixture
from blackout.permutations.coded.losses import autoregressive_loss
from blackout.permutations.coded.model import CodeModel
from blackout.permutations.codes import Insertion
from blackout.permutations.distributions import (
    Mallows,
    Mixture,
    PlackettLuce,
    describe_worths,
    fit_plackett_luce,
)
from blackout.permutations.group import all_permutations, identity_like, is_permutation
from blackout.permutations.metrics import SAMPLE_METRICS, expected_unique_share, kl_bits, rearrange
from blackout.protocols import MetricDescription, Samples, Split
from blackout.random import SampleStreams

MAX_ONE_PASS_ITEMS = 9  # items up to which all permutations are evaluated in one pass each
NETWORK_BATCH = 1000  # permutations in one network evaluation
MAX_FITTED = 20_000  # permutations to which classical models are fitted
MAX_MIXTURE_ITEMS = 100  # items up to which mixtures are fitted


@component("metrics")
class CodeScorer:
    """Scores of sampled permutations.

    These are the shares of valid and of unique samples, and the scores of single samples that the
    data set defines.
    """

    def begin(
        self,
        source: PermutationData,
        num_samples: int,
        device: torch.device | str = "cpu",
        split: Split = "test",
    ) -> PermutationScores:
        """Return accumulators for samples.

        Raises:
            UserError: another kind of data, or an empty split.
        """
        if not isinstance(source, PermutationData):
            raise UserError(f"metrics: scores of permutations need permutations, not {source.name}")
        refuse(
            not source.size(split),
            f"metrics: {source.name} has no {split} data to compare samples with",
        )
        return PermutationScores(source, num_samples, split)

    def held_out(
        self, source: PermutationData, num_samples: int, device: torch.device | str = "cpu"
    ) -> dict[str, Any]:
        """Return the scores of test permutations."""
        index = torch.arange(min(num_samples, source.size("test") or 0))
        batch = source.batch("test", index)
        scores = self.begin(source, len(index))
        scores.update({"samples": batch["x"], "target": batch["x"], **batch}, index)
        return {"num_samples": len(index), "values": scores.compute()}

    def baseline(
        self, source: PermutationData, num_samples: int, device: torch.device | str = "cpu"
    ) -> None:
        """Return None: classical models are compared by their likelihood."""

    def read(self, path: Path, source: PermutationData) -> Samples:
        """Read permutations from an `.npz` of `sample.py`, or from an `.npy` file [N, n].

        Raises:
            UserError: another format.
        """
        loaded = load_arrays(path)
        arrays = loaded if isinstance(loaded, dict) else {"permutation": loaded}
        x = arrays.pop("permutation", None)
        if x is None or x.dtype.kind not in "iu" or x.ndim != 2 or x.shape[1] != source.length:
            raise UserError(
                f"{path}: integers [N, {source.length}], the array `permutation`, are needed"
            )
        columns = {name: torch.from_numpy(values) for name, values in arrays.items()}
        return {"samples": torch.from_numpy(x.astype(np.int64)), **columns}


class PermutationScores:
    """Accumulated scores of samples, from any number of processes.

    Args:
        source: with which samples are compared.
        num_samples: total; samples are numbered 0..num_samples-1 over all processes.
        split: of the source, whose contexts the samples have.
    """

    def __init__(self, source: PermutationData, num_samples: int, split: Split = "test") -> None:
        self.num_samples = num_samples
        self._source = source
        self._split = split
        self.reset()

    def reset(self) -> None:
        """Remove all samples."""
        self._samples = torch.zeros(self.num_samples, self._source.length, dtype=torch.int64)
        self._sums: dict[str, Tensor] = {}  # sum and count of every score, float64 [2]

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add samples [b, n] with their indices int64 [b]."""
        batch = {name: values.cpu() for name, values in samples.items()}
        x = batch["samples"]
        valid = is_permutation(x)
        self._samples[indices.cpu()] = x
        scores: dict[str, Tensor] = {"valid": batch.get("valid", valid).double()}
        if self._source.sample_scores is not None:
            # rows that are no permutations are scored as the identity, and then set to 0
            batch["samples"] = torch.where(valid.unsqueeze(1), x, identity_like(x))
            for name, values in self._source.sample_scores(batch).items():
                scores[name] = values.masked_fill(~valid, 0.0)
        for name, values in scores.items():
            has_value = ~values.isnan()
            batch_sums = torch.stack([values.nan_to_num(0.0).sum(), has_value.sum().double()])
            earlier_sums = self._sums.get(name, torch.zeros(2, dtype=torch.float64))
            self._sums[name] = earlier_sums + batch_sums

    def compute(self) -> dict[str, float]:
        """Return mean scores, and the share of distinct samples with that of a perfect sampler.

        References: Severo et al. 2025, section 5.2; see `expected_unique_share`.
        """
        samples = sum_over_processes(self._samples.clone())
        values: dict[str, float] = {}
        if self._source.kind is None:
            values["unique"] = len(samples.unique(dim=0)) / self.num_samples
        if self._source.members is not None:
            num_members = len(self._source.members)
            values["unique_of_perfect"] = expected_unique_share(num_members, self.num_samples)
        for name in sorted(self._sums):
            total, count = sum_over_processes(self._sums[name].clone()).tolist()
            values[name] = total / count if count else math.nan
        return values

    def figure(self) -> Any:
        """Return a figure of how often items precede others, in held-out orders and in samples.

        The result is None for puzzles.
        """
        # imported here, because loading a model does not need Pillow
        from blackout.permutations.plots import precedence_figure, precedence_shares

        source = self._source
        if source.kind not in (None, "rankings"):
            return None
        size = source.size(self._split) or 0
        num_items = source.num_tokens or source.length
        num_samples = len(self._samples)
        held_out_index = torch.linspace(0, size - 1, min(size, num_samples)).long()
        sample_index = torch.arange(num_samples) % size
        shares: dict[str, Tensor] = {}
        for name, index in (("held out", held_out_index), ("samples", sample_index)):
            batch = source.batch(self._split, index)
            x = self._samples if name == "samples" else batch["x"].cpu()
            valid = is_permutation(x)
            items = batch["items"].cpu() if "items" in batch else identity_like(x)
            shares[name] = precedence_shares(rearrange(items[valid], x[valid]), num_items)
        return precedence_figure(shares, source.item_names)

    def provenance(self) -> dict[str, Any]:
        """Return the data with which samples were compared."""
        return {
            "scores": "permutations",
            "scored": self.num_samples,
            "metric_descriptions": {name: asdict(score) for name, score in SAMPLE_METRICS.items()},
            "data": self._source.fingerprint(self._split),
        }


def likelihood_report(
    model: CodeModel, source: PermutationData, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the bits per test permutation, and the divergence from a known distribution.

    Args:
        model: in eval mode.
        source: of the test permutations.
        settings: `likelihood.images` and `likelihood.baselines` of conf/sample.yaml, and how
            samples are drawn.

    Returns:
        `values`: `nll_bits_test`, and `kl_bits` and `total_variation` for each reported context;
        `likelihood`: how they were computed, and scores of ranking baselines; `sample_values`: bits
        of each test permutation.
    """
    options = settings["likelihood"]
    size = min(options["images"], source.size("test") or 0)
    if not size:
        return {"values": {}}
    passes = model.passes.with_settings(settings).resolve(model.length, model.objective)
    bits = held_out_bits(model, source, size, passes)
    divergences = _divergences(model, source, passes)
    values = {"nll_bits_test": float(bits.mean()), **divergences}
    if size > 1:
        values["nll_bits_test_error"] = float(bits.std()) / math.sqrt(size)
    kind = model.likelihood_kind(passes)
    likelihood: dict[str, Any] = {"held_out": size, "nll_bits": kind, **asdict(passes)}
    if passes.greedy:
        likelihood["note"] = (
            "greedy draws have no density: the bits are those of the same passes and order "
            "without it"
        )
    condition = settings.get("given")
    if condition is not None:
        likelihood["given"] = "none: the bits are those of whole permutations"
    if options["baselines"] and source.kind == "rankings":
        num_observed = condition if type(condition) is int else 0
        likelihood["rankings"] = ranking_baselines(source, num_observed, size)
    sample_values = {"nll_bits_test": SampleValues(torch.arange(size), bits, kind)}
    return {
        "values": values,
        "likelihood": likelihood,
        "sample_values": sample_values,
        "metric_descriptions": dict.fromkeys(
            divergences, asdict(MetricDescription(better="lower"))
        ),
    }


def ranking_baselines(
    source: PermutationData, num_observed: int, size: int
) -> dict[str, dict[str, float]]:
    """Return mean scores of baselines on test rankings.

    `uniform_insertion` keeps the order of the first `num_observed` items and inserts the others
    uniformly. `popularity` sorts by the number of raters, and `plackett_luce` by scores fitted to
    training rankings.

    Args:
        source: of the rankings.
        num_observed: number of items whose order is known.
        size: number of test rankings.

    References: Severo et al. 2025, section 5.3.
    """
    test = source.batch("test", torch.arange(size))
    train = source.batch("train", torch.arange(min(MAX_FITTED, source.size("train") or MAX_FITTED)))
    log_worths = fit_plackett_luce(train["items"].gather(1, train["x"]), source.num_tokens)
    u = torch.rand(test["x"].shape, generator=torch.Generator().manual_seed(0))
    digits = (u * torch.arange(1, source.length + 1)).long()
    digits[:, :num_observed] = Insertion.encode(test["x"])[:, :num_observed]

    def sort_items(scores: Tensor) -> Tensor:
        """Return the items of each ranking by falling score."""
        return scores[test["items"]].argsort(dim=1, descending=True, stable=True)

    rankings = {
        "uniform_insertion": Insertion.decode(digits),
        "popularity": sort_items(source.buffers["popularity"]),
        "plackett_luce": sort_items(log_worths),
    }
    means: dict[str, dict[str, float]] = {}
    for name, ranking in rankings.items():
        scores = ranking_scores({**test, "samples": ranking})
        means[name] = {metric: float(values.mean()) for metric, values in scores.items()}
    return means


def likelihood_baselines(source: PermutationData, size: int) -> dict[str, Baseline]:
    """Return the bits of test permutations under the uniform distribution and classical models.

    Rankings count as orders of their items. Mallows, its mixture and repeated insertion need the
    same items in every order; Plackett-Luce and its mixture do not. None of them uses another
    context. The number of components of a mixture is chosen on validation permutations.

    Args:
        source: of the permutations; classical models are fitted to at most 20,000 of them.
        size: number of test permutations.

    References: this project; checked in tests/permutations/coded/test_report.py.
    """
    sizes: dict[Split, int] = {
        "train": min(MAX_FITTED, source.size("train") or MAX_FITTED),
        "val": min(MAX_FITTED, source.size("val") or 0),
        "test": size,
    }
    train, validation, test = (
        to_orders(source, source.batch(split, torch.arange(count)))
        for split, count in sizes.items()
    )
    num_tokens = source.num_tokens if source.kind == "rankings" else None
    num_items = num_tokens or source.length
    same_items = num_tokens in (None, source.length)
    # 1. fit
    names = source.item_names
    plackett_luce = PlackettLuce(fit_plackett_luce(train, num_tokens))
    models: dict[str, Mallows | Mixture] = {
        "plackett_luce": Mixture(torch.ones(1), [plackett_luce])
    }
    if same_items:
        models["mallows"] = Mallows.fit(train)
        if len(validation) and source.length <= MAX_MIXTURE_ITEMS:
            models["mallows_mixture"] = Mixture.choose(train, validation, Mallows)
    if len(validation) and num_items <= MAX_MIXTURE_ITEMS:
        mixture = Mixture.choose(train, validation, PlackettLuce, num_tokens)
        models["plackett_luce_mixture"] = mixture
    # 2. evaluate
    held_out = torch.cat([validation, test])
    nll = {name: -model.log_prob(held_out).double() for name, model in models.items()}
    parameters = {name: model.describe(names) for name, model in models.items()}
    parameters["plackett_luce"] = describe_worths(plackett_luce, names)
    if same_items:
        nll["repeated_insertion"] = -repeated_insertion(train, held_out)
    uniform = math.lgamma(source.length + 1)
    nll["uniform"] = torch.full((len(held_out),), uniform, dtype=torch.float64)
    return {
        name: Baseline.from_values(
            values / math.log(2), len(validation), parameters=parameters.get(name)
        )
        for name, values in nll.items()
    }


def repeated_insertion(train: Tensor, test: Tensor) -> Tensor:
    """Return log p of orders under a repeated insertion model, float64 [m], in nats.

    Items 0, 1, 2, ... are inserted one after another, with probabilities of positions fitted to
    training orders with a pseudo-count of 1.

    Args:
        train: int64 [N, n].
        test: int64 [m, n].

    References: Doignon et al. 2004; Severo et al. 2025, section 3.2.
    """
    n = train.shape[1]
    counts = F.one_hot(Insertion.encode(train), n).sum(0) + Insertion.support(n).double()
    log_probs = (counts / counts.sum(-1, keepdim=True)).log()
    return log_probs.gather(1, Insertion.encode(test).T).sum(0)


def to_orders(source: PermutationData, batch: Mapping[str, Tensor]) -> Tensor:
    """Return permutations of the data as orders, int64 [b, n] on the CPU.

    Rankings become their items in order; other data are returned as they are.
    """
    x = batch["x"].cpu()
    return batch["items"].cpu().gather(1, x) if source.kind == "rankings" else x


def _divergences(model: CodeModel, source: PermutationData, passes: Passes) -> dict[str, float]:
    """Return KL(truth || model) in bits and the total variation for every reported context.

    The result is empty if the truth is unknown or there are too many permutations.

    References: this project; checked in tests/permutations/coded/test_model.py.
    """
    if source.log_prob is None:
        return {}
    values: dict[str, float] = {}
    num_passes = passes.passes or model.length
    for name, context in source.reported_contexts.items():
        distribution = exact_distribution(model, context, num_passes, passes.order)
        if distribution is None:
            continue
        permutations, log_q = distribution
        log_p = source.log_prob(context, permutations)
        values[f"kl_bits {name}".strip()] = kl_bits(log_p, log_q)
        distance = 0.5 * float((log_p.exp() - log_q.exp()).abs().sum())
        values[f"total_variation {name}".strip()] = distance
    return values


@torch.no_grad()
def held_out_bits(model: CodeModel, source: PermutationData, size: int, passes: Passes) -> Tensor:
    """Return the bits of the first test permutations, float64 [size].

    `CodeModel.likelihood_kind` says whether they are exact.
    """
    bits = torch.zeros(size, dtype=torch.float64)
    for index in torch.arange(size).split(NETWORK_BATCH):
        batch = {
            name: values.to(model.device) for name, values in source.batch("test", index).items()
        }
        streams = SampleStreams(0, index.to(model.device)).step(0)
        nll = model.nll(model.denoiser(batch), model.encode(batch["x"]), streams, passes)
        bits[index] = nll.cpu() / math.log(2)
    return bits


@torch.no_grad()
def exact_distribution(
    model: CodeModel, context: Mapping[str, Tensor], passes: int, order: Order | None = "random"
) -> tuple[Tensor, Tensor] | None:
    """Return all permutations and their log-probabilities for a context.

    The result is None if there are too many. They are enumerated up to 7 items for any number of
    passes, and up to 9 items in one pass or for an autoregressive model. Inline codes that are no
    permutations are left out, so that the probabilities sum to less than 1. With order=confidence
    and several passes the order depends on the digits, and None is returned.

    Args:
        model: trained.
        context: arrays [1, ...].
        passes: network evaluations.
        order: of the digits.

    Returns:
        Permutations int64 [n!, n] and log p float64 [n!].

    References: Severo et al. 2025, eq. 2; see `exact_mixture`.
    """
    n = model.length
    causal = model.objective == "autoregressive"
    single_pass = causal or passes <= 1
    if n > MAX_ONE_PASS_ITEMS:
        return None
    if not single_pass and (n > MAX_EXACT_ITEMS or order == "confidence"):
        return None
    denoiser = model.denoiser({name: values.to(model.device) for name, values in context.items()})
    permutations = all_permutations(n).to(model.device)
    codes = model.encode(permutations)
    if not single_pass:
        probabilities = exact_mixture(
            denoiser, codes, model.support, passes, random_order=order == "random"
        )
        return permutations.cpu(), probabilities.log()
    # with a single pass all codes have the logits of masked digits
    masked_logits = denoiser(torch.full_like(codes[:1], n))

    def one_pass(part: Tensor) -> Tensor:
        """Return logits [b, n, n] of codes [b, n]."""
        return denoiser(part) if causal else masked_logits.expand(len(part), -1, -1)

    log_p = [
        -autoregressive_loss(one_pass, part, model.support) for part in codes.split(NETWORK_BATCH)
    ]
    return permutations.cpu(), torch.cat(log_p).double().cpu()

"""What `evaluate=true` says of a model: scores of its samples, likelihood, distance from a known law, baselines."""

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
from blackout.permutations.classical import Mallows, Mixture, fit_plackett_luce
from blackout.permutations.coded.data import PermutationData
from blackout.permutations.coded.model import (
    MOST_ITEMS,
    CodeModel,
    Order,
    Passes,
    autoregressive_loss,
    exact_mixture,
)
from blackout.permutations.coded.ratings import judge
from blackout.permutations.codes import Insertion
from blackout.permutations.distributions import PlackettLuce
from blackout.permutations.group import all_permutations, identity_like, is_permutation
from blackout.permutations.metrics import expected_unique, kl_bits, rearrange
from blackout.protocols import Samples, Split
from blackout.random import SampleStreams

_ENUMERATED = 9
"""Most items whose law is enumerated where one pass over each permutation says it."""
_AT_ONCE = 1000
_FITTED = 20_000
"""Most training permutations that classical families are fitted to."""
_MIXED = 100
"""Most items to whose orders mixtures are fitted."""


@component("metrics")
class CodeScorer:
    """Valid and unique shares, and the figures of single samples that the data define (cyclic, ndcg_at_5, ...)."""

    def begin(
        self, source: PermutationData, num_samples: int, device: torch.device | str = "cpu", split: Split = "test"
    ) -> PermutationScores:
        """Accumulators for that many samples."""
        if not isinstance(source, PermutationData):
            raise UserError(f"metrics: scores of permutations need permutations, not {source.name}")
        refuse(not source.size(split), f"metrics: {source.name} has no {split} data to compare samples with")
        return PermutationScores(source, num_samples, split)

    def held_out(self, source: PermutationData, num_samples: int, device: torch.device | str = "cpu") -> dict[str, Any]:
        """The same of the held-out samples."""
        index = torch.arange(min(num_samples, source.size("test") or 0))
        batch = source.batch("test", index)
        scores = self.begin(source, len(index))
        scores.update({"samples": batch["x"], "target": batch["x"], **batch}, index)
        return {"num_samples": len(index), "values": scores.compute()}

    def baseline(self, source: PermutationData, num_samples: int, device: torch.device | str = "cpu") -> None:
        """None: what is fitted to permutations is compared by likelihood."""

    def read(self, path: Path, source: PermutationData) -> Samples:
        """Permutations in an `.npz` that `sample.py` wrote, or an `.npy` file [N, n].

        Raises:
            UserError: anything else.
        """
        loaded = load_arrays(path)
        arrays = loaded if isinstance(loaded, dict) else {"permutation": loaded}
        x = arrays.pop("permutation", None)
        if x is None or x.dtype.kind not in "iu" or x.ndim != 2 or x.shape[1] != source.length:
            raise UserError(f"{path}: integers [N, {source.length}], the array `permutation`, are needed")
        return {"samples": torch.from_numpy(x.astype(np.int64)), **{k: torch.from_numpy(v) for k, v in arrays.items()}}


class PermutationScores:
    """Accumulated scores, from any number of processes.

    Args:
        source: what is compared with.
        num_samples: n; samples are numbered 0..n-1 over all processes.
        split: of the source, whose contexts the samples have.
    """

    def __init__(self, source: PermutationData, num_samples: int, split: Split = "test") -> None:
        self.num_samples, self._source, self._split = num_samples, source, split
        self.reset()

    def reset(self) -> None:
        """Forget all samples."""
        self._all = torch.zeros(self.num_samples, self._source.length, dtype=torch.int64)
        self._sums: dict[str, Tensor] = {}

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add samples [b, n] with their numbers int64 [b]: sums and numbers of figures [b], for `compute`."""
        here = {name: values.cpu() for name, values in samples.items()}
        x = here["samples"]
        whole = is_permutation(x)
        self._all[indices.cpu()] = x
        figures: dict[str, Tensor] = {"valid": here.get("valid", whole).double()}
        if self._source.judge is not None:
            # the judge sees what is no permutation as the identity, and its figures of that are 0
            here["samples"] = torch.where(whole.unsqueeze(1), x, identity_like(x))
            figures |= {name: value.masked_fill(~whole, 0.0) for name, value in self._source.judge(here).items()}
        for name, values in figures.items():
            counted = torch.stack([values.nan_to_num(0.0).sum(), (~values.isnan()).sum().double()])
            self._sums[name] = self._sums.get(name, torch.zeros(2, dtype=torch.float64)) + counted

    def compute(self) -> dict[str, float]:
        """Means over samples, and the share of different ones with that of a perfect sampler, where it is known.

        [Severo 2025, section 5.2], as floats; what a perfect sampler has is `expected_unique`.
        """
        everything = sum_over_processes(self._all.clone())
        values: dict[str, float] = {}
        if self._source.kind is None:
            values["unique"] = len(everything.unique(dim=0)) / self.num_samples
        if self._source.members is not None:
            values["unique_of_perfect"] = expected_unique(len(self._source.members), self.num_samples)
        for name in sorted(self._sums):
            total, count = sum_over_processes(self._sums[name].clone()).tolist()
            values[name] = total / count if count else math.nan
        return values

    def figure(self) -> Any:
        """Which items come before which in held-out orders and in the samples; None of puzzles."""
        from blackout.permutations.plots import wins, wins_figure  # here: a model that is loaded needs no Pillow

        source = self._source
        if source.kind not in (None, "rankings"):
            return None
        number, n, sets = source.size(self._split) or 0, source.num_tokens or source.length, {}
        spaced = torch.linspace(0, number - 1, min(number, len(self._all))).long()
        for name, index in (("held out", spaced), ("samples", torch.arange(len(self._all)) % number)):
            context = source.batch(self._split, index)
            x = self._all if name == "samples" else context["x"].cpu()
            whole = is_permutation(x)
            items = context["items"].cpu() if "items" in context else identity_like(x)
            sets[name] = wins(rearrange(items[whole], x[whole]), n)
        return wins_figure(sets, source.labels or list(map(str, range(n))))

    def provenance(self) -> dict[str, Any]:
        """What was compared with."""
        return {"scores": "permutations", "scored": self.num_samples, "data": self._source.fingerprint(self._split)}


def likelihood_report(model: CodeModel, source: PermutationData, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Bits per held-out permutation; where the law is known and its items are few, the divergence from it in bits.

    Args:
        model: in eval mode.
        source: of the held-out samples.
        settings: `likelihood.images` and `likelihood.baselines` of conf/sample.yaml, and how samples are drawn.

    Returns:
        values: `nll_bits_test`, `kl_bits` and `total_variation` of each shown context; likelihood: how they were made,
        and of rankings what those have who do not know the user; sample_values: bits of each test permutation.
    """
    options = settings["likelihood"]
    size = min(options["images"], source.size("test") or 0)
    if not size:
        return {"values": {}}
    passes = model.passes.replaced(settings).checked(model.length, model.objective)
    bits = held_out_bits(model, source, size, passes)
    values = {"nll_bits_test": float(bits.mean()), **_divergences(model, source, passes)}
    if size > 1:
        values["nll_bits_test_error"] = float(bits.std()) / math.sqrt(size)
    likelihood: dict[str, Any] = {"held_out": size, "nll_bits": model.likelihood(passes), **asdict(passes)}
    if passes.greedy:
        likelihood["note"] = "greedy draws have no density: the bits are those of the same passes and order without it"
    given = settings.get("given")
    if given is not None:
        likelihood["given"] = "none: the bits are those of whole permutations"
    if options["baselines"] and source.kind == "rankings":
        likelihood["rankings"] = ranking_baselines(source, given if type(given) is int else 0, size)
    compared = SampleValues(torch.arange(size), bits, model.likelihood(passes))
    return {"values": values, "likelihood": likelihood, "sample_values": {"nll_bits_test": compared}}


def ranking_baselines(source: PermutationData, known: int, held_out: int) -> dict[str, dict[str, float]]:
    """Figures of held-out rankings by who does not know the user, or only their order of the first `known` items.

    uniform_insertion: the other items go in anywhere [Severo 2025, section 5.3]. popularity: by number of raters.
    plackett_luce: by scores of items, fitted to training rankings.

    Floats, of held-out rankings [held_out, n].
    """
    test = source.batch("test", torch.arange(held_out))
    train = source.batch("train", torch.arange(min(_FITTED, source.size("train") or _FITTED)))
    scores = fit_plackett_luce(train["items"].gather(1, train["x"]), source.num_tokens)
    u = torch.rand(test["x"].shape, generator=torch.Generator().manual_seed(0))
    digits = (u * torch.arange(1, source.length + 1)).long()
    digits[:, :known] = Insertion.encode(test["x"])[:, :known]
    found = {
        "uniform_insertion": Insertion.decode(digits),
        "popularity": source.kept["popularity"][test["items"]].argsort(dim=1, descending=True, stable=True),
        "plackett_luce": scores[test["items"]].argsort(dim=1, descending=True, stable=True),
    }
    figures = {name: judge({**test, "samples": x}) for name, x in found.items()}
    return {name: {k: float(v.mean()) for k, v in of.items()} for name, of in figures.items()}


def likelihood_baselines(source: PermutationData, size: int) -> dict[str, Baseline]:
    """Bits of each of the first test permutations by uniform and classical distributions, fitted to training ones.

    Rankings are orders of the items that they are of. Mallows, its mixture and repeated insertion need the same items
    in every order; Plackett-Luce and its mixture do not. None of them sees another context. How many laws a mixture
    has is chosen on validation permutations.

    Args:
        source: of the permutations; classical ones are fitted to at most 20,000 of them.
        size: how many test permutations.

    References: this project; checked in tests/permutations/coded/test_data.py.
    """
    sizes: dict[Split, int] = {
        "train": min(_FITTED, source.size("train") or _FITTED),
        "val": min(_FITTED, source.size("val") or 0),
        "test": size,
    }
    train, validation, test = (
        orders_of(source, source.batch(split, torch.arange(number))) for split, number in sizes.items()
    )
    items = source.num_tokens if source.kind == "rankings" else None
    number_of_items = items or source.length
    laws: dict[str, Mallows | Mixture] = {
        "plackett_luce": Mixture(torch.ones(1), [PlackettLuce(fit_plackett_luce(train, items))])
    }
    if items in (None, source.length):
        laws["mallows"] = Mallows.fit(train)
        if len(validation) and source.length <= _MIXED:
            laws["mallows_mixture"] = Mixture.choose(train, validation, Mallows)
    if len(validation) and number_of_items <= _MIXED:
        laws["plackett_luce_mixture"] = Mixture.choose(train, validation, PlackettLuce, items)
    held_out = torch.cat([validation, test])
    nats = {name: -law.log_prob(held_out).double() for name, law in laws.items()}
    if "mallows" in laws:
        nats["repeated_insertion"] = -repeated_insertion(train, held_out)
    nats["uniform"] = torch.full((len(held_out),), math.lgamma(source.length + 1), dtype=torch.float64)
    return {name: Baseline.from_values(values / math.log(2), len(validation)) for name, values in nats.items()}


def repeated_insertion(train: Tensor, test: Tensor) -> Tensor:
    """log p of orders int64 [m, n], float64 [m], by where items 0, 1, 2, ... went in, one after another, in [N, n].

    Every place of every item counts once more than it was seen [Doignon 2004], [Severo 2025, section 3.2].
    """
    counts = F.one_hot(Insertion.encode(train), train.shape[1]).sum(0) + Insertion.support(train.shape[1]).double()
    return (counts / counts.sum(-1, keepdim=True)).log().gather(1, Insertion.encode(test).T).sum(0)


def orders_of(source: PermutationData, batch: Mapping[str, Tensor]) -> Tensor:
    """Of rankings the items in order, else the permutations, int64 [b, n] on the CPU."""
    x = batch["x"].cpu()
    return batch["items"].cpu().gather(1, x) if source.kind == "rankings" else x


def _divergences(model: CodeModel, source: PermutationData, passes: Passes) -> dict[str, float]:
    """KL(truth || model) in bits and total variation for every shown context, where both laws can be enumerated.

    Floats, of log-probabilities [n!], see `kl_bits`. Ours (tests/permutations/coded/test_model.py).
    """
    if source.truth is None:
        return {}
    found = {}
    for name, context in source.shown.items():
        if (law := exact_distribution(model, context, passes.passes or model.length, passes.order)) is not None:
            points, log_q = law
            log_p = source.truth(context, points)
            found[f"kl_bits {name}".strip()] = kl_bits(log_p, log_q)
            found[f"total_variation {name}".strip()] = 0.5 * float((log_p.exp() - log_q.exp()).abs().sum())
    return found


@torch.no_grad()
def held_out_bits(model: CodeModel, source: PermutationData, size: int, passes: Passes) -> Tensor:
    """Bits of each of the first test permutations, float64 [size], by `CodeModel.nll`.

    See `CodeModel.likelihood` for whether they are exact.
    """
    bits = torch.zeros(size, dtype=torch.float64)
    for index in torch.arange(size).split(_AT_ONCE):
        batch = {name: values.to(model.device) for name, values in source.batch("test", index).items()}
        streams = SampleStreams(0, index.to(model.device)).step(0)
        nats = model.nll(model.denoiser(batch), model.encode(batch["x"]), streams, passes)
        bits[index] = nats.cpu() / math.log(2)
    return bits


@torch.no_grad()
def exact_distribution(
    model: CodeModel, context: Mapping[str, Tensor], passes: int, order: Order | None = "random"
) -> tuple[Tensor, Tensor] | None:
    """All permutations and their log-probabilities for one context [1, ...], if they are few enough to enumerate.

    By [Severo 2025, eq. 2], see `exact_mixture`.

    To 7 items for any number of passes, to 9 in one pass or of an autoregressive model. Of the inline code what is no
    permutation is left out, and the probabilities sum to less than 1. The most certain digits next are an order of its
    own for every outcome, whose law is not looked at.

    Returns:
        (permutations int64 [n!, n], log p float64 [n!]) or None.
    """
    n, causal = model.length, model.objective == "autoregressive"
    if n > _ENUMERATED or (passes > 1 and not causal and (n > MOST_ITEMS or order == "confidence")):
        return None
    denoiser = model.denoiser({name: values.to(model.device) for name, values in context.items()})
    points = all_permutations(n).to(model.device)
    codes = model.encode(points)
    if passes > 1 and not causal:
        return points.cpu(), exact_mixture(denoiser, codes, model.support, passes, order == "random").log()
    logits = denoiser(torch.full_like(codes[:1], n))
    once = denoiser if causal else lambda part: logits.expand(len(part), -1, -1)
    log_q = [-autoregressive_loss(once, part, model.support) for part in codes.split(_AT_ONCE)]
    return points.cpu(), torch.cat(log_q).double().cpu()

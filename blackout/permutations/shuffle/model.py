"""The model: it wires network, shuffle, reverse law, loss and decoder together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from blackout.errors import error_context
from blackout.permutations.datasets import Puzzles
from blackout.permutations.distributions import Reverse, ReverseAssignment
from blackout.permutations.group import identity_like, inverse
from blackout.permutations.metrics import SHARPNESS, arranged, checked_sharpness, tour_length
from blackout.permutations.queries import MOST_EXACT, Condition, answers, likeliest
from blackout.permutations.shuffle.decoding import (
    Beam,
    Decoder,
    Denoiser,
    Greedy,
    Lists,
    Sample,
    draws,
    exact_law,
    moving,
    surely_best,
    with_first,
)
from blackout.permutations.shuffle.losses import LossInputs, ShuffleLoss
from blackout.permutations.shuffles import ForwardProcess
from blackout.protocols import Drawn, Split, Watch
from blackout.random import SampleStreams, StepStreams, categorical, fold_seed
from blackout.training.model import Model, evaluating

# keys that keep the uses of one seed apart; 2 is dropout's
_WALKS, VALIDATION = 0, 3
BATCH = 128
"""Puzzles solved together unless the caller says otherwise."""
_LISTS = 16
"""Of the beam that looks for the likeliest solutions, at least."""
_JUDGED = 1024
"""Items of validation puzzles by which sharpness is chosen."""


@dataclass(frozen=True)
class Asked:
    """What is to be said of a puzzle besides a solution; anything adds `places` and `pairs` of `answers`.

    Args:
        top: so many solutions, `top` and `top_log_prob` of `blackout.permutations.queries`.
        given: what solutions have to fulfil. The solution is then the likeliest of these, with its log_prob among them,
            and `given_log_prob` [b] is that of the condition.
        draws: so many solutions [b, draws, n] from the model's own law.
    """

    top: int = 1
    given: Condition | None = None
    draws: int = 0


class ShuffleDiffusion(Model):
    """Shuffle diffusion: a list is shuffled step by step, and a network learns to take the steps back.

    Args:
        network: with `encode` and `scores`, see `blackout.networks.SetTransformer`.
        shuffle: the forward process.
        reverse: what the network's scores mean.
        loss: to train on.
        decoder: how lists are put in order.
        data: facts of the puzzles: num_items, item_shape, first_fixed, kind, std.
        ema_decay, seed: as for `Model`.
        sharpness: what scores are multiplied by after training; None chooses it on validation data.
        fitted_sharpness: what they are multiplied by now, a float64 scalar; None for 1.
    """

    means = ("val/nll_bits", "val/greedy_accuracy", "val/greedy_correct")

    def __init__(
        self, network: nn.Module, shuffle: ForwardProcess, reverse: Reverse, loss: ShuffleLoss, decoder: Decoder,
        data: Mapping[str, Any], ema_decay: float | None = None, seed: int = 0, sharpness: float | None = None,
        fitted_sharpness: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__(network, ema_decay, seed)
        self.sharpness_setting = checked_sharpness(sharpness)
        self.sharpness: Tensor
        one = torch.ones((), dtype=torch.float64)
        self.register_buffer("sharpness", one if fitted_sharpness is None else fitted_sharpness)
        self.shuffle, self.reverse, self.loss, self.decoder, self.data = shuffle, reverse, loss, decoder, dict(data)

    def denoiser(self, items: Tensor, network: nn.Module | None = None) -> Denoiser:
        """Steps back of lists of items [b, n, ...] with a network; None for the averaged one."""
        sharpness = float(self.sharpness) if network is None else 1.0
        network = self.averaged if network is None else network
        features: Tensor = network.encode(items)  # type: ignore[operator]
        return Denoiser(network, self.reverse, features, self.data["first_fixed"], items, sharpness)

    # --- training

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """The loss of a batch of lists [b, n, ...], a scalar: see `ShuffleLoss`."""
        streams = SampleStreams(fold_seed(self.seed, _WALKS), batch["position"]).step(batch["batch"])
        denoiser = self.denoiser(batch["items"], self.network)
        loss, told = self.loss(LossInputs(denoiser, self.shuffle, batch["items"], streams))
        for name, value in {"train/loss": loss.detach(), **told}.items():
            self.log(name, value)
        return loss

    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """Of lists [b, n, ...] the bound of `nll_bits`, and whether and where `Greedy` puts them right, [b] each.

        The model's own decoder may take many more evaluations: solutions by it have `accuracy` and `correct`.
        """
        items, given, index = batch["items"], batch["given"], batch["index"]
        streams = SampleStreams(fold_seed(self.seed, VALIDATION), index)
        with torch.no_grad(), evaluating(self.averaged):
            self.record("val/nll_bits", self.nll_bits(items, streams.step(0)))
            orders, _ = Greedy()(self.denoiser(arranged(items, given)), self.shuffle.times, streams)
        # the place in the right order of the item that ends up at every place
        reached = moving(given, self.data["first_fixed"]).gather(1, orders[:, 0])
        right = reached == identity_like(reached)
        self.record("val/greedy_accuracy", right.all(1).float())
        self.record("val/greedy_correct", right.float().mean(1))

    def nll_bits(self, items: Tensor, streams: StepStreams) -> Tensor:
        """An upper bound on -log2 p(right order | items), [b], for items [b, n, ...] in their right order.

        From one walk each: log n! + sum over steps of log q(forward) - log p(back), the first exactly.
        [Zhang 2025, eq. 12].
        """
        denoiser = self.denoiser(items)
        law, _, back = LossInputs(denoiser, self.shuffle, items, streams).steps(1)
        log_q, log_p = self.shuffle.log_prob(back), law.log_prob(back).sum(1).double()
        return (math.lgamma(denoiser.free + 1) + log_q - log_p) / math.log(2)

    def calibrate(self, evaluations: int) -> None:
        """Find what scores are multiplied by so that validation puzzles take the fewest bits: a network that knows the
        training lists by heart is too sure of others.

        A number in `SHARPNESS`, by `nll_bits` [b]. Ours (tests/permutations/test_shuffle.py).
        """
        if self.sharpness_setting is not None:
            self.sharpness.fill_(self.sharpness_setting)
            return
        source = cast(Puzzles, self.require_source())
        size = min(_JUDGED // source.num_items, source.size("val") or 0, max(1, evaluations // 64))
        if size < 1:
            return
        index = torch.arange(size)
        items = source.batch("val", index)["items"].to(self.device)

        def bits(sharpness: float) -> float:
            """The mean of `nll_bits` at a sharpness: a float of a float."""
            self.sharpness.fill_(sharpness)
            streams = SampleStreams(fold_seed(self.seed, VALIDATION), index).step(0)
            return float(self.nll_bits(items, streams).mean())

        with torch.no_grad(), evaluating(self.averaged):
            self.sharpness.fill_(min(SHARPNESS, key=bits))

    # --- sampling

    @property
    def validation_cost(self) -> int:
        """The steps of the bound and of a greedy solution: an integer."""
        return 2 * len(self.shuffle.times)

    def batches(
        self, indices: Tensor, seed: int = 0, batch_size: int | None = None, decoder: Decoder | None = None,
        puzzles: Mapping[str, Tensor] | None = None, watch: Watch | None = None, asked: Asked = Asked(),
    ) -> Drawn:  # fmt: skip
        """Solve puzzles a batch at a time: number k is the k-th test puzzle, or of those given, counted round.

        Args:
            indices, seed, batch_size: as for `Model.batches`.
            decoder: how to solve; None for the model's own.
            puzzles: `items` [N, n, ...] and perhaps `truth` [N, n]; None for test puzzles.
            watch: see `blackout.protocols.Watch`.
            asked: for more than one solution, see `Asked`.

        Yields:
            (indices [b], `samples`: solutions [b, n], their log_prob, the items as given, truth and ties if known;
            `sure`, of a decoder that can tell: whether no other solution is more probable).
        """
        size = batch_size or min(BATCH, max(1, len(indices)))
        for part in indices.split(size) if len(indices) else ():
            # every batch has one shape, so that the network rounds alike
            rows = torch.cat([part, part[-1:].expand(size - len(part))])
            given = self._held_out(rows) if puzzles is None else {k: v[rows % len(v)] for k, v in puzzles.items()}
            streams = SampleStreams(seed, rows.to(self.device))
            items, how = given["items"].to(self.device), decoder or self.decoder
            with torch.no_grad(), evaluating(self.averaged):
                solved, lists = self._solve(items, how, streams, watch)
                solved = {name: values[: len(part)] for name, values in solved.items()}
                if asked != Asked():
                    seeds = [fold_seed(seed, k) for k in part.tolist()]
                    solved |= self._answers(items, lists, how, asked, seeds)
            yield part, {name: values[: len(part)].cpu() for name, values in {**solved, **given}.items()}

    def validation_batches(self, indices: Tensor, seed: int = 0) -> Drawn:
        """Solve as `batches`, but validation puzzles."""
        puzzles = self._held_out(torch.arange(int(indices.max()) + 1), "val") if len(indices) else {}
        return self.batches(indices, seed, puzzles=puzzles)

    def _held_out(self, index: Tensor, split: Split = "test") -> dict[str, Tensor]:
        """Puzzles of a split with these numbers [b], counted round, as they are given, with their solutions."""
        source = cast(Puzzles, self.require_source())
        size = source.size(split)
        assert size is not None
        batch = source.batch(split, index % size)
        known = batch.keys() & {"items", "relevance"}
        given = {name: arranged(batch[name], batch["given"]) for name in sorted(known)}
        return {**given, "truth": inverse(batch["given"]), "ties": batch["ties"]}

    def _solve(
        self, items: Tensor, decoder: Decoder, streams: SampleStreams, watch: Watch | None
    ) -> tuple[dict[str, Tensor], Lists]:
        """Solutions, and all orders [b, K, n] that were found with their log-probabilities [b, K]."""
        fixed, steps = self.data["first_fixed"], len(self.shuffle.times)

        def look(step: int, orders: Tensor) -> None:
            if watch is not None:
                watch(step, steps, arranged(items, with_first(orders, fixed)).cpu())

        orders, log_probs = decoder(self.denoiser(items), self.shuffle.times, streams, look)
        orders = with_first(orders, fixed)
        best = torch.zeros(len(items), 1, dtype=torch.int64, device=orders.device)
        if self.data["kind"] == "points":  # a beam's best is its shortest tour [Zhang 2025, appendix G.5]
            flat = arranged(items.repeat_interleave(orders.shape[1], 0), orders.flatten(0, 1))
            lengths = tour_length(flat).view(orders.shape[:2]).masked_fill(log_probs == -torch.inf, torch.inf)
            best = lengths.argmin(1, keepdim=True)
        found = {"samples": arranged(orders, best).squeeze(1), "log_prob": log_probs.gather(1, best).squeeze(1)}
        if decoder.bounds and not isinstance(self.reverse, ReverseAssignment):
            found["sure"] = (best.squeeze(1) == 0) & surely_best(log_probs)
        return found, (orders, log_probs)

    def _answers(
        self, items: Tensor, found: Lists, decoder: Decoder, asked: Asked, seeds: list[int]
    ) -> dict[str, Tensor]:
        """What is `asked` of puzzles [b, n, ...] with a seed each: of the model's law, or of what a decoder with one of
        its own found. To 7 items all orders are gone through; above that, and without a condition, the likeliest are
        those of a beam.

        Ours (tests/permutations/test_queries.py).
        """
        fixed, times, told = self.data["first_fixed"], self.shuffle.times, list[dict[str, Tensor]]()
        for i, seed in enumerate(seeds):
            generator = torch.Generator(items.device).manual_seed(seed)
            orders, log_weights = found[0][i : i + 1], found[1][i : i + 1]
            best: Lists | None = None
            exact = False
            if decoder.bounds or isinstance(decoder, Sample):
                one = self.denoiser(items[i : i + 1])
                if exact := one.free <= MOST_EXACT:
                    orders, log_weights = exact_law(one, times)
                else:
                    orders = draws(one, times, generator)
                    log_weights = torch.zeros(orders.shape[:2], device=orders.device)
                    best = Beam(width=max(_LISTS, asked.top))(one, times, SampleStreams(0, torch.tensor([0])))
                orders = with_first(orders, fixed)
            own = answers(orders, log_weights, asked.top, asked.given)
            if best is not None and asked.given is None:
                own |= likeliest(with_first(best[0], fixed), best[1], asked.top)
            if asked.given is not None:
                sure = torch.full((1,), exact)
                own |= {"samples": own["top"][:, 0], "log_prob": own["top_log_prob"][:, 0], "sure": sure}
                log_weights = log_weights.masked_fill(~asked.given.holds(orders), -torch.inf)
            if asked.draws:
                weights = log_weights.softmax(-1).unsqueeze(1).expand(-1, asked.draws, -1)
                own["draws"] = orders[:, categorical(weights, generator)[0]]
            told.append(own)
        return {name: torch.cat([one[name] for one in told]) for name in told[0]}

    def example(self) -> tuple[Tensor, Tensor]:
        shape, n = self.data["item_shape"], self.data["num_items"]
        items = torch.zeros(1, n, *shape) if shape else torch.zeros(1, n, dtype=torch.int64)
        return items, torch.ones(1)

    def try_once(self) -> None:
        """One lesson of two lists: the first of what fits together and what does not.

        Raises:
            UserError: the network cannot read the items, or the law of the forward steps is not known.
        """
        items, _ = self.example()
        index = torch.arange(2)
        items = items.expand(2, *items.shape[1:])
        with error_context(f"network: it cannot read {self.data['kind']} of shape {list(items.shape[2:])}"):
            denoiser = self.denoiser(items, self.network)
        lesson = LossInputs(denoiser, self.shuffle, items, SampleStreams(0, index).step(0))
        with error_context("shuffle"), torch.no_grad(), evaluating(self.averaged):
            deepcopy(self.loss)(lesson)  # what it counts and averages stays as it is
            self.nll_bits(items, SampleStreams(0, index).step(1))

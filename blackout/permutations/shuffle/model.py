"""The shuffle diffusion model: training, bounds, and solutions of puzzles.

References: Zhang et al. 2025 (SymmetricDiffusers).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from blackout.errors import error_context, refuse
from blackout.permutations.datasets import Puzzles
from blackout.permutations.forward_process import ForwardProcess
from blackout.permutations.group import identity_like, inverse
from blackout.permutations.metrics import (
    SHARPNESS_CHOICES,
    rearrange,
    tour_length,
    validate_sharpness,
)
from blackout.permutations.queries import (
    MAX_EXACT_ITEMS,
    Condition,
    most_probable_orders,
    summarise_orders,
)
from blackout.permutations.shuffle.decoding import (
    Beam,
    Decoder,
    Denoiser,
    Greedy,
    Lists,
    Sample,
    drop_first,
    exact_distribution,
    is_certified,
    prepend_first,
    sample_orders,
)
from blackout.permutations.shuffle.losses import LossInputs, ShuffleLoss
from blackout.permutations.shuffle.reverse import Reverse, ReverseAssignment
from blackout.protocols import Drawn, Split, Watch
from blackout.random import SampleStreams, StepStreams, categorical, fold_seed
from blackout.training.model import FIXED_STEPS, Model, evaluating

# keys that separate the uses of one seed; 2 is the key of dropout
WALK_KEY = 0
VALIDATION_KEY = 3

BATCH = 128  # puzzles solved together unless the caller says otherwise
MIN_TOP_WIDTH = 16  # smallest width of the beam search for the most probable solutions
MAX_SHARPNESS_ITEMS = 1024  # items of the validation puzzles by which sharpness is chosen
EVALUATIONS_PER_PUZZLE = 64  # training evaluations that pay for one of these puzzles


@dataclass(frozen=True)
class Query:
    """Queries about a puzzle besides a solution.

    Any of them adds `places` and `pairs` of `summarise_orders`.

    Args:
        top: number of most probable solutions, output as `top` and `top_log_prob`.
        condition: that solutions must fulfil. The solution is then the most probable of these, with
            its conditional log-probability, and `condition_log_prob` [b] is that of the condition.
        draws: number of samples from the model, output as `draws` [b, draws, n].
    """

    top: int = 1
    condition: Condition | None = None
    draws: int = 0


class ShuffleDiffusion(Model):
    """Shuffle diffusion: lists are shuffled step by step, and a network reverses the steps.

    Args:
        network: with `encode` and `scores`, see `blackout.networks.SetTransformer`.
        shuffle: the forward process.
        reverse: how scores of the network become a distribution.
        loss: for training.
        decoder: how lists are ordered.
        data: facts of the puzzles: num_items, item_shape, first_fixed, kind, std.
        ema_decay: as for `Model`.
        seed: as for `Model`.
        sharpness: factor of the scores after training; None chooses it on validation data.
        fitted_sharpness: present factor, a float64 scalar; None for 1.

    References: Zhang et al. 2025.
    """

    validation_metrics = ("val/nll_bits", "val/greedy_accuracy", "val/greedy_correct")

    def __init__(  # noqa: PLR0913 - the parts of a model, as in its description
        self,
        network: nn.Module,
        shuffle: ForwardProcess,
        reverse: Reverse,
        loss: ShuffleLoss,
        decoder: Decoder,
        data: Mapping[str, Any],
        ema_decay: float | None = None,
        seed: int = 0,
        sharpness: float | None = None,
        fitted_sharpness: Tensor | None = None,
    ) -> None:
        super().__init__(network, ema_decay, seed)
        self.sharpness_setting = validate_sharpness(sharpness)
        self.sharpness: Tensor
        if fitted_sharpness is None:
            fitted_sharpness = torch.ones((), dtype=torch.float64)
        self.register_buffer("sharpness", fitted_sharpness)
        self.shuffle = shuffle
        self.reverse = reverse
        self.loss = loss
        self.decoder = decoder
        self.data = dict(data)

    def denoiser(self, items: Tensor, network: nn.Module | None = None) -> Denoiser:
        """Return the reverse steps of lists of items.

        Args:
            items: [b, n, ...].
            network: None for the one with averaged weights, whose scores are multiplied by the
                sharpness.
        """
        sharpness = float(self.sharpness) if network is None else 1.0
        network = self.averaged if network is None else network
        features: Tensor = network.encode(items)  # type: ignore[operator]
        first_fixed = self.data["first_fixed"]
        return Denoiser(network, self.reverse, features, first_fixed, items, sharpness)

    # --- training

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the loss of a batch of lists [b, n, ...], a scalar, and log it."""
        keys = SampleStreams(fold_seed(self.seed, WALK_KEY), batch["position"])
        streams = keys.step(batch["batch_number"])
        denoiser = self.denoiser(batch["items"], self.network)
        loss, figures = self.loss(LossInputs(denoiser, self.shuffle, batch["items"], streams))
        self.log("train/loss", loss.detach())
        for name, value in figures.items():
            self.log(name, value)
        return loss

    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """Record the bound `nll_bits` of lists [b, n, ...], and how well `Greedy` orders them.

        Solutions of the model's decoder, which may take many more evaluations, have `accuracy` and
        `correct`.
        """
        items = batch["items"]
        puzzle_order = batch["puzzle_order"]
        streams = SampleStreams(fold_seed(self.seed, VALIDATION_KEY), batch["index"])
        with torch.no_grad(), evaluating(self.averaged):
            self.record("val/nll_bits", self.nll_bits(items, streams.step(0)))
            denoiser = self.denoiser(rearrange(items, puzzle_order))
            orders, _ = Greedy()(denoiser, self.shuffle.times, streams)
        # the right position of the item that the solution puts at every position
        right_position = drop_first(puzzle_order, self.data["first_fixed"]).gather(1, orders[:, 0])
        is_right = right_position == identity_like(right_position)
        self.record("val/greedy_accuracy", is_right.all(1).float())
        self.record("val/greedy_correct", is_right.float().mean(1))

    def nll_bits(self, items: Tensor, streams: StepStreams) -> Tensor:
        """Return an upper bound on -log2 p(right order | items), [b], from one walk each.

        It is log n! plus the sum over steps of log q(forward) - log p(reverse), with exact log q.

        Args:
            items: in their right order, [b, n, ...].
            streams: random numbers of every list.

        References: Zhang et al. 2025, eq. 12.
        """
        denoiser = self.denoiser(items)
        inputs = LossInputs(denoiser, self.shuffle, items, streams)
        distribution, _, inverse_steps = inputs.reverse_steps(1)
        log_q = self.shuffle.log_prob(inverse_steps)
        log_p = distribution.log_prob(inverse_steps).sum(1).double()
        return (math.lgamma(denoiser.num_free + 1) + log_q - log_p) / math.log(2)

    def calibrate(self, evaluations: int) -> None:
        """Choose the sharpness with the smallest `nll_bits` of validation puzzles.

        A network that has memorised the training lists is overconfident on others.

        Args:
            evaluations: of the network in training, which limit the number of puzzles.

        References: this project; checked in tests/permutations/test_shuffle_diffusion.py.
        """
        if self.sharpness_setting is not None:
            self.sharpness.fill_(self.sharpness_setting)
            return
        source = cast(Puzzles, self.require_source())
        num_puzzles = min(
            MAX_SHARPNESS_ITEMS // source.num_items,
            source.size("val") or 0,
            max(1, evaluations // EVALUATIONS_PER_PUZZLE),
        )
        if num_puzzles < 1:
            return
        index = torch.arange(num_puzzles)
        items = source.batch("val", index)["items"].to(self.device)

        def mean_bits(sharpness: float) -> float:
            """Return the mean of `nll_bits` at a sharpness."""
            self.sharpness.fill_(sharpness)
            streams = SampleStreams(fold_seed(self.seed, VALIDATION_KEY), index).step(0)
            return float(self.nll_bits(items, streams).mean())

        with torch.no_grad(), evaluating(self.averaged):
            self.sharpness.fill_(min(SHARPNESS_CHOICES, key=mean_bits))

    # --- sampling

    @property
    def validation_cost(self) -> int:
        """The number of network evaluations of a validation puzzle.

        Half of them are the steps of the bound, the others those of a greedy solution.
        """
        return 2 * len(self.shuffle.times)

    def batches(
        self,
        indices: Tensor,
        seed: int = 0,
        batch_size: int | None = None,
        decoder: Decoder | None = None,
        puzzles: Mapping[str, Tensor] | None = None,
        watch: Watch | None = None,
        query: Query = Query(),
    ) -> Drawn:
        """Solve puzzles, a batch at a time: index k is the k-th puzzle, modulo their number.

        Args:
            indices: int64 [N].
            seed: as for `Model.batches`.
            batch_size: as for `Model.batches`.
            decoder: None for the model's own.
            puzzles: `items` [M, n, ...] and perhaps `truth` [M, n]; None for test puzzles.
            watch: see `blackout.protocols.Watch`.
            query: further queries.

        Yields:
            Indices [b], and tensors by name: `samples`, the solutions int64 [b, n]; `log_prob` [b];
            the items; truth and ties if known; and `certified` bool [b], from decoders with lower
            bounds, whether no other solution is more probable.
        """
        decoder = decoder or self.decoder
        size = batch_size or min(BATCH, max(1, len(indices)))
        for part in indices.split(size) if len(indices) else ():
            # 1. pad the batch: all have one shape, so that the network rounds alike
            rows = torch.cat([part, part[-1:].expand(size - len(part))])
            if puzzles is None:
                batch = self._held_out(rows)
            else:
                batch = {name: values[rows % len(values)] for name, values in puzzles.items()}
            # 2. solve
            streams = SampleStreams(seed, rows.to(self.device))
            items = batch["items"].to(self.device)
            with torch.no_grad(), evaluating(self.averaged):
                solutions, lists = self._solve(items, decoder, streams, watch)
                solutions = {name: values[: len(part)] for name, values in solutions.items()}
                # 3. answer queries
                if query != Query():
                    seeds = [fold_seed(seed, k) for k in part.tolist()]
                    solutions |= self._answer_query(items, lists, decoder, query, seeds)
            samples = {**solutions, **batch}
            yield part, {name: values[: len(part)].cpu() for name, values in samples.items()}

    def compiled_modules(self, network: nn.Module) -> list[nn.Module]:
        """Return encoder and layers: lists are encoded once, and scored in many orders."""
        parts: Any = network  # a `SetTransformer`
        return [parts.encoder, *parts.layers]

    def validation_batches(
        self, indices: Tensor, seed: int = 0, num_steps: int | None = None
    ) -> Drawn:
        """Solve validation puzzles, see `batches`."""
        refuse(num_steps is not None, FIXED_STEPS)
        puzzles: dict[str, Tensor] = {}
        if len(indices):
            puzzles = self._held_out(torch.arange(int(indices.max()) + 1), "val")
        return self.batches(indices, seed, puzzles=puzzles)

    def _held_out(self, index: Tensor, split: Split = "test") -> dict[str, Tensor]:
        """Return puzzles [b] of a split with their solutions; indices count modulo their number."""
        source = cast(Puzzles, self.require_source())
        size = source.size(split)
        assert size is not None
        batch = source.batch(split, index % size)
        names = sorted(batch.keys() & {"items", "relevance"})
        puzzles = {name: rearrange(batch[name], batch["puzzle_order"]) for name in names}
        return {**puzzles, "truth": inverse(batch["puzzle_order"]), "ties": batch["ties"]}

    def _solve(
        self, items: Tensor, decoder: Decoder, streams: SampleStreams, watch: Watch | None
    ) -> tuple[dict[str, Tensor], Lists]:
        """Return solutions of puzzles [b, n, ...], and all orders that the decoder found.

        The orders come with their log-probabilities.
        """
        first_fixed = self.data["first_fixed"]
        num_steps = len(self.shuffle.times)

        def report_step(step: int, orders: Tensor) -> None:
            """Pass the present lists to `watch`."""
            if watch is not None:
                lists = rearrange(items, prepend_first(orders, first_fixed))
                watch(step, num_steps, lists.cpu())

        denoiser = self.denoiser(items)
        orders, log_probs = decoder(denoiser, self.shuffle.times, streams, report_step)
        orders = prepend_first(orders, first_fixed)
        best = torch.zeros(len(items), 1, dtype=torch.int64, device=orders.device)
        if self.data["kind"] == "points":
            # the shortest tour of the beam (Zhang et al. 2025, appendix G.5)
            repeated_items = items.repeat_interleave(orders.shape[1], 0)
            tours = rearrange(repeated_items, orders.flatten(0, 1))
            lengths = tour_length(tours).view(orders.shape[:2])
            lengths = lengths.masked_fill(log_probs == -torch.inf, torch.inf)
            best = lengths.argmin(1, keepdim=True)
        solutions = {
            "samples": rearrange(orders, best).squeeze(1),
            "log_prob": log_probs.gather(1, best).squeeze(1),
        }
        if decoder.lower_bounds and not isinstance(self.reverse, ReverseAssignment):
            solutions["certified"] = (best.squeeze(1) == 0) & is_certified(log_probs)
        return solutions, (orders, log_probs)

    def _answer_query(
        self, items: Tensor, lists: Lists, decoder: Decoder, query: Query, seeds: list[int]
    ) -> dict[str, Tensor]:
        """Return the answers for puzzles [b, n, ...] by name, one seed for each puzzle.

        They are those of the model's distribution, or of the orders of a decoder without
        probabilities of the model. Up to 7 items all orders are enumerated. Above that orders are
        drawn, and without a condition the most probable ones come from a beam search.

        References: this project; checked in tests/permutations/test_queries.py.
        """
        answers: list[dict[str, Tensor]] = []
        uses_model = decoder.lower_bounds or isinstance(decoder, Sample)
        for i, seed in enumerate(seeds):
            generator = torch.Generator(items.device).manual_seed(seed)
            # 1. weighted orders
            best: Lists | None = None
            exact = False
            if uses_model:
                orders, log_weights, best, exact = self._weighted_orders(
                    items[i : i + 1], query, generator
                )
            else:
                orders = lists[0][i : i + 1]
                log_weights = lists[1][i : i + 1]
            # 2. marginals and most probable orders
            answer = summarise_orders(orders, log_weights, query.top, query.condition)
            if best is not None and query.condition is None:
                answer |= most_probable_orders(*best, query.top)
            if query.condition is not None:
                answer["samples"] = answer["top"][:, 0]
                answer["log_prob"] = answer["top_log_prob"][:, 0]
                answer["certified"] = torch.full((1,), exact)
                fulfilled = query.condition.is_fulfilled(orders)
                log_weights = log_weights.masked_fill(~fulfilled, -torch.inf)
            # 3. samples
            if query.draws:
                weights = log_weights.softmax(-1).unsqueeze(1).expand(-1, query.draws, -1)
                answer["draws"] = orders[:, categorical(weights, generator)[0]]
            answers.append(answer)
        return {name: torch.cat([answer[name] for answer in answers]) for name in answers[0]}

    def _weighted_orders(
        self, items: Tensor, query: Query, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Lists | None, bool]:
        """Return orders of one puzzle [1, n, ...] that represent the model's distribution.

        Returns:
            Orders int64 [1, K, n], log-weights [1, K], the most probable orders of a beam search
            (None if exact), and whether the weights are exact.
        """
        times = self.shuffle.times
        first_fixed = self.data["first_fixed"]
        denoiser = self.denoiser(items)
        if denoiser.num_free <= MAX_EXACT_ITEMS:
            orders, log_weights = exact_distribution(denoiser, times)
            return prepend_first(orders, first_fixed), log_weights, None, True
        orders = sample_orders(denoiser, times, generator)
        log_weights = torch.zeros(orders.shape[:2], device=orders.device)
        beam = Beam(width=max(MIN_TOP_WIDTH, query.top))
        best_orders, best_log_probs = beam(denoiser, times, SampleStreams(0, torch.tensor([0])))
        best = prepend_first(best_orders, first_fixed), best_log_probs
        return prepend_first(orders, first_fixed), log_weights, best, False

    def example_inputs(self) -> tuple[Tensor, Tensor]:
        """Return arguments of one network evaluation: items [1, n, ...] and times [1]."""
        shape = self.data["item_shape"]
        n = self.data["num_items"]
        items = torch.zeros(1, n, *shape) if shape else torch.zeros(1, n, dtype=torch.int64)
        return items, torch.ones(1)

    def try_once(self) -> None:
        """Evaluate the loss and the bound of two lists, to find parts that do not fit early.

        Raises:
            UserError: the network cannot read the items, or the shuffle has no probabilities for
                its steps.
        """
        items, _ = self.example_inputs()
        items = items.expand(2, *items.shape[1:])
        index = torch.arange(2)
        shape = list(items.shape[2:])
        with error_context(f"network: it cannot read {self.data['kind']} of shape {shape}"):
            denoiser = self.denoiser(items, self.network)
        streams = SampleStreams(0, index)
        inputs = LossInputs(denoiser, self.shuffle, items, streams.step(0))
        with error_context("shuffle"), torch.no_grad(), evaluating(self.averaged):
            deepcopy(self.loss)(inputs)  # a copy: running means of the loss stay as they are
            self.nll_bits(items, streams.step(1))

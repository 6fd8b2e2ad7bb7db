from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar

import pytest
import torch

from blackout.data import CountData
from blackout.family import Split
from blackout.training.data_module import EvalLoader, TrainLoader


def indices(stream: TrainLoader, batches: int) -> torch.Tensor:
    return torch.cat([batch["index"] for batch in islice(stream, batches)])


@pytest.mark.parametrize("batch_size", [1, 5, 23, 50])
def test_every_epoch_is_a_permutation_and_epochs_differ(numbered: CountData, batch_size: int) -> None:
    served = indices(TrainLoader(numbered, batch_size, seed=3), 3 * 23 // batch_size + 1)
    epochs = served[: 3 * 23].view(3, 23)
    assert (epochs.sort(1).values == torch.arange(23)).all()
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3


def test_the_order_does_not_depend_on_the_batch_size(numbered: CountData) -> None:
    assert torch.equal(indices(TrainLoader(numbered, 4), 30), indices(TrainLoader(numbered, 60), 2))


def test_seeds_give_unrelated_orders(numbered: CountData) -> None:
    # neither the same order nor the same order an epoch later, as seed + epoch would give
    first, second = (indices(TrainLoader(numbered, 23, seed=seed), 3).view(3, 23) for seed in (0, 1))
    assert not (first[:, None] == second).all(-1).any()


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("flip", [False, True])
def test_processes_share_the_global_batch(numbered: CountData, world_size: int, flip: bool) -> None:
    data = replace(numbered, flip=flip)
    whole = TrainLoader(data, 8, seed=1)
    parts = [TrainLoader(data, 8, 1, rank, world_size) for rank in range(world_size)]
    for expected, shares in islice(zip(whole, zip(*parts, strict=True), strict=False), 12):
        positions = torch.cat([share["position"] for share in shares])
        assert positions.sort().values.tolist() == list(range(8))
        for key in ("x0", "index", "label"):
            joined = torch.cat([share[key] for share in shares])
            assert torch.equal(joined, expected[key][positions])
        assert {share["batch"] for share in shares} == {expected["batch"]}
        assert {share["batch_size"] for share in shares} == {8}


def test_batches_hold_the_samples_they_name(numbered: CountData) -> None:
    for batch in islice(TrainLoader(numbered, 5), 10):
        assert torch.equal(batch["x0"], numbered.train[batch["index"]])
        assert numbered.train_labels is not None
        assert torch.equal(batch["label"], numbered.train_labels[batch["index"]])


def test_half_of_the_images_are_mirrored_and_differently_in_each_epoch(numbered: CountData) -> None:
    mirrored = []
    for batch in islice(TrainLoader(replace(numbered, flip=True), 23), 100):
        original = numbered.train[batch["index"]]
        turned = (batch["x0"] == original.flip(-1)).flatten(1).all(1)
        assert ((batch["x0"] == original).flatten(1).all(1) ^ turned).all()
        mirrored.append(turned[batch["index"].argsort()])
    coins = torch.stack(mirrored).double()
    assert coins.mean().item() == pytest.approx(0.5, abs=0.04)  # four standard deviations
    assert coins.mean(0).min() > 0.25 and coins.mean(0).max() < 0.75


def test_serving_leaves_the_data_alone(numbered: CountData) -> None:
    before = numbered.train.clone()
    for batch in islice(TrainLoader(replace(numbered, flip=True), 5), 10):
        batch["x0"].zero_()
    assert torch.equal(numbered.train, before)


def test_a_stream_can_start_anywhere_and_go_on(numbered: CountData) -> None:
    whole = indices(TrainLoader(numbered, 5), 20)
    assert torch.equal(indices(TrainLoader(numbered, 5, start_batch=13), 7), whole[65:])
    interrupted = TrainLoader(numbered, 5)
    assert torch.equal(torch.cat([indices(interrupted, 3), indices(interrupted, 17)]), whole)


def test_a_period_repeats_the_first_batches(numbered: CountData) -> None:
    batches = list(islice(TrainLoader(replace(numbered, flip=True), 5, period=2), 6))
    assert [batch["batch"] for batch in batches] == list(range(6))
    for key in ("x0", "index"):
        first, second, *others = (batch[key] for batch in batches)
        assert not torch.equal(first, second)
        assert all(torch.equal(other, (first, second)[k % 2]) for k, other in enumerate(others))


def test_vectors_have_no_labels_and_cannot_be_mirrored() -> None:
    data = CountData("vectors", torch.arange(12).view(4, 3), torch.arange(6).view(2, 3), 11)
    assert "label" not in TrainLoader(data, 2).batch(0)
    assert "label" not in next(iter(EvalLoader(data, 2)))
    with pytest.raises(ValueError, match=r"flip mirrors images \[C, H, W\]"):
        replace(data, flip=True)


@pytest.mark.parametrize(
    ("batch_size", "rank", "world_size"), [(0, 0, 1), (-4, 0, 2), (5, 0, 2), (4, 2, 2), (4, -1, 2)]
)
def test_impossible_sharding_is_refused(numbered: CountData, batch_size: int, rank: int, world_size: int) -> None:
    for kind in (TrainLoader, EvalLoader):
        with pytest.raises(ValueError, match=r"batch_size counts the samples of all|rank must be between"):
            kind(numbered, batch_size, rank=rank, world_size=world_size)


@pytest.mark.parametrize("world_size", [1, 2, 4, 9])
@pytest.mark.parametrize("per_process", [1, 2, 3, 100])
def test_held_out_samples_are_served_exactly_once(numbered: CountData, world_size: int, per_process: int) -> None:
    shards = [EvalLoader(numbered, per_process * world_size, rank, world_size) for rank in range(world_size)]
    assert len({len(shard) for shard in shards}) == 1
    for rank, shard in enumerate(shards):
        batches = list(shard)
        assert len(batches) == len(shard)
        assert all(len(batch["index"]) > 0 for batch in batches)
        assert torch.cat([batch["index"] for batch in batches]).tolist() == list(range(rank, 9, world_size))
        assert all(torch.equal(batch["x0"], numbered.test[batch["index"]]) for batch in batches)
        assert torch.equal(batches[0]["index"], next(iter(shard))["index"])  # and again from the start


def test_a_single_process_keeps_to_the_batch_size(numbered: CountData) -> None:
    assert max(len(batch["index"]) for batch in EvalLoader(numbered, 4, split="train")) <= 4
    assert sum(len(batch["index"]) for batch in EvalLoader(numbered, 4, split="train")) == 23


def test_more_processes_than_samples_are_refused(numbered: CountData) -> None:
    with pytest.raises(ValueError, match="numbered has 9 test samples, fewer than the 10 processes"):
        EvalLoader(numbered, 10, 0, 10)


def test_resuming_another_stream_is_refused(numbered: CountData) -> None:
    state = TrainLoader(numbered, 6, seed=1).state_dict()
    TrainLoader(numbered, 6, seed=1, rank=1, world_size=2, start_batch=4).load_state_dict(state)
    other = CountData("other", numbered.train.flip(0), numbered.test, 30)
    for stream, name in [
        (TrainLoader(numbered, 7, seed=1), "batch_size=6"),
        (TrainLoader(numbered, 6, seed=2), "seed=1"),
        (TrainLoader(other, 6, seed=1), "data="),
    ]:
        with pytest.raises(ValueError, match=f"cannot resume: the checkpoint was trained with {name}"):
            stream.load_state_dict(state)


def test_a_state_from_before_sources_had_the_flip_is_accepted(numbered: CountData) -> None:
    stream = TrainLoader(numbered, 6, seed=1)
    stream.load_state_dict({**stream.state_dict(), "flip": True})


class Endless:
    """An energy: there are no data, only numbers of samples."""

    name = "endless"
    facts: ClassVar[dict[str, Any]] = {"num_sites": 4}

    def __str__(self) -> str:
        return self.name

    def size(self, split: Split) -> int | None:
        return None

    def batch(self, split: Split, index: torch.Tensor, augment: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        assert split == "train" and augment is None
        return {"twice": 2 * index}

    def fingerprint(self, split: Split) -> str:
        return "endless"

    def to(self, device: torch.device) -> Endless:
        return self


def test_a_source_without_end_is_served_by_position() -> None:
    streams = [TrainLoader(Endless(), 4, rank=rank, world_size=2, start_batch=3) for rank in range(2)]
    first, second = (next(iter(stream)) for stream in streams)
    assert first["index"].tolist() == [12, 14] and second["twice"].tolist() == [26, 30]
    assert TrainLoader(Endless(), 4, period=2).batch(7)["index"].tolist() == [4, 5, 6, 7]
    shard = EvalLoader(Endless(), 4, 1, 2)
    assert len(shard) == 0 and list(shard) == []

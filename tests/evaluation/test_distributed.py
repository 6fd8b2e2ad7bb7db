"""Two processes compute the same scores as one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from blackout.distributed import compute_once, first_process_first, my_batches, my_samples
from blackout.errors import UserError
from blackout.evaluation import ImageScorer
from tests import processes
from tests.evaluation.networks import colour_data, images, tiny_extractor

pytestmark = pytest.mark.deep

SAMPLES = 75


def scores(rank: int, processes: int, cache: Path) -> dict[str, float]:
    """Return the scores computed by one of several processes."""
    choice = ImageScorer(tiny_extractor, ["fd", "is", "kd", "prdc", "classes"], "train", 16, cache)
    run = choice.begin(colour_data(), SAMPLES)
    samples = images(SAMPLES, 9, spread=2)
    for indices in torch.arange(SAMPLES)[rank::processes].split(11):
        run.update({"samples": samples[indices]}, indices)
    return run.compute()


def lost_sample(rank: int, cache: Path) -> str:
    """Return the error of a run in which samples are missing."""
    run = ImageScorer(tiny_extractor, ["fd"], "train", 16, cache).begin(colour_data(), SAMPLES)
    run.update({"samples": images(30, rank)}, torch.arange(30) + 30 * rank)
    with pytest.raises(UserError) as caught:
        run.compute()
    return str(caught.value)


def error_of_first_process(rank: int) -> str:
    """Return the error that only the first process knows."""

    def fail() -> None:
        assert rank == 0
        raise ValueError("only the first process knows")

    with pytest.raises(UserError) as caught:
        compute_once(fail)
    return str(caught.value)


def work(rank: int, folder: Path) -> None:
    """Run all checks in one of two processes, and save the results."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    with first_process_first():
        if rank == 0:
            (folder / "made").touch()
        assert (folder / "made").exists()
    cache = folder / "cache"
    results = {
        "fresh": scores(rank, 2, cache),
        "cached": scores(rank, 2, cache),
        "lost": lost_sample(rank, cache),
        "refused": error_of_first_process(rank),
        "shares": [
            [batch.tolist() for batch in my_batches(torch.arange(10, 15), 2)],
            my_samples(5).tolist(),
        ],
    }
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("processes")
    process = processes.run_distributed("tests/evaluation/test_distributed", folder)
    assert process.returncode == 0, process.stderr
    assert len(list((folder / "cache").iterdir())) == 1
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def test_two_processes_agree_with_one(results: list[dict[str, Any]], tmp_path: Path) -> None:
    single = scores(0, 1, tmp_path)
    assert results[0]["fresh"] == results[1]["fresh"]
    assert results[0]["fresh"] == pytest.approx(single, rel=1e-6, abs=1e-9)
    assert results[0]["cached"] == pytest.approx(single, rel=1e-6, abs=1e-9)


def test_every_process_receives_a_failure(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert "75 samples were requested, but only 60" in str(result["lost"])
        assert result["refused"] == "only the first process knows"


def test_processes_share_batches_and_samples(results: list[dict[str, Any]]) -> None:
    assert results[0]["shares"] == [[[10, 11], [14]], [0, 2, 4]]
    assert results[1]["shares"] == [[[12, 13]], [1, 3]]


if __name__ == "__main__":
    work(int(os.environ["RANK"]), Path(sys.argv[1]))

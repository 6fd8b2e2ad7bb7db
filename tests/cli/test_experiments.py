"""Every experiment of Blackout Diffusion trains two steps at a reduced size."""

import pytest
import torch

from blackout.component import component
from blackout.config.choices import list_choices
from blackout.data import CountData

EXPERIMENTS = [name for name in list_choices("experiment") if name.startswith("blackout/")]
# not like another one, nor large
QUICK = ("blackout/table1", "blackout/table2_binarized_mnist")
SMALL = [
    "network.body.channels=8",
    "network.body.multipliers=[1,1]",
    "network.body.blocks_per_level=1",
    "network.body.attention_resolutions=[]",
    "batch_size=4",
    "trainer.max_steps=2",
    "trainer.val_check_interval=2",
    "trainer.limit_val_batches=1",
    "trainer.accelerator=cpu",
    "trainer.log_every_n_steps=1",
    "sampler.num_steps=3",
    "callbacks.progress=null",
    "callbacks.samples.num_samples=2",
    "callbacks.samples.every_n_steps=2",
    "callbacks.samples.num_steps=3",
]
SHAPES = {
    "cifar10": (3, 32, 32, 255),
    "celeba64": (3, 64, 64, 255),
    "binarized_mnist": (1, 32, 32, 1),
    "mnist": (1, 28, 28, 255),
    "fashion_mnist": (1, 28, 28, 255),
}


def stand_in(name):
    *shape, max_count = SHAPES[name]

    def load(
        data_dir: str = "data",
        size: int = 32,
        download: bool = False,
        cache_dir: str | None = None,
        validation: float | None = 4,
    ):
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, max_count + 1, (24, *shape), generator=generator).to(torch.uint8)
        labels = torch.arange(24) % 10
        return CountData(name, images[:16], images[16:], max_count, labels[:16], labels[16:])

    load.__module__ = "blackout.data"
    ask = "dataset=celeba64" if name == "celeba64" else None
    return component("dataset", partial_for=("source",), command_line=ask)(load)


@pytest.mark.parametrize(
    "experiment",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.deep]) for name in EXPERIMENTS],
)
def test_every_experiment_trains_two_steps(run, tmp_path, monkeypatch, experiment):
    for name in SHAPES:
        monkeypatch.setattr(f"blackout.data.{name}", stand_in(name))
    outcome = run("train", f"experiment={experiment}", *SMALL, f"runs_dir={tmp_path}", "run_id=a")
    assert outcome.code == 0, outcome.err
    (weights,) = tmp_path.glob("*/a/model/model.safetensors")
    assert weights.parents[2].name == experiment.replace("/", "_")

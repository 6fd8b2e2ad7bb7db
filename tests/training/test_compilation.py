"""Compiled networks are one graph: no breaks, and no compilation for another time or a last batch.

Counted with a backend that runs the traced operations as they are. `fullgraph` makes a break of the
graph an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from blackout.cli.from_data import make_model
from blackout.config.compose import compose
from blackout.config.instantiate import instantiate
from blackout.config.settings import resolve_settings
from blackout.diffusion import BlackoutDiffusion
from blackout.training.data_module import TrainLoader
from blackout.training.model import Model

SMALL_NCSNPP = (
    "recipe=blackout/cifar10",
    "network.body.channels=8",
    "network.body.multipliers=[1,2]",
    "network.body.blocks_per_level=1",
    "network.body.attention_resolutions=[4]",
)
NARROW = ("network.width=8", "network.depth=1", "network.heads=2")
MODELS = {
    "ncsnpp": SMALL_NCSNPP,
    "unet": ("network.body.channels=8", "network.body.dropout=0.1"),
    "mlp": ("network=mlp", "network.body.width=8", "network.body.depth=1"),
    "classes": ("conditional=true", "network.body.channels=8"),
    "levels": ("process=uniform", "network.body.channels=8"),
    "shuffle": ("family=shuffle", "dataset=jigsaw_digits", *NARROW),
    "codes": ("family=codes", "dataset=cycles", *NARROW),
    "flow": ("family=flow", "target.size=4", "network.channels=4"),
}
BATCH_SIZE = 6
SAMPLING_STEPS = 3


class CountingBackend:
    """Backend of torch.compile that counts the graphs that it is given."""

    def __init__(self) -> None:
        self.num_graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Return the graph's operations as they are."""
        self.num_graphs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def _forget_graphs() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def make(name: str) -> tuple[Model, list[dict[str, Any]]]:
    """Return a small model and two batches of its training data."""
    config = resolve_settings(compose("train", [*MODELS[name], "seed=1"]))
    family = instantiate(config["family"], "family")
    source = family.source(config)
    model = make_model(family, config, source)
    model.source = lambda: source
    loader = TrainLoader(source, BATCH_SIZE)
    return model, [loader.batch(number) for number in range(2)]


def compile_network(network: nn.Module) -> CountingBackend:
    """Compile a network so that breaks of its graph are errors."""
    backend = CountingBackend()
    network.compile(backend=backend, fullgraph=True)
    return backend


@pytest.mark.parametrize("name", MODELS)
def test_a_network_in_training_is_one_graph(name: str) -> None:
    model, batches = make(name)
    backend = compile_network(model.network)
    for batch in batches:
        model.training_step(batch).backward()
    assert backend.num_graphs == 1


@pytest.mark.parametrize("name", MODELS)
def test_a_sampled_network_is_one_graph(name: str) -> None:
    """Times differ from step to step, and the last batch is smaller."""
    model, _ = make(name)
    backend = compile_network(model.averaged)
    indices = torch.arange(BATCH_SIZE + 2)
    if isinstance(model, BlackoutDiffusion):
        sampler = replace(model.sampler, num_steps=SAMPLING_STEPS)
        batches = model.batches(indices, batch_size=BATCH_SIZE, sampler=sampler)
    else:
        batches = model.batches(indices, batch_size=BATCH_SIZE)
    assert sum(len(numbers) for numbers, _ in batches) == len(indices)
    assert backend.num_graphs == 1

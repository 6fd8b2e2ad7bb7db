"""Compiled networks are one graph: no breaks, and no compilation for another time or a last batch.

Counted with a backend that runs the traced operations as they are. `fullgraph` makes a break of the
graph an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
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
MAX_GRAPHS_OF_ANY_SIZE = 3


class CountingBackend:
    """Backend of torch.compile that counts the graphs it receives, with and without gradients."""

    def __init__(self) -> None:
        self.graphs = Counter[bool]()

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Return the graph's operations as they are."""
        self.graphs[torch.is_grad_enabled()] += 1
        return graph.forward


@pytest.fixture(autouse=True)
def _forget_graphs() -> Iterator[None]:
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


def compile_parts(model: Model, network: nn.Module) -> list[CountingBackend]:
    """Compile what `compile=true` compiles so that breaks of a graph are errors."""
    backends = []
    for module in model.compiled_modules(network):
        backends.append(CountingBackend())
        module.compile(backend=backends[-1], fullgraph=True)
    return backends


@pytest.mark.parametrize("name", MODELS)
def test_a_network_in_training_is_one_graph(name: str) -> None:
    """Flows also evaluate it without gradients, which takes another graph."""
    model, batches = make(name)
    backends = compile_parts(model, model.network)
    for batch in batches:
        model.training_step(batch).backward()
    for backend in backends:
        assert set(backend.graphs.values()) == {1}


@pytest.mark.parametrize("name", MODELS)
def test_a_sampled_network_is_not_compiled_for_other_times_or_a_last_batch(name: str) -> None:
    """Diffusion models pad the last batch, so that one graph is enough.

    Others have at most three: of the first number of rows, of a single row, and of any number.
    """
    model, _ = make(name)
    is_padded = isinstance(model, BlackoutDiffusion)
    if isinstance(model, BlackoutDiffusion):
        model.sampler = replace(model.sampler, num_steps=SAMPLING_STEPS)
    backends = compile_parts(model, model.averaged)
    for batch_size in (BATCH_SIZE,) if is_padded else (BATCH_SIZE, BATCH_SIZE + 1, BATCH_SIZE + 2):
        for _ in model.batches(torch.arange(2 * BATCH_SIZE + 3), batch_size=batch_size):
            pass
    for backend in backends:
        assert 1 <= backend.graphs.total() <= (1 if is_padded else MAX_GRAPHS_OF_ANY_SIZE)

"""Locally equivariant networks: sites depend on all others and not on themselves; leaks are
detected."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from benchmarks.flow_tables import LEAttention
from blackout.networks import LEMLP, LEConvolution, LESite, LETransformer, LocallyEquivariant

SITES = 9
LATTICE = [3, 3]
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "lemlp": lambda levels: LEMLP(SITES, levels, channels=8),
    "leattn": lambda levels: LEAttention(SITES, levels, channels=8, heads=2),
    "leconv": lambda levels: LEConvolution(levels, LATTICE, channels=6, kernels=[3, 3]),
    "letf": lambda levels: LETransformer(SITES, levels, channels=8, layers=2, heads=2),
    "lesite": lambda levels: LESite(SITES, levels, channels=8, layers=2),
    "lesite, shared weights": lambda levels: LESite(
        SITES, levels, channels=8, layers=2, lattice=LATTICE
    ),
    "lesite, messages": lambda levels: LESite(
        SITES, levels, channels=8, layers=1, lattice=LATTICE, messages=4
    ),
    "lesite, parameters": lambda levels: FixedParameters(
        LESite(SITES, levels, 8, 2, lattice=LATTICE, parameters=2)
    ),
    "lesite, heat bath": lambda levels: LESite(SITES, levels, channels=8, layers=2, heat_bath=True),
}


class FixedParameters(nn.Module):
    """Network that is conditioned on fixed parameters of the target."""

    def __init__(self, network: LocallyEquivariant) -> None:
        super().__init__()
        self.network = network
        self.parameters_of_target = torch.tensor([[0.3, -0.8]], dtype=torch.float64)

    def forward(self, x: Tensor, t: Tensor, ratios: Tensor) -> Tensor:
        scores: Tensor = self.network(x, t, ratios, self.parameters_of_target)
        return scores


def randomise(network: nn.Module) -> nn.Module:
    """Convert to float64 and set every weight to a value of order 1."""
    generator = torch.Generator().manual_seed(3)
    network.double()
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(0.7 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return network


def log_density(x: Tensor, levels: int) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    pair = (
        torch.randn(SITES, SITES, levels, levels, generator=generator, dtype=torch.float64) / SITES
    )
    sites = torch.arange(SITES)
    return pair[sites[:, None], sites, x[:, :, None], x[:, None, :]].sum((1, 2))


def swapped(x: Tensor, site: int, state: Tensor) -> Tensor:
    changed = x.clone()
    changed[:, site] = state
    return changed


def ratios(x: Tensor, levels: int) -> Tensor:
    current_log_density = log_density(x, levels)
    sites = [
        torch.stack(
            [
                log_density(swapped(x, i, torch.tensor(tau)), levels) - current_log_density
                for tau in range(levels)
            ],
            -1,
        )
        for i in range(SITES)
    ]
    return torch.stack(sites, 1)


def evaluate(network: nn.Module, x: Tensor, t: Tensor, levels: int) -> Tensor:
    scores: Tensor = network(x, t, ratios(x, levels)).detach()
    return scores


def leak(network: nn.Module, levels: int) -> tuple[float, float]:
    """Return max |G(y, i | x) + G(x_i, i | y)|, and max |G|."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(levels, (6, SITES), generator=generator)
    t = torch.rand(6, generator=generator, dtype=torch.float64)
    scores = evaluate(network, x, t, levels)
    worst = 0.0
    for site in range(SITES):
        state = (x[:, site] + 1) % levels
        back = evaluate(network, swapped(x, site, state), t, levels)
        rows = torch.arange(6)
        worst = max(
            worst, float((scores[rows, site, state] + back[rows, site, x[:, site]]).abs().max())
        )
    return worst, float(scores.abs().max())


@pytest.mark.parametrize("levels", [2, 3, 5])
@pytest.mark.parametrize("name", NETWORKS)
def test_scores_are_locally_equivariant(name: str, levels: int) -> None:
    worst, size = leak(randomise(NETWORKS[name](levels)), levels)
    assert size > 0.05 and worst <= 1e-12 * max(1.0, size)


@pytest.mark.parametrize("name", NETWORKS)
def test_scores_depend_on_every_other_site_and_on_time(name: str) -> None:
    network = randomise(NETWORKS[name](3))
    x = torch.randint(3, (4, SITES), generator=torch.Generator().manual_seed(1))
    t = torch.full((4,), 0.3, dtype=torch.float64)
    # with zero ratios, sites must be read by the network itself
    zero = torch.zeros(4, SITES, 3, dtype=torch.float64)

    def score(states: Tensor, times: Tensor = t) -> Tensor:
        scores: Tensor = network(states, times, zero).detach()
        return scores - scores.mean(-1, keepdim=True)  # does not depend on the state of the site

    if name == "lesite, heat bath":
        pytest.skip("the heat-bath term vanishes for a flat target: the network equals lesite")
    scores = score(x)
    for site in range(SITES):
        changed_scores = score(swapped(x, site, (x[:, site] + 1) % 3))
        changed = (changed_scores - scores).abs().amax((0, 2)) > 1e-9
        assert changed.tolist() == [index != site for index in range(SITES)]
    assert bool(((score(x, t + 0.4) - scores).abs().amax((0, 2)) > 1e-9).all())


def test_a_mask_shifted_by_one_leaks() -> None:
    network = randomise(NETWORKS["letf"](2))
    shifted = torch.cat(
        [torch.ones(SITES, SITES).tril(1), torch.ones(SITES, SITES).triu()], 1
    ).bool()
    network.body.mask = shifted  # type: ignore[union-attr]
    assert leak(network, 2)[0] > 1e-3


def test_a_window_wider_than_the_lattice_is_refused() -> None:
    for kernels in ([2], [5], []):
        with pytest.raises(ValueError, match="kernels must"):
            LEConvolution(2, LATTICE, kernels=kernels)
    with pytest.raises(ValueError, match="lattice"):
        LEConvolution(2)

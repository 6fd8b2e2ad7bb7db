"""The claims about permutations hold, and a wrong distribution is detected."""

import math

import pytest
import torch

from blackout.permutations import all_permutations
from blackout.permutations.shuffles import Riffle
from tests.verification import permutation_claims as permutations
from tests.verification.permutation_claims import chain_distributions, point, transitions


def test_every_claim_holds():
    checked = list(permutations.claims())
    assert len(checked) > 30
    assert [(claim.name, claim.error) for claim in checked if not claim.holds] == []


def test_a_wrong_shuffle_is_detected(monkeypatch):
    class OneRiffleTooMany(Riffle):
        def log_prob(self, sigma, times=1):
            return super().log_prob(sigma, times + 1)

    monkeypatch.setitem(
        permutations._SHUFFLES, "riffle", (OneRiffleTooMany(), permutations._SHUFFLES["riffle"][1])
    )
    # its probabilities and samples
    assert sum(not claim.holds for claim in permutations.claims()) == 2


def exact_reverse_bound(steps, n):
    """Return the lower bound of log p(identity), in nats, for the exact reverse distributions.

    -log n! + E[sum over steps of log p(x_{i-1} | x_i) - log q(x_i | x_{i-1})], where all data are
    the identity. It equals minus the divergence of the final distribution from uniform.

    Args:
        steps: distributions of the increments, float64 [n!] each.
        n: number of items.
    """
    distribution = point(n)
    total = -math.lgamma(n + 1)
    for step in steps:
        forward = transitions(step, n)
        joint = distribution[:, None] * forward
        after = joint.sum(0)
        reverse = joint / after.clamp(min=1e-300)
        possible = joint > 0
        total += float((joint * (reverse.log() - forward.log()))[possible].sum())
        distribution = after
    return total


@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize("schedule", [[1, 3], [3], [1, 2, 3]])
def test_the_exact_bound_is_minus_the_divergence_of_the_final_distribution(n, schedule):
    steps = [
        Riffle().log_prob(all_permutations(n), b - a).exp()
        for a, b in zip([0, *schedule], schedule, strict=False)
    ]
    last = Riffle().log_prob(all_permutations(n), 3).exp()
    divergence = float((last * (last * len(last)).log())[last > 0].sum())
    assert exact_reverse_bound(steps, n) == pytest.approx(-divergence)
    if n == 4:
        assert divergence == pytest.approx(0.0521823, abs=5e-8)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_chains_reach_distributions_with_zeros(n):
    size = len(all_permutations(n))
    for seed in range(4):
        target = torch.rand(
            size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        target[torch.rand(size, generator=torch.Generator().manual_seed(seed + 9)) < 0.5] = 0
        target[-1] += 0.1
        target /= target.sum()
        assert torch.allclose(chain_distributions(target, n)[-1], target, atol=1e-12)

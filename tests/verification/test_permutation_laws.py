"""The claims about permutations hold, and a wrong law is found."""

import math

import pytest
import torch

from blackout.permutations import all_permutations
from blackout.permutations.shuffles import Riffle
from tests.verification import permutation_claims as permutations
from tests.verification.permutation_claims import laws_of_chain, point, transitions


def test_every_claim_holds():
    found = list(permutations.claims())
    assert len(found) > 30 and [(one.name, one.error) for one in found if not one.holds] == []


def test_a_wrong_shuffle_is_found(monkeypatch):
    class Wrong(Riffle):
        def log_prob(self, sigma, times=1):
            return super().log_prob(sigma, times + 1)

    monkeypatch.setitem(permutations._SHUFFLES, "riffle", (Wrong(), permutations._SHUFFLES["riffle"][1]))
    assert sum(not one.holds for one in permutations.claims()) == 2  # its law, and its draws


def bound_of_exact_reverse(steps, n):
    """The lower bound of log p(identity), in nats, when every reverse law is the exact one.

    -log n! + E[sum over steps of log p(x_{i-1} | x_i) - log q(x_i | x_{i-1})], all data being the identity: it equals
    minus the divergence of the last law from uniform.

    Args:
        steps: the laws of the increments.
    """
    law, total = point(n), -math.lgamma(n + 1)
    for step in steps:
        forward = transitions(step, n)
        joint = law[:, None] * forward
        after = joint.sum(0)
        reverse = joint / after.clamp(min=1e-300)
        happens = joint > 0
        total += float((joint * (reverse.log() - forward.log()))[happens].sum())
        law = after
    return total


@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize("schedule", [[1, 3], [3], [1, 2, 3]])
def test_the_exact_bound_is_minus_the_divergence_of_the_last_law(n, schedule):
    steps = [
        Riffle().log_prob(all_permutations(n), b - a).exp() for a, b in zip([0, *schedule], schedule, strict=False)
    ]
    last = Riffle().log_prob(all_permutations(n), 3).exp()
    divergence = float((last * (last * len(last)).log())[last > 0].sum())
    assert bound_of_exact_reverse(steps, n) == pytest.approx(-divergence)
    if n == 4:
        assert divergence == pytest.approx(0.0521823, abs=5e-8)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_chains_reach_laws_with_zeros(n):
    size = len(all_permutations(n))
    for seed in range(4):
        target = torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        target[torch.rand(size, generator=torch.Generator().manual_seed(seed + 9)) < 0.5] = 0
        target[-1] += 0.1
        target /= target.sum()
        assert torch.allclose(laws_of_chain(target, n)[-1], target, atol=1e-12)

"""Settings out of range, settings without effect, and functions without a tensor are refused."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes import PureDeath, Uniform
from blackout.errors import UserError
from blackout.posterior import (
    SMC,
    Classifier,
    Decoded,
    Flips,
    Identity,
    Inpaint,
    InverseProblem,
    NoiseDenoise,
    Poisson,
    Pool,
    Prior,
    Reward,
    SplitGibbs,
    SteeredParticles,
    conjugate_state,
)
from blackout.posterior.measurements import read_measurements
from blackout.posterior.truth_comparison import rank_truths


def denoise_poisson(xt, t):
    """Return the exact prediction for independent Poisson counts of mean 5."""
    missing = (1 - torch.exp(-t)) * torch.full(xt.shape, 5.0, dtype=torch.float64)
    return CountPrediction(missing, missing.log())


PRIOR = Prior(denoise_poisson, PureDeath(31), (3,))
PROBLEM = InverseProblem(Pool(3), Poisson(), torch.tensor([9.0]))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (SMC(power=-1.0), "power must be positive, not -1"),
        (SMC(power=float("nan")), "power must be positive"),
        (SMC(threshold=1.5), "threshold must be from 0 to 1, not 1.5"),
        (SMC(polish=-2), "polish must be at least 0, not -2"),
        (SteeredParticles(interval=0), "interval must be a whole number of at least 1"),
        (NoiseDenoise(candidates=0), "candidates must be at least 2, not 0"),
    ],
)
def test_settings_out_of_range_are_refused(method, message):
    with pytest.raises(ValueError, match=message):
        method.check(PRIOR, PROBLEM)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (SplitGibbs((1.0, 0.5), first_level=2.0), "first_level=2 contradicts posterior.levels"),
        (SplitGibbs((1.0, 0.5), last_level=0.1), "last_level=0.1 contradicts posterior.levels"),
        (SplitGibbs(likelihood_step="metropolis", passes=3), "posterior.passes has no effect"),
        (SplitGibbs(likelihood_step="heat_bath", proposals=3), "posterior.proposals has no effect"),
    ],
)
def test_settings_that_nothing_reads_are_refused(method, message):
    with pytest.raises(UserError, match=message):
        method.resolve(PRIOR, PROBLEM)


@pytest.mark.parametrize("sweeps", [1, 3, 60])
def test_a_resolved_method_resolves_to_itself(sweeps):
    method = SplitGibbs(sweeps=sweeps, first_level=2.0, last_level=0.3).resolve(PRIOR, PROBLEM)
    assert method.resolve(PRIOR, PROBLEM) == method


def test_flips_without_flips_have_no_direct_sampler():
    """A penalty of 40 nats means the level 0, from which no reverse run starts."""
    y = torch.tensor([1.0, 2.0])
    assert conjugate_state(Uniform(3), InverseProblem(Identity(), Flips(40.0), y), (2,)) is None
    state = conjugate_state(Uniform(3), InverseProblem(Identity(), Flips(5.0), y), (2,))
    assert state is not None and state.level > 0


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (Reward(lambda x: 3.0), r"reward must return a tensor r \[n\].*not float"),
        (Classifier(lambda x: [1.0, 2.0]), "classifier must return a tensor of logits.*not list"),
        (Decoded(lambda x: 3.0, (3,), Identity()), "but the decoder returns float"),
    ],
)
def test_functions_without_a_tensor_are_refused(operator, message):
    with pytest.raises(ValueError, match=message):
        operator(torch.ones(2, 3))


@pytest.mark.parametrize("x0", [[1.5, 2.0], [np.nan, 2.0], [32.0, 2.0], [-1.0, 2.0]])
def test_truths_of_a_file_must_be_counts(tmp_path, x0):
    """Fractions are not rounded down."""
    path = tmp_path / "y.npz"
    np.savez(path, y=np.ones((1, 2)), x0=np.array([x0]))
    model = SimpleNamespace(shape=(2,), process=PureDeath(31))
    with pytest.raises(UserError, match="x0 must be whole numbers from 0 to 31"):
        read_measurements(model, None, Identity(), Poisson(), str(path))


def test_a_mask_that_hides_nothing_ranks_all_elements():
    problem = InverseProblem(
        Inpaint(torch.ones(2, dtype=torch.bool)), Poisson(), torch.ones(1, 2, dtype=torch.float64)
    )
    samples = SimpleNamespace(
        problem=problem,
        shape=(2,),
        y=problem.measurement,
        measurement_ids=torch.arange(1),
        rows=[torch.arange(3)],
        x=torch.tensor([[0, 1], [1, 1], [2, 0]]),
        log_likelihood=torch.zeros(3, dtype=torch.float64),
        seed=0,
    )
    ranks, element_ranks = rank_truths(samples, torch.tensor([[1, 1]]))
    assert element_ranks.shape == (1, 2)
    assert "hidden total" not in ranks

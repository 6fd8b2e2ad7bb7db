"""Arbitrary generators: reducible, absorbing, stiff; invalid ones are refused."""

import numpy as np
import pytest
import scipy.sparse as sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blackout.diffusion.kernels.tau_leap import leap
from blackout.diffusion.processes import DiscreteTimeChain, from_generator
from blackout.errors import UserError
from blackout.random import SampleStreams
from blackout.verification import toys as chains
from tests.verification import brute_force


@st.composite
def processes(draw):
    """Generate processes from random generators."""
    size = draw(st.integers(3, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    q = chains.random_generator(
        rng, size, draw(st.sampled_from([0.15, 0.4, 1.0])), draw(st.sampled_from([0.3, 1.5]))
    )
    if draw(st.booleans()):  # one absorbing state
        q[draw(st.integers(0, size - 1))] = 0.0
    return from_generator(draw(st.integers(1, size - 1)), q)


@pytest.mark.deep
@settings(max_examples=40, deadline=None, derandomize=True)
@given(processes(), st.floats(0.0, 1.0), st.floats(0.05, 1.5))
def test_random_processes_match_expm_and_bayes_rule(process, s, step):
    t = s + step
    q = process.generator().numpy()
    levels = process.max_count + 1
    first, transition, second = (brute_force.precise_expm(q * tau) for tau in (s, t, t - s))
    x0, xt = torch.meshgrid(torch.arange(levels), torch.arange(process.num_states), indexing="ij")
    assert (
        np.abs(process.pmf(torch.arange(levels)[None], t)[0].numpy() - transition[:levels]).max()
        < 1e-10
    )
    possible = transition[:levels] > 1e-12
    bridge = process.bridge_pmf(x0, xt, s, t).numpy()
    assert np.abs(bridge - brute_force.bridge(first[:levels], second))[possible].max() < 1e-10
    rates = process.reverse_rates(x0, xt, t).movedim(1, -1).numpy()
    assert np.isfinite(rates).all() and (rates >= 0).all()
    expected = brute_force.reverse_rates(q, transition)[:levels]
    assert np.abs(rates - expected)[possible].max() < 1e-10 * max(
        1.0, float(expected[possible].max())
    )


@pytest.mark.parametrize("ordered", [False, True])
def test_jumps_of_one_step_add_up_only_for_ordered_levels(ordered):
    process = from_generator(
        3, np.diag([2.0, 2.0, 2.0], 1) - np.diag([2.0, 2.0, 2.0, 0.0]), ordered
    )
    xt = torch.zeros(200, dtype=torch.uint8)
    moves = [(torch.full((200, 1), 2.0).double(), torch.ones(200, 1, dtype=torch.int64))]
    states = leap(process, xt, moves, 1.0, SampleStreams(0, torch.arange(200)).step(0))
    assert int(states.max()) == (3 if ordered else 1)


@st.composite
def step_matrices(draw):
    """Generate [T, S, S] of random chains, also reducible and absorbing ones."""
    size = draw(st.integers(3, 9))
    steps = draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    matrices = rng.random((steps, size, size)) * (
        rng.random((steps, size, size)) < draw(st.sampled_from([0.3, 1.0]))
    )
    matrices += np.eye(size) * 0.05
    if draw(st.booleans()):
        matrices[:, draw(st.integers(0, size - 1))] = np.eye(size)[0]
    return matrices / matrices.sum(-1, keepdims=True)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(step_matrices(), st.data())
def test_chains_are_products_of_their_steps_and_follow_bayes_rule(steps, data):
    process = DiscreteTimeChain(data.draw(st.integers(1, steps.shape[1] - 1)), len(steps), steps)
    t = data.draw(st.integers(1, len(steps)))
    s = data.draw(st.integers(0, t - 1))
    levels = process.max_count + 1
    first, second = (chains.multiply_steps(steps[a:b]) for a, b in ((0, s), (s, t)))
    transition = first @ second
    x0, xt = torch.meshgrid(torch.arange(levels), torch.arange(process.num_states), indexing="ij")
    assert (
        np.abs(process.pmf(torch.arange(levels)[None], t)[0].numpy() - transition[:levels]).max()
        < 1e-14
    )
    possible = transition[:levels] > 1e-14
    bridge = process.bridge_pmf(x0, xt, s, t).numpy()
    assert np.abs(bridge - brute_force.bridge(first[:levels], second))[possible].max() < 1e-10


@settings(max_examples=20, deadline=None, derandomize=True)
@given(processes(), st.floats(0.05, 2.0))
def test_samples_are_reachable_and_do_not_depend_on_their_batch(process, t):
    n = 200
    x0 = torch.randint(
        0, process.max_count + 1, (n, 3), generator=torch.Generator().manual_seed(0)
    ).to(torch.uint8)
    streams = SampleStreams(3, torch.arange(n))
    xt = process.sample(x0, t, streams.step(1))
    xs = process.bridge(x0, xt, t / 3, t, streams.step(2))
    assert process.pmf(x0, t).gather(-1, xt.long()[..., None]).min() > 0
    assert process.bridge_pmf(x0, xt, t / 3, t).gather(-1, xs.long()[..., None]).min() > 0
    single = process.sample(x0[[17]], t, SampleStreams(3, torch.tensor([17])).step(1))
    assert torch.equal(single, xt[[17]])


def test_sparse_generators_equal_dense_ones():
    q = chains.birth_death_generator(2.0, 30)
    generators = [from_generator(20, matrix).generator() for matrix in (q, sparse.csr_array(q))]
    assert torch.equal(*generators)


def valid_generator():
    """Return a valid generator of five states."""
    return chains.random_generator(np.random.default_rng(0), 5)


def changed_generator(i, j, value):
    """Return a generator with one changed entry."""
    q = valid_generator()
    q[i, j] = value
    return q


@pytest.mark.parametrize(
    "matrix, words",
    [
        (changed_generator(1, 2, -3.0), r"\[1, 2\] is -3"),
        (changed_generator(2, 2, 0.0), "row 2 sums to"),
        (valid_generator()[:4], r"\(4, 5\)"),
        (valid_generator().T[0], r"\(5,\)"),
        (changed_generator(0, 0, np.nan), "finite"),
        (valid_generator()[:3, :3] * 0, "states, not 3"),
        (valid_generator().astype(complex), "complex"),
        (np.zeros((1, 1)), r"\(1, 1\)"),
        (None, "matrix must be given"),
    ],
)
def test_invalid_generators_are_refused(matrix, words):
    with pytest.raises(ValueError, match=words):
        from_generator(4, matrix)


def test_invalid_matrix_files_are_refused(tmp_path):
    (tmp_path / "text.npy").write_text("0 1")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    np.savez(tmp_path / "arrays.npz", a=valid_generator())
    for name in ("none.npy", "text.npy", "objects.npy", "arrays.npz"):
        with pytest.raises(UserError, match=name):
            from_generator(4, str(tmp_path / name))


def test_an_unreachable_prior_is_refused():
    reducible = np.kron(np.eye(2), np.full((3, 3), 1 / 3)) - np.eye(6)
    with pytest.raises(ValueError, match="never reach the prior"):
        from_generator(5, reducible).check_final_time(15.0)
    with pytest.raises(ValueError, match="larger rates"):
        from_generator(4, 1e-3 * valid_generator()).check_final_time(15.0)
    from_generator(4, valid_generator()).check_final_time(15.0)
    from_generator(2, reducible).check_final_time(15.0)  # all data are in one class

"""What an import costs."""

import subprocess
import sys

import pytest


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_the_model_comes_when_it_is_asked_for_and_scipy_with_the_first_sparse_matrix(tmp_path):
    code = f"""
import sys, numpy as np
assert "blackout.diffusion.model" not in sys.modules
from blackout import BlackoutDiffusion as first
from blackout.diffusion import BlackoutDiffusion as second
assert first is second and first.__module__ == "blackout.diffusion.model"
from blackout.diffusion import DiscreteTimeChain, from_generator
np.save(r"{tmp_path}/q.npy", np.array([[-1.0, 1.0], [1.0, -1.0]]))
DiscreteTimeChain(1, 3, np.full((2, 2), 0.5))
print("scipy" in sys.modules)
import scipy.sparse as sparse
sparse.save_npz(r"{tmp_path}/q.npz", sparse.coo_array(np.load(r"{tmp_path}/q.npy")))
print(*[from_generator(1, rf"{tmp_path}/q.{{end}}").num_states for end in ("npy", "npz")])
"""
    assert run(code) == ["False", "2", "2"]


def test_a_name_that_is_not_there_is_an_attribute_error():
    import blackout.diffusion

    with pytest.raises(AttributeError, match="Nose"):
        _ = blackout.diffusion.Nose

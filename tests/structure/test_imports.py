"""What a module loads, and when, in a process that has torch and nothing else of weight."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"pytorch_lightning", "torchmetrics", "torchvision", "torch_fidelity", "matplotlib", "scipy", "sklearn"}
MODULES = (
    "blackout.data", "blackout.training.export", "blackout.diffusion",
    "blackout.permutations.coded",
)  # fmt: skip
SPARSE = """
assert "blackout.diffusion.model" not in sys.modules
from blackout import BlackoutDiffusion as first
from blackout.diffusion import BlackoutDiffusion as second
assert first is second and first.__module__ == "blackout.diffusion.model"
from blackout.diffusion import DiscreteTimeChain, from_generator
numpy.save("q.npy", numpy.array([[-1.0, 1.0], [1.0, -1.0]]))
DiscreteTimeChain(1, 3, numpy.full((2, 2), 0.5))
print("scipy" in sys.modules)
import scipy.sparse as sparse
sparse.save_npz("q.npz", sparse.coo_array(numpy.load("q.npy")))
print(*[from_generator(1, f"q.{end}").num_states for end in ("npy", "npz")], flush=True)
"""
WITHOUT_NUMBA = """
import warnings
warnings.simplefilter("error")
os.environ["NUMBA_DISABLE_JIT"] = "1"
from blackout.random import compiled_draws
print("numba" in sys.modules, compiled_draws.load(torch.device("cpu")), flush=True)
"""
NO_SIDE_EFFECTS = """
import pkgutil, signal, warnings
import hydra, matplotlib.pyplot, pytorch_lightning, scipy, sklearn, torchmetrics, torchvision, wandb
def state():
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    backends = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision(), torch.get_default_dtype()
    streams = sys.stdout, sys.stderr, sys.excepthook, warnings.showwarning, warnings.formatwarning
    threads = torch.get_num_threads(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()
    words = sys.argv[:], dict(os.environ), warnings.filters[:]
    return handlers, backends, streams, threads, words, torch.get_rng_state().tolist()
before = state()
import blackout, train, sample
for module in pkgutil.walk_packages(blackout.__path__, "blackout."):
    if not module.name.endswith("triton_draws"):
        importlib.import_module(module.name)
print(*[number for number, (old, new) in enumerate(zip(before, state())) if old != new], "unchanged", flush=True)
"""
CODE = """
import importlib, os, sys, torch, numpy
for part in sys.argv[1:]:
    if not os.fork():
        if part.startswith("blackout."):
            importlib.import_module(part)
            print(part, *{name.split(".")[0] for name in sys.modules}, flush=True)
        else:
            exec(part)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What forks of one interpreter say: one for every module, and one for every piece of code."""
    folder, root = tmp_path_factory.mktemp("imports"), str(Path(__file__).parents[2])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n{CODE}", *MODULES]
    done = subprocess.run(
        [*command, SPARSE, NO_SIDE_EFFECTS, WITHOUT_NUMBA], cwd=folder, capture_output=True, text=True, check=True
    )
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


def test_nothing_heavy_is_loaded(said: list[str]) -> None:
    loaded = {line.split()[0]: set(line.split()[1:]) for line in said[: len(MODULES)]}
    assert loaded.keys() == set(MODULES)
    assert {module: HEAVY & names for module, names in loaded.items() if HEAVY & names} == {}
    assert "hydra" not in loaded["blackout.diffusion"]


def test_the_model_comes_when_it_is_asked_for_and_scipy_with_the_first_sparse_matrix(said: list[str]) -> None:
    assert said[len(MODULES) : -2] == ["False", "2 2"]


def test_importing_changes_nothing(said: list[str]) -> None:
    """No signal, argument, environment variable, warnings filter, stream or setting of torch."""
    assert said[-2] == "unchanged"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    import blackout.diffusion

    with pytest.raises(AttributeError, match="Nose"):
        _ = blackout.diffusion.Nose


def test_numba_is_loaded_by_the_first_draw_and_can_be_switched_off(said: list[str]) -> None:
    assert said[-1] == "False None"

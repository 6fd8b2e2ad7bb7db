"""What modules import, and when, in a process that has loaded only torch and numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "pytorch_lightning",
    "torchmetrics",
    "torchvision",
    "torch_fidelity",
    "matplotlib",
    "scipy",
    "sklearn",
}
MODULES = (
    "blackout.data",
    "blackout.training.pretrained",
    "blackout.diffusion",
    "blackout.permutations.coded",
)
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
    backends = (
        torch.backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision(),
        torch.get_default_dtype(),
    )
    streams = sys.stdout, sys.stderr, sys.excepthook, warnings.showwarning, warnings.formatwarning
    threads = (
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )
    words = sys.argv[:], dict(os.environ), warnings.filters[:]
    return handlers, backends, streams, threads, words, torch.get_rng_state().tolist()
before = state()
import blackout, train, sample
for module in pkgutil.walk_packages(blackout.__path__, "blackout."):
    if not module.name.endswith("triton_draws"):
        importlib.import_module(module.name)
changed = [number for number, (old, new) in enumerate(zip(before, state())) if old != new]
print(*changed, "unchanged", flush=True)
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
def fork_outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The output of forks of one interpreter: one for every module and every piece of code."""
    folder = tmp_path_factory.mktemp("imports")
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n{CODE}", *MODULES]
    process = subprocess.run(
        [*command, SPARSE, NO_SIDE_EFFECTS, WITHOUT_NUMBA],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not process.stderr, process.stderr
    return process.stdout.splitlines()


def test_modules_do_not_load_heavy_packages(fork_outputs: list[str]) -> None:
    loaded = {line.split()[0]: set(line.split()[1:]) for line in fork_outputs[: len(MODULES)]}
    assert loaded.keys() == set(MODULES)
    assert {module: HEAVY & names for module, names in loaded.items() if HEAVY & names} == {}
    assert "hydra" not in loaded["blackout.diffusion"]


def test_the_model_and_scipy_are_loaded_on_first_use(
    fork_outputs: list[str],
) -> None:
    assert fork_outputs[len(MODULES) : -2] == ["False", "2 2"]


def test_imports_have_no_side_effects(fork_outputs: list[str]) -> None:
    """Signals, arguments, environment, warnings, streams and torch settings are unchanged."""
    assert fork_outputs[-2] == "unchanged"


def test_an_unknown_name_raises_an_attribute_error() -> None:
    import blackout.diffusion

    with pytest.raises(AttributeError, match="Nose"):
        _ = blackout.diffusion.Nose


def test_numba_is_loaded_on_first_use_and_can_be_disabled(fork_outputs: list[str]) -> None:
    assert fork_outputs[-1] == "False None"

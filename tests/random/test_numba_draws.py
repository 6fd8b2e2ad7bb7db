"""Draws compiled by numba: the same counts as torch's, errors, and missing caches."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from blackout.random import (
    SampleStreams,
    StepStreams,
    binomial,
    compiled_draws,
    poisson,
    streams,
    words,
)
from tests.random.kernel_cases import differing_cases

CPU = torch.device("cpu")


@pytest.fixture
def numba_draws() -> ModuleType:
    from blackout.random import numba_draws  # only here: numba takes long to load

    return numba_draws


def step_streams(num_samples: int = 4) -> StepStreams:
    return SampleStreams(3, torch.arange(num_samples)).step(1)


def test_numba_and_torch_draw_equal_counts(numba_draws) -> None:
    assert differing_cases(numba_draws, num_samples=40, num_elements=500) == []


def test_numba_is_in_use_and_changes_no_count(numba_draws, monkeypatch) -> None:
    n = torch.tensor([0, 1, 40, 300, 5000, 2**31 - 1] * 20, dtype=torch.int64).expand(4, 120)
    uint8_n = n.clamp(max=255).to(torch.uint8)
    p = torch.tensor([0.0, 1e-9, 0.3, 0.5, 0.7, 1.0]).double()
    p = p.repeat_interleave(20).expand(4, 120)

    def draw_counts() -> list[Tensor]:
        source = step_streams()
        counts = []
        for size in (n, uint8_n):
            for probability in (p, p[0, 40], p[:, :1], p[:, 25:26]):
                counts.append(binomial(size, probability, source))
        counts.append(poisson(n * p, source))
        counts.append(poisson(n[0, :4] * p[0, :4].view(4), source))
        return counts

    assert compiled_draws.load(CPU) is numba_draws
    monkeypatch.setattr(compiled_draws, "MIN_ELEMENTS", 0)  # load numba at once
    compiled_counts = draw_counts()
    monkeypatch.setattr(compiled_draws, "load", lambda device: None)
    assert all(map(torch.equal, compiled_counts, draw_counts()))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_parameters_must_be_finite(numba_draws, value: float) -> None:
    keys = step_streams(1).next_draw().keys
    values = torch.tensor([[0.3, value]], dtype=torch.float64)
    with pytest.raises(ValueError, match="not finite"):
        numba_draws.poisson(keys, values)
    with pytest.raises(ValueError, match="not finite"):
        numba_draws.binomial(keys, torch.full_like(values, 5.0), values)


def test_there_must_be_one_key_per_sample(numba_draws) -> None:
    with pytest.raises(ValueError, match="4 samples cannot draw"):
        numba_draws.poisson(step_streams().next_draw().keys, torch.ones(5, 2, dtype=torch.float64))


def test_functions_compile_without_a_writable_cache(numba_draws, monkeypatch) -> None:
    from numba.core import caching

    def refuse(*_) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", refuse)
    assert numba_draws.cached_njit("f8(f8)")(lambda x: x + 1)(2.0) == 3.0
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    assert numba_draws.cached_njit("f8(f8)")(lambda x: x + 2)(2.0) == 4.0


def test_names_of_compiled_functions_are_unique(numba_draws) -> None:
    """Otherwise a cache that two processes fill together mixes up functions with one name."""
    functions = [value for value in vars(numba_draws).values() if hasattr(value, "py_func")]
    names = [function.py_func.__qualname__ for function in functions]
    assert len(names) > 7
    assert len(set(names)) == len(names)


def test_numba_makes_the_same_words(numba_draws, monkeypatch) -> None:
    first = torch.tensor([0, 5, 2**40])
    for seed in (0, 2**63 - 1):
        expected = streams.words(seed, first, 300)
        assert torch.equal(numba_draws.words(seed, first, 300), expected)
        assert torch.equal(expected[1, 5:], streams.words(seed, torch.tensor([10]), 295)[0])
    monkeypatch.setattr(words, "MIN_COMPILED_WORDS", 1)
    assert torch.equal(words.random_words(3, first, 100), streams.words(3, first, 100))

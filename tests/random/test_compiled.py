"""The draws that numba compiles: the same counts as the general path, and what happens where it cannot be used."""

import pytest
import torch

from blackout.random import SampleStreams, binomial, counts, poisson, words
from blackout.random.streams import words as plain_words
from tests.random.kernel_cases import differences

CPU = torch.device("cpu")


@pytest.fixture
def compiled():
    from blackout.random import numba_draws as compiled

    return compiled


def streams(samples=4):
    return SampleStreams(3, torch.arange(samples)).at(1)


def test_compiled_draws_are_the_general_ones(compiled):
    assert differences(compiled, samples=40, elements=500) == []


def test_they_are_the_ones_in_use(compiled, monkeypatch):
    n = torch.tensor([0, 1, 40, 300, 5000, 2**31 - 1] * 20, dtype=torch.int64).expand(4, 120)
    levels = n.clamp(max=255).to(torch.uint8)
    p = torch.tensor([0.0, 1e-9, 0.3, 0.5, 0.7, 1.0]).double().repeat_interleave(20).expand(4, 120)

    def drawn():
        one = streams()
        each = [binomial(size, share, one) for size in (n, levels) for share in (p, p[0, 40], p[:, :1], p[:, 25:26])]
        return [*each, poisson(n * p, one), poisson(n[0, :4] * p[0, :4].view(4), one)]

    assert counts._kernels(CPU) is compiled
    monkeypatch.setattr(counts, "_FEW", 0)  # as late in a process
    quick = drawn()
    monkeypatch.setattr(counts, "_kernels", lambda device: None)
    assert all(map(torch.equal, quick, drawn()))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(compiled, bad):
    keys, values = streams(1).next_draw().keys, torch.tensor([[0.3, bad]], dtype=torch.float64)
    with pytest.raises(ValueError, match="not finite"):
        compiled.poisson(keys, values)
    with pytest.raises(ValueError, match="not finite"):
        compiled.binomial(keys, torch.full_like(values, 5.0), values)


def test_other_samples_than_keys_are_refused(compiled):
    with pytest.raises(ValueError, match="4 samples cannot draw"):
        compiled.poisson(streams().next_draw().keys, torch.ones(5, 2, dtype=torch.float64))


def test_they_compile_where_nothing_can_be_kept(compiled, monkeypatch):
    from numba.core import caching

    def refuses(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", refuses)
    assert compiled.compiled("f8(f8)")(lambda x: x + 1)(2.0) == 3.0
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    assert compiled.compiled("f8(f8)")(lambda x: x + 2)(2.0) == 4.0


def test_every_function_has_a_name_of_its_own(compiled):
    """Or caches that two processes filled together mix up two that share one, and draws never end."""
    names = [function.py_func.__qualname__ for function in vars(compiled).values() if hasattr(function, "py_func")]
    assert len(set(names)) == len(names) > 7


def test_words_are_the_same_by_numba_and_without(compiled, monkeypatch):
    for seed in (0, 2**63 - 1):
        assert torch.equal(compiled.words(seed, 1000), plain_words(seed, 1000))
    monkeypatch.setattr(words, "MIN_COMPILED_WORDS", 1)
    assert torch.equal(words.random_words(3, 100), plain_words(3, 100))

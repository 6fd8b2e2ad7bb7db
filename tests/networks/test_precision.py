"""Mixed precision and memory formats, on a CPU and as far as fake tensors show it on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.torch_version import TorchVersion

from benchmarks.devices import CUDA, fake_cuda
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.time_grids import fisher_times
from blackout.networks import (
    CountNetwork,
    NCSNpp,
    PaperInputs,
    ResidualMLP,
    SequenceConvolution,
    UNet,
)
from blackout.networks.layers import best_memory_format, group_norm
from blackout.networks.ncsnpp import FIRDownsample, FIRFilter, FIRUpsample
from tests.devices import Watch
from tests.networks.reference_ncsnpp import ncsnpp
from tests.networks.test_ncsnpp import SMALL, randomise

BODIES = {
    "ncsnpp": lambda: NCSNpp((3, 16, 16), channels=16, **SMALL),
    "unet": lambda: UNet((3, 16, 16), channels=16, dense_blocks=1, attention_resolutions=(8,)),
    "mlp": lambda: ResidualMLP((12,), width=16, depth=2),
    "sequence": lambda: SequenceConvolution((12,), 5, width=16, depth=2),
}


def dtypes(name: str, training: bool) -> list[tuple[str, torch.dtype]]:
    """Return the dtype of every module's output."""
    body = BODIES[name]().train(training)
    outputs = []
    for path, module in body.named_modules():
        module.register_forward_hook(
            lambda m, i, out, path=path: (
                outputs.append((path, out.dtype)) if isinstance(out, Tensor) else None
            )
        )
    shape = (2, 3, 16, 16) if name in ("ncsnpp", "unet") else (2, 12)
    body(torch.zeros(shape), torch.ones(2))
    return outputs


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("training", [False, True])
def test_bfloat16_on_a_cpu_is_bfloat16_on_a_gpu(name: str, training: bool) -> None:
    """CUDA's autocast would make norms, and what follows them, float32."""
    with torch.set_grad_enabled(training):
        with torch.autocast("cpu", torch.bfloat16):
            on_cpu = dtypes(name, training)
        with fake_cuda(bfloat16=True):
            assert dtypes(name, training) == on_cpu
    if name != "mlp":  # its residual stream is float32
        assert any(dtype == torch.bfloat16 for path, dtype in on_cpu if "norm" in path)


def test_weights_are_cast_once_while_sampling() -> None:
    """Without it, autocast casts weights without gradients, like averaged ones, at every
    evaluation."""

    def casts(device: str) -> int:
        network = NCSNpp((3, 16, 16), channels=16, **SMALL).requires_grad_(False)
        x = torch.zeros(2, 3, 16, 16)
        t = torch.ones(2)
        parameters = {id(p) for p in network.parameters()}
        with Sampler(bfloat16=device == "cpu").evaluating(network), torch.no_grad():
            network(x, t)
            with Watch() as watch:
                network(x, t)
        assert not any(p.requires_grad for p in network.parameters())
        return sum(id(args[0]) in parameters for name, args, _ in watch.calls if name == "_to_copy")

    assert casts("cpu") == 0
    with fake_cuda(bfloat16=True):
        assert casts("cuda") == 0


@pytest.mark.parametrize("ratio", [0, 10, 100, 1000])
@pytest.mark.parametrize("size", [(2, 64, 8, 8), (3, 24, 5, 7), (3, 64, 1, 1), (2, 24, 3, 4, 5)])
def test_float32_group_norms_are_exact_in_any_memory_format(
    ratio: float, size: tuple[int, ...]
) -> None:
    norm = group_norm(size[1])
    x = ratio + torch.randn(size)
    expected = F.group_norm(x.double(), norm.num_groups, eps=norm.eps)
    weight = torch.randn(size)
    gradients = []
    last = torch.channels_last if len(size) == 4 else torch.channels_last_3d
    for memory_format in (torch.contiguous_format, last):
        inputs = x.clone(memory_format=memory_format).requires_grad_()
        y = norm(inputs)
        assert float((y.detach() - expected).abs().max()) < 5e-7 * max(10, ratio)
        (y * weight).sum().backward()
        gradients.append(inputs.grad)
    if ratio <= 100:
        torch.testing.assert_close(*gradients, atol=1e-5 * max(1, ratio / 10), rtol=1e-4)


@pytest.mark.parametrize(
    ("shape", "final_time"),
    [((3, 32, 32), 15.0), ((3, 64, 64), 15.0), ((1, 32, 32), 10.0)],
    ids=["cifar", "celeba", "mnist"],
)
def test_both_memory_formats_agree_with_an_independent_implementation(
    shape: tuple[int, ...], final_time: float
) -> None:
    """Narrower versions of the published networks, in the reference's order of weights."""
    levels: dict[str, Any] = {
        "multipliers": (1, 2, 2, 2),
        "blocks_per_level": 4,
        "attention_resolutions": (16,),
    }
    body = NCSNpp(shape, channels=16, **levels).eval()
    randomise(body)
    xt = torch.randint(
        0, 256, (2, *shape), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )
    step = torch.tensor([40, 700])
    t = fisher_times(1000, final_time)[1 + step]
    inputs = PaperInputs(255)
    with torch.no_grad():
        expected = ncsnpp(
            body.double().parameters(), inputs(xt, t).double(), step.double(), 16, *levels.values()
        )
        body.float()
        for channels_last in (False, True):
            raw = CountNetwork(body, inputs, channels_last, final_time)(xt, t)[:, 0]
            assert float((raw - expected).abs().max() / expected.std()) < 1e-5


class FakeCudaTensor(Tensor):
    """CPU tensor that reports a GPU as its device."""

    device = property(lambda self: CUDA)  # type: ignore[assignment]


@pytest.mark.parametrize("module", [FIRFilter(), FIRDownsample(), FIRUpsample()])
def test_resampling_on_a_gpu_is_the_same(
    module: FIRFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2, 5, 8, 12)
    torch.testing.assert_close(
        module(x.as_subclass(FakeCudaTensor)).as_subclass(Tensor), module(x), atol=1e-6, rtol=1e-6
    )


def test_channels_last_is_chosen_if_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's group norm keeps the memory format from PyTorch 2.15 on; compiled code has none."""
    assert best_memory_format(torch.device("cpu")) == torch.channels_last
    for version, expected in (
        ("2.14.1", torch.contiguous_format),
        ("2.15.0+cu132", torch.channels_last),
    ):
        monkeypatch.setattr(torch, "__version__", TorchVersion(version))
        assert best_memory_format(CUDA) == expected
        assert best_memory_format(CUDA, is_compiled=True) == torch.channels_last
    network = CountNetwork(
        NCSNpp((3, 16, 16), channels=16, **SMALL), PaperInputs(255), channels_last=True
    )
    convolution = network.body.stem.weight
    assert (
        convolution.is_contiguous(memory_format=torch.channels_last)
        and not convolution.is_contiguous()
    )
    monkeypatch.setattr(
        "blackout.networks.inputs.best_memory_format", lambda *_: torch.contiguous_format
    )
    assert network.double().body.stem.weight.is_contiguous()
    monkeypatch.setattr(
        "blackout.networks.inputs.best_memory_format",
        lambda *options: torch.channels_last if options[-1] else torch.contiguous_format,
    )
    network.compile(backend="eager")
    assert not network.body.stem.weight.is_contiguous()

"""Masks of dropout: independent, of the right share, and the same however a batch is shared."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from benchmarks.devices import fake_cuda
from blackout.networks.dropout import BatchShard, Dropout
from blackout.random.words import bits_at, random_bits
from tests.devices import Watch

BATCH = 12
SHAPES = {
    "images": (5, 3, 3),  # 45 elements, which is no multiple of 4
    "vectors": (8,),
    "volumes": (2, 3, 2, 2),
}


MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def share_of(x: Tensor, rank: int, num_processes: int) -> Tensor:
    """Return the rows of every W-th sample, of images and volumes in channels_last memory."""
    rows = x.unflatten(0, (BATCH, -1))[rank::num_processes].flatten(0, 1)
    memory_format = MEMORY_FORMATS.get(x.ndim, torch.contiguous_format)
    return rows.contiguous(memory_format=memory_format)


def compiled(layer: Dropout) -> torch.nn.Module:
    """Return a layer that runs as in compiled code, traced in one graph."""
    return torch.compile(layer, backend="eager", fullgraph=True)


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("rows_per_sample", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_shares_of_a_batch_have_the_masks_of_the_whole(
    name: str, rows_per_sample: int, is_compiled: bool
) -> None:
    x = share_of(torch.randn(BATCH * rows_per_sample, *SHAPES[name]), 0, 1)
    torch.manual_seed(3)
    dropout = Dropout(0.3)
    expected = (compiled(dropout) if is_compiled else dropout)(x)
    for num_processes in (1, 2, 3, 4):
        for rank in range(num_processes):
            layer = Dropout(0.3)
            layer.shard = BatchShard(rank, num_processes, BATCH // num_processes)
            torch.manual_seed(3)
            y = (compiled(layer) if is_compiled else layer)(share_of(x, rank, num_processes))
            torch.testing.assert_close(y, share_of(expected, rank, num_processes))
        torch._dynamo.reset()


@pytest.mark.parametrize("num_processes", [1, 8])
def test_a_process_draws_its_own_masks_only(num_processes: int) -> None:
    """Bytes that kernels write on a device grow with the rows of a process, not of all of them."""
    layer = Dropout(0.3)
    with fake_cuda():
        layer.shard = BatchShard(0, num_processes, 4)
        with Watch() as watch:
            layer(torch.zeros(4, 16, 8, 8))
    outputs = [out for _, _, out in watch.calls if isinstance(out, Tensor)]
    assert max(out.numel() for out in outputs) == 4 * 16 * 8 * 8


def test_bits_do_not_depend_on_rows_or_device_operations() -> None:
    first = torch.tensor([0, 5, 4_097, 2**40 + 2])
    number = first[:, None] + torch.arange(37)
    bits = random_bits(9, first, 37)
    assert bits.dtype == torch.int16 and torch.equal(bits.long(), bits_at(torch.tensor(9), number))
    bits = random_bits(9, torch.zeros(1, dtype=torch.int64), 100_000)[0].double()
    assert abs(bits.mean()) < 4 * 65_536 / math.sqrt(12 * 100_000)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_keeps_its_share_and_its_mean_and_gradients_pass_where_values_do(
    p: float, layout: torch.memory_format
) -> None:
    x = (
        torch.ones(64, 15, 7, 9).contiguous(memory_format=layout).requires_grad_()
    )  # not a multiple of 4 an image
    layer = Dropout(p)
    dropped = round(65536 * p) / 65536
    torch.manual_seed(1)
    y = layer(x)
    torch.manual_seed(1)
    assert torch.equal(y, layer(x)) and not torch.equal(y, layer(x)) and y.stride() == x.stride()
    is_kept = (y != 0).double()
    assert torch.equal(y, (is_kept / (1 - dropped)).float()) and y.mean().item() == pytest.approx(
        1, abs=0.02
    )
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    error = 4 * math.sqrt(p * (1 - p) / x.numel())
    assert is_kept.mean().item() == pytest.approx(1 - dropped, abs=error)
    for axis in range(4):  # neighbours are independent
        after = is_kept.narrow(axis, 1, x.shape[axis] - 1)
        before = is_kept.narrow(axis, 0, x.shape[axis] - 1)
        assert (after * before).mean().item() == pytest.approx((1 - dropped) ** 2, abs=2 * error)
    assert layer.eval()(x) is x

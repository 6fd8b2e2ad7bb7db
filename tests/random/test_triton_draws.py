"""Triton's draws without a device: the same counts as torch's; kernels compile for CUDA."""

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.deep

triton = pytest.importorskip(
    "triton",
    reason="Triton comes with PyTorch's CUDA builds for Linux",
)

POINTER_TYPES = {
    "keys": "*i64",
    "rows": "*u8",
    "n_values": "*fp64",
    "p_values": "*fp64",
    "table": "*fp64",
    "seed": "*i64",
    "first": "*i64",
    "keep": "*u8",
}


def test_triton_and_torch_draw_equal_counts() -> None:
    command = [sys.executable, "-m", "tests.random.interpreted_kernels"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.stdout == "compared\n", process.stdout + process.stderr


@pytest.mark.parametrize(
    ("name", "is_poisson"),
    [
        ("counts_kernel", True),
        ("counts_kernel", False),
        ("inverse_cdf_kernel", None),
        ("keep_mask_kernel", None),
    ],
)
def test_kernels_compile_for_cuda(name: str, is_poisson: bool | None) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from blackout.random import triton_draws

    kernel = getattr(triton_draws, name)
    types = {**dict.fromkeys(kernel.arg_names, "i32"), **POINTER_TYPES}
    types["counts"] = "*u8" if name == "inverse_cdf_kernel" else "*fp64"
    types["BLOCK"] = "constexpr"
    types["IS_POISSON"] = "constexpr"
    constants = {"BLOCK": 256}
    if is_poisson is not None:
        constants["IS_POISSON"] = is_poisson
    source = ASTSource(kernel, {arg: types[arg] for arg in kernel.arg_names}, constants)
    target = GPUTarget("cuda", 80, 32)
    compiled = triton.compile(source, target=target, options={"enable_fp_fusion": False})
    assert len(compiled.asm["cubin"]) > 1000

    # all constants but 1 are in float64
    float32_constant = r"constant (?:dense<)?(\S+?)>? : (?:tensor<[x\d]*)?f32"
    assert set(re.findall(float32_constant, compiled.asm["ttir"])) <= {"1.000000e+00"}

"""The Triton kernels, without a device: the same counts as the general path in every regime, and they compile."""

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.deep

triton = pytest.importorskip("triton", reason="Triton comes with PyTorch's CUDA builds for Linux")


def test_fused_draws_are_the_general_ones():
    command = [sys.executable, "-m", "tests.random.interpreted_kernels"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "compared\n", done.stdout + done.stderr


@pytest.mark.parametrize("name, rates", [("_counts", True), ("_counts", False), ("_bisect", None)])
def test_kernels_compile_for_cuda(name, rates):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from blackout.random import triton_draws as fused

    kernel = getattr(fused, name)
    types = {
        **dict.fromkeys(kernel.arg_names, "i32"),
        "keys": "*i64",
        "rows": "*u8",
        "BLOCK": "constexpr",
        "RATES": "constexpr",
    }
    types |= {"drawn": "*u8" if name == "_bisect" else "*fp64"}
    types |= dict.fromkeys(["sizes", "shares", "table"], "*fp64")
    constants = {"BLOCK": 256} | ({} if rates is None else {"RATES": rates})
    source = ASTSource(kernel, {x: types[x] for x in kernel.arg_names}, constants)
    built = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"enable_fp_fusion": False})
    assert len(built.asm["cubin"]) > 1000
    singles = re.findall(r"constant (?:dense<)?(\S+?)>? : (?:tensor<[x\d]*)?f32", built.asm["ttir"])
    assert set(singles) <= {"1.000000e+00"}  # all other constants are in float64

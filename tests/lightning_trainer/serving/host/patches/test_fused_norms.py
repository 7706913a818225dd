"""vLLM's kernel gives the norm of the formula, and is asked for nothing that it cannot compute."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from lightning_trainer.serving.host.patches import fused_norms

pytestmark = pytest.mark.torch
EPSILON = 1e-5


@pytest.fixture(scope="module", autouse=True)
def kernels():
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    names = {True: "_C", False: "_C_AVX512"} if torch.cpu._is_avx512_supported() else {False: "_C_AVX2"}
    library = names[torch.cpu._is_avx512_bf16_supported() and True in names]
    torch.ops.load_library(Path(spec.origin).parent / f"{library}.abi3.so")


def _norm(x, weight):
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight.double()


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 2e-6), (torch.bfloat16, 2**-7)])
@pytest.mark.parametrize("rows", [1, 70])
def test_it_is_the_formula(dtype, within, rows):
    generator = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(rows, 64, generator=generator).to(dtype) for _ in range(2))
    weight = torch.randn(64, generator=generator).to(dtype)
    torch.testing.assert_close(
        fused_norms.rms_norm(x, weight, EPSILON).double(), _norm(x, weight), rtol=within, atol=within
    )
    expected_sum = (x.float() + residual.float()).to(dtype)
    expected = _norm(x.float() + residual.float(), weight)
    normed, total = fused_norms.fused_add_rms_norm(x, residual, weight, EPSILON)
    assert normed is x  # vLLM goes on with what it handed in
    assert total is residual
    # The kernel for AVX2 cuts a sum off in bfloat16, which the others round; the default there is float32.
    cut = within if dtype is torch.bfloat16 and not torch.cpu._is_avx512_supported() else 0
    torch.testing.assert_close(total, expected_sum, rtol=cut, atol=cut)
    torch.testing.assert_close(normed.double(), expected, rtol=within + cut, atol=within + cut)


def test_what_the_kernel_cannot_compute_is_left_to_vllm():
    x, weight = torch.randn(4, 64), torch.ones(64)
    assert fused_norms.supports(x, weight, EPSILON)
    assert fused_norms.supports_with_residual(x, x, weight, EPSILON)
    assert not fused_norms.supports(x, None, EPSILON)
    assert not fused_norms.supports(x, weight, EPSILON, variance_size=32)
    assert not fused_norms.supports(x, weight.bfloat16(), EPSILON)
    assert not fused_norms.supports(torch.randn(4, 128)[:, :64], weight, EPSILON)
    assert not fused_norms.supports(torch.randn(4, 60), torch.ones(60), EPSILON)
    assert not fused_norms.supports_with_residual(x, torch.randn(64, 4).t(), weight, EPSILON)

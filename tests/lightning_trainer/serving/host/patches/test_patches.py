"""Each patch is still needed by the vLLM that is installed; it goes when its test fails. vLLM is read, not imported."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

PATCHES = Path(__file__).parents[5] / "lightning_trainer" / "serving" / "host" / "patches"
NEEDED = {
    "fused_norms": ("kernels/vllm_c.py", r'"vllm_c", supports_args=rms_no_var_size, supported=GPGPU_DEVICE'),
    "forking": ("platforms/cpu.py", r'environ\["VLLM_WORKER_MULTIPROC_METHOD"\] = "spawn"'),
    "inverse_sampling": (
        "v1/sample/ops/topk_topp_sampler.py",
        r"def compiled_random_sample\(.*\n(?:    .*\n)*    q\.exponential_\(\)",
    ),
    "lora_experts": ("model_executor/layers/fused_moe/oracle/unquantized.py", r"if moe_config\.is_lora_enabled:"),
    "lora_matmul": ("lora/ops/torch_ops/lora_ops.py", r"selected_loras = lora_b_weights\[lora_indices_tensor\]"),
}
"""Where vLLM does what the patch changes, and how it reads."""


@pytest.mark.parametrize("name", NEEDED)
def test_vllm_still_does_what_the_patch_changes(name):
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    file, expected = NEEDED[name]
    source = (Path(spec.origin).parent / file).read_text(encoding="utf-8")
    assert re.search(expected, source), f"vLLM does it in another way now: look whether patches/{name}.py can go"


def test_every_patch_is_looked_at_and_says_version_and_upstream():
    patches = {path.stem: path.read_text(encoding="utf-8") for path in PATCHES.glob("*.py") if path.stem != "__init__"}
    assert patches.keys() == NEEDED.keys()
    for name, text in patches.items():
        assert re.search(r"^vLLM [\d.]+ \(", text, re.MULTILINE), name
        assert "Upstream" in text, name

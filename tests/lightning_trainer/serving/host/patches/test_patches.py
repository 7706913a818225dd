"""Each change to vLLM is still needed by the one that is installed, and still finds what it changes; it goes when its
test fails. vLLM is read, not imported."""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

HOST = Path(__file__).parents[5] / "lightning_trainer" / "serving" / "host"
NEEDED = {
    "patches/fused_norms": [
        ("kernels/vllm_c.py", r'"vllm_c", supports_args=rms_no_var_size, supported=GPGPU_DEVICE'),
    ],
    "patches/forking": [("platforms/cpu.py", r'environ\["VLLM_WORKER_MULTIPROC_METHOD"\] = "spawn"')],
    "patches/inverse_sampling": [
        (
            "v1/sample/ops/topk_topp_sampler.py",
            r"def compiled_random_sample\(.*\n(?:    .*\n)*    q\.exponential_\(\)",
        ),
    ],
    "patches/lora_experts": [
        ("model_executor/layers/fused_moe/oracle/unquantized.py", r"if moe_config\.is_lora_enabled:"),
    ],
    "patches/lora_matmul": [
        ("lora/ops/torch_ops/lora_ops.py", r"selected_loras = lora_b_weights\[lora_indices_tensor\]"),
    ],
    "tokens/support": [
        ("v1/engine/input_processor.py", r"if params\.top_k <= 0:\n\s+raise ValueError\(\n\s+\"sampling distribution"),
        ("config/vllm.py", r'raise ValueError\("sampling distribution replay requires Model Runner V2"\)'),
        (
            "v1/core/sched/scheduler.py",
            r"if self\.return_sampling_mask:\n\s+sampling_masks = model_runner_output\.sampling_masks\n"
            r".*\n.* sampling_masks\.slice_request\(",
        ),
        (
            "v1/sample/sampler.py",
            r"def sample\(\n\s+self,\n\s+logits: .*\n(?:.*\n){2}    \) -> tuple\[torch\.Tensor, torch\.Tensor \| None",
        ),
        (
            "v1/worker/gpu_model_runner.py",
            r"def _sample\(\n\s+self,\n\s+logits: .*\n\s+spec_decode_metadata: .*\n    \) -> SamplerOutput:",
        ),
        ("v1/worker/gpu_model_runner.py", r"def sample_tokens\("),
        ("v1/worker/gpu/sample/sampler.py", r"return_sampling_mask: bool = False,"),
        ("v1/worker/gpu/sample/output.py", r"def tolists\(self\) -> SamplingMaskLists:\n(?:.*\n)*.*np\.flatnonzero\("),
    ],
    "tokens/support_answer": [
        (
            "outputs.py",
            r"def add\(self, next_output: \"RequestOutput\", aggregate: bool\) -> None:\n"
            r"(?:(?!.*sampling_mask)(?:        .*)?\n)+    def ",
        ),
    ],
    "tokens/routed_experts": [
        (
            "config/vllm.py",
            r"def _verify_aux_output_compatibility\(self\) -> None:\n(?:(?:        .*)?\n)*"
            r"        if not self\.use_v2_model_runner and not \(",
        ),
        ("v1/worker/gpu_model_runner.py", r"\A(?![\s\S]*aux_output_connector)"),
        (
            "v1/worker/gpu_model_runner.py",
            r"def initialize_kv_cache\(\n\s+self,\n\s+kv_cache_config: .*\n\s+is_profiling: bool = False,",
        ),
        ("v1/worker/gpu_model_runner.py", r"def _update_states\(self, scheduler_output: "),
        ("v1/worker/gpu_model_runner.py", r"def sample_tokens\("),
    ],
    "weights/transfer": [
        (
            "model_executor/layers/fused_moe/unquantized_fused_moe_method.py",
            r"def _setup_kernel\(\n(?:.*\n)*?        if not is_weight_update:\n(?:(?:            .*)?\n)*"
            r"            self\.moe_kernel\.fused_experts\.process_weights_after_loading\(layer\)",
        ),
    ],
}
"""By the file that changes vLLM: where vLLM does what is changed, and how it reads."""


@pytest.mark.parametrize("name", NEEDED)
def test_vllm_still_does_what_is_changed(name):
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    for file, expected in NEEDED[name]:
        source = (Path(spec.origin).parent / file).read_text(encoding="utf-8")
        advice = f"look whether what serving/host/{name}.py changes can go"
        assert re.search(expected, source), f"{file} of vLLM does it in another way now: {advice}"


def test_every_change_is_looked_at_and_says_version_and_upstream():
    texts = {
        str(path.relative_to(HOST).with_suffix("")): path.read_text(encoding="utf-8") for path in HOST.rglob("*.py")
    }
    changes = {name for name, text in texts.items() if name.startswith("patches/") or _sets_something_of_vllm(text)}
    assert changes - {"patches/__init__"} == NEEDED.keys()
    for name in NEEDED:
        assert re.search(r"^ *vLLM [\d.]+ \(.*Upstream", texts[name], re.MULTILINE), name


def _sets_something_of_vllm(text: str) -> bool:
    """Return whether an attribute of a name that is imported from vLLM is set: of a class or a module."""
    nodes = list(ast.walk(ast.parse(text)))
    imports = (node for node in nodes if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm"))
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    targets = (target for node in nodes if isinstance(node, ast.Assign) for target in node.targets)
    attributes = (target.value for target in targets if isinstance(target, ast.Attribute))
    return any(isinstance(owner, ast.Name) and owner.id in imported for owner in attributes)

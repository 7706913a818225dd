"""A failed engine's log becomes one sentence that says what to do. The lines are vLLM 0.31's own."""

import pytest

from lightning_trainer.serving.startup_failure import explain

CONSEQUENCE = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
TOO_LONG = (
    "ValueError: To serve at least one request with the models's max seq len (2048), (0.05 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (0.01 GiB)."
)


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (
            "(Worker pid=3) ValueError: Available memory on node 0 (3.10/22.00 GiB) on kv cache allocation is less "
            "than requested memory for kv (100.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or",
            "not enough memory: 3.10 GiB are free and engine.kv_cache_gib asks for 100.0; lower it",
        ),
        (
            "  Value error, User-specified max_model_len (99999) is greater than the derived max_model_len "
            "(max_position_embeddings=2048.0 or model_max_length=None in model's config.json).",
            "engine.max_model_len = 99999 is more than the 2048 that the model was made for",
        ),
        (
            TOO_LONG,
            "engine.kv_cache_gib is too small: one request of engine.max_model_len = 2048 tokens needs 0.05 GiB",
        ),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried", "not enough memory"),
        (
            "KeyError: 'invalid tool call parser: hermit (chose from { hermes })'",
            "engine.tool_call_parser = 'hermit' is not one that vLLM knows",
        ),
        (
            "KeyError: 'invalid reasoning parser: qwen33 (chose from { qwen3 })'",
            "engine.reasoning_parser = 'qwen33' is not one that vLLM knows",
        ),
        ("ModuleNotFoundError: No module named 'starlette'", "lacks the module 'starlette'"),
    ],
)
def test_known_causes_name_the_setting(log, sentence):
    text = f"INFO something\n{log}\nTraceback\n(MainProcess pid=1) {CONSEQUENCE}"
    assert explain(text, CONSEQUENCE, 1).startswith(sentence) or sentence in explain(text, CONSEQUENCE, 1)


@pytest.mark.parametrize(
    ("log", "exit_status", "way"),
    [
        (TOO_LONG, 1, "lower it, or raise engine.gpu_memory_utilization or engine.tensor_parallel_size"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried", 1, "raise engine.tensor_parallel_size"),
        ("", -9, "end other processes"),
    ],
)
def test_on_a_gpu_the_settings_named_are_those_that_count_there(log, exit_status, way):
    said = explain(log, CONSEQUENCE, exit_status, on_gpus=True)
    assert way in said
    assert "kv_cache_gib" not in said


def test_the_first_cause_counts_not_what_followed_from_it():
    log = f"(Worker pid=2) vllm.Oops: x\n(Worker pid=2) KeyError: 'first'\n(EngineCore pid=1) {CONSEQUENCE}"
    assert explain(log, CONSEQUENCE, 1) == "KeyError: 'first'"


def test_what_the_host_says_itself_is_believed():
    assert explain("noise", "vLLM's engine process died", 1) == "vLLM's engine process died"


def test_a_kill_is_read_as_memory():
    assert "memory" in explain("", None, -9)


def test_silence_is_reported_as_such():
    assert explain("", None, 3) == "it ended with status 3 and said nothing"

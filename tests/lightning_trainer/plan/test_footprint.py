"""The formulas give what was measured where something was, and what can be worked out by hand."""

import pytest

from lightning_trainer.config import Config
from lightning_trainer.daemon.hardware.dealing import deal
from lightning_trainer.errors import ConfigError
from lightning_trainer.plan.fitting import fit, fragment, least_hardware
from lightning_trainer.plan.footprint import cached_tokens, engine_memory, kept_bytes, trainer_memory
from lightning_trainer.plan.hardware import GIB, hardware
from lightning_trainer.plan.source import find_shape

SMOLLM2 = find_shape("embedded:smollm2-135m-instruct")[0]
LLAMA_8B = find_shape("meta-llama/Llama-3.1-8B")[0]
LLAMA_70B = find_shape("meta-llama/Llama-3.1-70B")[0]
PROCESS = 0.8 * GIB
"""Of a trainer on the CPU: Python, torch and verl."""


@pytest.mark.parametrize(
    ("tokens", "dtype", "measured_gib"), [(1024, "float32", 4.2), (2672, "float32", 6.4), (2632, "bfloat16", 5.3)]
)
def test_the_trainers_memory_is_within_a_fifth_of_what_was_measured(tokens, dtype, measured_gib):
    """Peak resident memory of the trainer of SmolLM2-135M on the CPU, November 2026.

    It was measured with one micro-batch, in which gradients come as activations go.
    """
    memory = trainer_memory(SMOLLM2, tokens=tokens, dtype=dtype)
    never_at_once = min(memory.gradients, memory.activations + memory.logits)
    estimate_gib = (memory.total - never_at_once - memory.context + PROCESS) / GIB
    assert estimate_gib == pytest.approx(measured_gib, rel=0.2)


def test_of_all_weights_sixteen_bytes_a_parameter_are_needed_and_in_one_process_copies():
    memory = trainer_memory(LLAMA_8B, tokens=1)
    assert memory.weights + memory.gradients + memory.optimizer == 16 * LLAMA_8B.parameters
    assert memory.copies == (4 + 2 + 2) * LLAMA_8B.parameters
    divided = trainer_memory(LLAMA_8B, tokens=1, processes=8)
    assert divided.weights + divided.gradients + divided.optimizer == 2 * LLAMA_8B.parameters
    layers_and_embeddings = 2 * LLAMA_8B.layer_parameters + LLAMA_8B.embedding_parameters
    assert divided.copies == 2 * layers_and_embeddings + 2 * LLAMA_8B.parameters / 8


def test_of_an_adapter_only_its_own_parameters_are_trained_over_rounded_weights():
    memory = trainer_memory(LLAMA_8B, tokens=1, lora_rank=16)
    assert LLAMA_8B.lora_parameters(16) == 41_943_040
    assert (memory.gradients, memory.optimizer) == (4 * 41_943_040, 8 * 41_943_040)
    embeddings, norms = 128_256 * 4096, (2 * 32 + 1) * 4096
    assert LLAMA_8B.linear_parameters == LLAMA_8B.parameters - embeddings - norms
    assert memory.weights == 2 * LLAMA_8B.linear_parameters + 4 * (embeddings + norms)
    assert memory.copies == 2 * norms + (4 + 2) * 41_943_040
    assert trainer_memory(LLAMA_8B, tokens=1, lora_rank=16, dtype="float32").weights == 4 * LLAMA_8B.parameters
    assert trainer_memory(LLAMA_8B, tokens=1, lora_rank=16, processes=8).weights == LLAMA_8B.parameters / 4


def test_what_is_kept_of_a_token_is_counted_and_a_layer_alone_with_checkpointing():
    h, q, k, f = 4096, 4096, 1024, 14336
    kept = 26 * h + 4 * (q + 2 * k) + 2 * q + 8 * f
    assert kept_bytes(LLAMA_8B, "bfloat16") == kept
    assert trainer_memory(LLAMA_8B, tokens=10).activations == 10 * 32 * kept
    assert trainer_memory(LLAMA_8B, tokens=10, checkpointing=True).activations == 10 * (32 * 4 * h + kept)


def test_the_cache_of_an_engine_is_what_weights_leave():
    memory = engine_memory(LLAMA_8B, share=0.9, gpu_bytes=80e9)
    assert memory.total == pytest.approx(72e9)
    assert memory.weights == 2 * LLAMA_8B.parameters
    assert LLAMA_8B.cache_bytes_per_token == 131_072
    assert cached_tokens(LLAMA_8B, memory, 1) == int(memory.cache / 131_072)
    assert cached_tokens(LLAMA_70B, engine_memory(LLAMA_70B, share=0.9, gpu_bytes=80e9), 1) == 0


@pytest.mark.parametrize("words", ["1x24GB", "1x80GB", "8x80GB", "2x8x80GB"])
@pytest.mark.parametrize("rank", [None, 16])
@pytest.mark.parametrize("shape", [SMOLLM2, LLAMA_8B, LLAMA_70B], ids=["135M", "8B", "70B"])
def test_what_fits_fits_and_the_configuration_takes_it(shape, rank, words):
    import tomllib

    found = fit(shape, hardware(words), lora_rank=rank)
    if found is None:
        assert shape is not SMOLLM2
        return
    assert found.trainer.total < found.hardware.gpu.memory
    assert found.engine.cache > 0
    engines = 0 if found.shared else found.replicas * found.tensor_parallel
    assert found.trainers + engines <= found.hardware.gpus
    assert found.generated_per_s > 0
    assert found.trained_per_s > 0
    config = Config.model_validate(tomllib.loads(fragment(found, 'a "model"\n')))
    assert config.only_policy.model == 'a "model"\n'
    dealt = deal(config, [str(number) for number in range(found.hardware.gpus_per_node)])
    assert dealt.shares is found.shared
    assert len(dealt.trainers) == (0 if found.on_cluster else found.trainers)
    assert (config.ray.address is not None) is found.on_cluster


def test_sequences_of_the_planned_length_are_trained_and_fit():
    import tomllib

    for words, length in (("1x80GB", 32768), ("8x141GB", 65536)):
        found = fit(LLAMA_8B, hardware(words), lora_rank=16, max_model_len=length)
        assert found is not None
        assert Config.model_validate(tomllib.loads(fragment(found, "m"))).only_policy.max_sample_tokens == length
        longest = trainer_memory(
            LLAMA_8B,
            tokens=max(length, found.tokens),
            processes=found.trainers,
            lora_rank=16,
            checkpointing=found.checkpointing,
        )
        assert longest.total < found.hardware.gpu.memory
    assert fit(LLAMA_8B, hardware("1x48GB"), lora_rank=16, max_model_len=4096) is not None
    assert fit(LLAMA_8B, hardware("1x48GB"), lora_rank=16, max_model_len=131072) is None


def test_more_memory_never_fits_less():
    for shape in (SMOLLM2, LLAMA_8B):
        fits = [fit(shape, hardware(words)) is not None for words in ("1x24GB", "1x80GB", "4x80GB", "8x80GB")]
        assert fits == sorted(fits)


def test_the_least_hardware_is_the_first_that_fits():
    assert str(least_hardware(SMOLLM2, lora_rank=None, max_model_len=4096)) == "1x24GB"
    least = least_hardware(LLAMA_8B, lora_rank=None, max_model_len=4096)
    assert least is not None
    assert fit(LLAMA_8B, least) is not None
    assert fit(LLAMA_8B, hardware("1x80GB")) is None


@pytest.mark.parametrize("words", ["80GB", "0x80GB", "8x80", "8 x 80GB", "x"])
def test_hardware_that_is_not_understood_is_one_sentence(words):
    with pytest.raises(ConfigError, match="write GPUs x memory as in 1x80GB, with nodes before it 2x8x80GB, or auto"):
        hardware(words)


def test_auto_is_what_the_driver_shows(monkeypatch):
    from lightning_trainer.plan import hardware as module

    monkeypatch.setattr(module, "visible_gpus", lambda: ("0", "1"))
    monkeypatch.setattr(module, "_QUERY", ("printf", "81559\\n81559\\n"))
    found = hardware("auto")
    assert (found.gpus, found.gpu.card) == (2, "A100 80GB")
    monkeypatch.setattr(module, "visible_gpus", lambda: ())
    with pytest.raises(ConfigError, match="this machine has no GPU that nvidia-smi shows"):
        hardware("auto")

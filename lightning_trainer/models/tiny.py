"""Writes a random two-layer model with a byte-level tokenizer: real in every respect but its size, always the same.

A Llama, or with ``--experts`` a Qwen3 mixture of experts.
"""

import sys
from pathlib import Path
from typing import Any

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write(folder: Path, *, experts: bool = False) -> None:
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import (
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate((*_SPECIAL, *alphabet))}
    raw = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token=_SPECIAL[1], eos_token=_SPECIAL[2], pad_token=_SPECIAL[0]
    )
    common: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "dtype": torch.float32,
    }
    torch.manual_seed(0)
    if experts:
        config = Qwen3MoeConfig(
            **{**common, "head_dim": 32},
            moe_intermediate_size=64,
            num_experts=8,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            tie_word_embeddings=False,
        )
        model = Qwen3MoeForCausalLM(config)
    else:
        # Head dimension 32: the smallest that vLLM's CPU attention takes.
        model = LlamaForCausalLM(LlamaConfig(**common, tie_word_embeddings=True))
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]), experts="--experts" in sys.argv[2:])

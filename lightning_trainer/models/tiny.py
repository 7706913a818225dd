"""Writes a random two-layer model with a byte-level tokenizer: always the same, and real in every respect except size.

By default it is a Llama, with ``--experts`` a Qwen3 mixture of experts, and with ``--vision`` an Idefics3: that Llama
behind a vision transformer.
"""

import sys
from pathlib import Path
from typing import Any

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_OF_IMAGES = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>")
_SIDE, _PATCH, _SHUFFLED = 56, 14, 2
"""Side of an image and of a patch, in pixels, and the side of the square of patches that become one token: an image is
4 tokens."""


def write(folder: Path, *, experts: bool = False, vision: bool = False) -> None:
    """Write the model and its tokenizer to ``folder``: a Llama unless ``vision`` or ``experts`` asks for another."""
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
    special = (*_SPECIAL, *_OF_IMAGES) if vision else _SPECIAL
    vocabulary = {token: index for index, token in enumerate((*_SPECIAL, *alphabet, *special[len(_SPECIAL) :]))}
    raw = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, special=True) for token in special])
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
    if vision:
        model = _seeing(common, vocabulary["<image>"], tokenizer, folder)
    elif experts:
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
        # Head dimension 32: the smallest that vLLM's CPU attention supports.
        model = LlamaForCausalLM(LlamaConfig(**common, tie_word_embeddings=True))
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _seeing(text: dict[str, Any], image_token: int, tokenizer: Any, folder: Path) -> Any:
    """Return an Idefics3, and write its image processor, which uses PIL and so needs no torchvision."""
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, Idefics3Processor, LlamaConfig
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    config = Idefics3Config(
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": _SIDE,
            "patch_size": _PATCH,
        },
        text_config=LlamaConfig(**text, tie_word_embeddings=True),
        image_token_id=image_token,
        scale_factor=_SHUFFLED,
        pad_token_id=text["pad_token_id"],
        tie_word_embeddings=True,
        dtype=text["dtype"],
    )
    side = {"longest_edge": _SIDE}
    Idefics3Processor(
        image_processor=Idefics3ImageProcessorPil(size=side, max_image_size=side, do_image_splitting=False),
        tokenizer=tokenizer,
        image_seq_len=(_SIDE // _PATCH // _SHUFFLED) ** 2,
    ).save_pretrained(folder)
    return Idefics3ForConditionalGeneration(config)


if __name__ == "__main__":
    write(Path(sys.argv[1]), experts="--experts" in sys.argv[2:], vision="--vision" in sys.argv[2:])

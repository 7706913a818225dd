"""What a weight file holds is read from its header, and compared with the model's before the engine is touched."""

import json
import struct

import pytest

from lightning_trainer.serving.host.weights.weight_file import (
    TensorHeader,
    disagreement,
    linear_layers,
    model_headers,
    published_shapes,
    read_header,
    ties_embeddings,
    version_bytes,
)

MODEL = {"embed": TensorHeader("float32", (4, 2)), "norm": TensorHeader("float32", (2,))}


def write(path, tensors, *, cut=0):
    """A safetensors file of zeros; ``tensors`` is name -> (dtype, shape)."""
    header: dict = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = {"F32": 4, "BF16": 2}[dtype]
        for side in shape:
            size *= side
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes((struct.pack("<Q", len(text)) + text + bytes(offset))[: len(text) + 8 + offset - cut])
    return path


def test_a_header_gives_names_dtypes_and_shapes(tmp_path):
    path = write(tmp_path / "w", {"embed": ("F32", (4, 2)), "norm": ("BF16", (2,))})
    assert read_header(path) == {"embed": TensorHeader("float32", (4, 2)), "norm": TensorHeader("bfloat16", (2,))}


def test_a_version_takes_what_the_engine_computes_in_not_what_the_model_is_stored_in(tmp_path):
    write(tmp_path / "model.safetensors", {"embed": ("BF16", (400, 2)), "norm": ("F32", (2,))})
    headers = 2 * 100
    assert version_bytes(tmp_path, "float32") == 802 * 4 + headers
    assert version_bytes(tmp_path, "bfloat16") == 802 * 2 + headers
    (tmp_path / "model.safetensors").write_bytes(b"x" * 10)
    assert version_bytes(tmp_path, "float32") == 10, "what cannot be read is said by whoever loads it"


def test_linear_layers_are_the_matrices_without_a_row_a_token(tmp_path):
    tensors = {
        "model.embed_tokens.weight": ("F32", (4, 2)),
        "model.layers.0.self_attn.q_proj.weight": ("F32", (2, 2)),
        "model.layers.0.self_attn.q_proj.bias": ("F32", (2,)),
        "model.layers.1.mlp.down_proj.weight": ("F32", (2, 3)),
        "model.layers.2.mlp.experts.0.up_proj.weight": ("F32", (2, 3)),
        "model.norm.weight": ("F32", (2,)),
        "lm_head.weight": ("F32", (4, 2)),
    }
    write(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text('{"vocab_size": 4}')
    assert linear_layers(tmp_path) == ["down_proj", "q_proj"]


def test_a_version_of_an_adapter_takes_what_its_matrices_take(tmp_path):
    tensors = {
        "model.embed_tokens.weight": ("F32", (4, 2)),
        "model.layers.0.mlp.down_proj.weight": ("F32", (20, 30)),
        "model.layers.0.mlp.experts.0.down_proj.weight": ("F32", (20, 30)),
    }
    write(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text('{"vocab_size": 4}')
    layer = "base_model.model.model.layers.0.mlp.down_proj"
    assert published_shapes(tmp_path, 8) == {f"{layer}.lora_A.weight": (8, 30), f"{layer}.lora_B.weight": (20, 8)}
    assert version_bytes(tmp_path, "bfloat16", 8) == 2 * 8 * (20 + 30) + 2 * 100


def test_a_file_cut_short_is_refused(tmp_path):
    with pytest.raises(ValueError, match="its header promises"):
        read_header(write(tmp_path / "w", {"embed": ("F32", (4, 2))}, cut=3))


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 64, struct.pack("<Q", 4) + b"[1]x"])
def test_what_is_no_safetensors_file_is_refused(tmp_path, content):
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(ValueError, match="not a safetensors file"):
        read_header(tmp_path / "w")


def test_the_models_own_tensors_pass():
    assert disagreement(MODEL, MODEL, "float32", tied=False) is None


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"embed": MODEL["embed"]}, "1 tensors are missing: norm"),
        (MODEL | {"extra": MODEL["norm"]}, "1 tensors are not the model's: extra"),
        (MODEL | {"norm": TensorHeader("float32", (3,))}, r"norm has the shape [3]; the model's is [2]"),
        (MODEL | {"norm": TensorHeader("bfloat16", (2,))}, "norm is bfloat16; the engine computes in float32"),
    ],
)
def test_what_is_not_the_models_is_named(found, reason):
    assert disagreement(found, MODEL, "float32", tied=False) == reason


def test_tied_embeddings_may_be_written_out_or_not():
    with_head = MODEL | {"lm_head.weight": MODEL["embed"]}
    assert disagreement(with_head, MODEL, "float32", tied=True) is None
    assert disagreement(MODEL, with_head, "float32", tied=True) is None
    assert "lm_head.weight" in (disagreement(with_head, MODEL, "float32", tied=False) or "")


def test_a_model_in_shards_is_read_whole(tmp_path):
    write(tmp_path / "a.safetensors", {"embed": ("F32", (4, 2))})
    write(tmp_path / "b.safetensors", {"norm": ("F32", (2,))})
    index = {"weight_map": {"embed": "a.safetensors", "norm": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
    assert model_headers(tmp_path) == MODEL
    assert ties_embeddings(tmp_path)

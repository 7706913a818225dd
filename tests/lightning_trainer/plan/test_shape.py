"""Parameters are counted to the last one."""

import json

import pytest

from lightning_trainer.errors import ModelError
from lightning_trainer.plan import source
from lightning_trainer.plan.shape import Shape, read_shape, shape_of
from lightning_trainer.plan.source import find_shape

COUNTS = {
    "embedded:smollm2-135m-instruct": 134_515_008,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
}
"""As their owners publish them."""


@pytest.mark.parametrize("model", COUNTS)
def test_the_parameters_of_known_models(model):
    assert find_shape(model)[0].parameters == COUNTS[model]


def test_by_hand():
    """Embeddings 10 x 4; a layer: queries and output 4 x 4, keys and values 4 x 2, 3 x (4 x 6), norms 2 x 4."""
    shape = Shape(layers=1, hidden=4, heads=2, key_heads=1, head_size=2, feed_forward=6, vocabulary=10, tied=True)
    assert shape.layer_parameters == 16 + 16 + 16 + 72 + 8
    assert shape.parameters == 40 + 128 + 4
    assert shape.computed_parameters == 40 + 128
    assert shape.cache_bytes_per_token == 2 * 2 * 2
    assert shape.lora_parameters(1) == (4 + 4) + 2 * (4 + 2) + (4 + 4) + 2 * (4 + 6) + (6 + 4)


@pytest.mark.torch
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral", "qwen3_moe", "mixtral"])
def test_every_family_is_counted_as_transformers_builds_it(architecture):
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    changes = {"moe_intermediate_size": 24, "num_experts": 4} if architecture == "qwen3_moe" else {}
    config = AutoConfig.for_model(
        architecture,
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        vocab_size=64,
        tie_word_embeddings=architecture == "qwen3",
        **changes,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    built = sum(parameter.numel() for parameter in model.parameters())
    assert shape_of(config.to_dict(), architecture).parameters == built


def test_a_family_that_ties_its_output_does_so_where_nothing_is_said():
    """With the sizes of SmolLM3-3B; transformers takes a family's default for what a config.json leaves out."""
    sizes = {"num_hidden_layers": 36, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4}
    document = {"model_type": "smollm3", **sizes, "intermediate_size": 11008, "vocab_size": 128256}
    assert shape_of(document, "SmolLM3-3B").parameters == 3_075_098_624
    untied = {**document, "tie_word_embeddings": False}
    assert shape_of(untied, "SmolLM3-3B").parameters == 3_075_098_624 + 128256 * 2048


def test_a_file_or_a_folder_is_read_where_it_is(tmp_path):
    document = {**source._SIZES["Qwen/Qwen3-4B"], "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(document))
    for spec in (tmp_path, tmp_path / "config.json"):
        shape, said = find_shape(str(spec))
        assert shape.layers == 1
        assert said == str(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read as a model's config.json"),
        ("[]", "it is not a JSON object"),
        ('{"model_type": "mamba"}', "of the family 'mamba', whose parameters this cannot count; it knows llama"),
        ('{"model_type": "llama"}', "is not a whole config.json: KeyError 'hidden_size'"),
        ('{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 0}', "is not a whole config.json"),
        ('{"model_type": ["llama"]}', r"of the family \['llama'\], whose parameters this cannot count"),
        ('{"model_type": "mixtral", "num_local_experts": [8]}', "is not a whole config.json: TypeError"),
    ],
)
def test_what_is_not_a_configuration_is_one_sentence(tmp_path, text, said):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=said):
        read_shape(tmp_path / "config.json")


def test_without_a_network_it_is_said_what_to_do(monkeypatch):
    import huggingface_hub

    def nothing(*_):
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", nothing)
    with pytest.raises(ModelError, match=r"config.json of some/model could not be fetched \(OSError\).*--model config"):
        find_shape("some/model")
    with pytest.raises(ModelError, match=r"no config.json at '/nowhere/at/all'"):
        find_shape("/nowhere/at/all")
    with pytest.raises(ModelError, match=r"no config.json at 'models/my--model', and it is not a Hugging Face id"):
        find_shape("models/my--model")

"""An adapter's shape says which tensors its file must hold, and travels with its publication."""

import json

import pytest

from lightning_trainer.errors import PublicationError
from lightning_trainer.serving.adapter import AdapterShape
from lightning_trainer.serving.publication import Probe, Publication, Tolerance

BASE = {
    "model.embed_tokens.weight": (11, 5),
    "model.layers.0.self_attn.q_proj.weight": (6, 5),
    "model.layers.0.self_attn.q_proj.bias": (6,),
    "model.layers.0.mlp.down_proj.weight": (5, 7),
    "model.norm.weight": (5,),
}


def publication(adapter: AdapterShape | None) -> Publication:
    probe, tolerance = Probe(((1, 2),), ((-0.5,),)), Tolerance(1e-3, 1e-4)
    return Publication("p", 1, "/w", "ab" * 16, 2, "float32", probe, tolerance, adapter)


def test_a_is_rank_by_inputs_and_b_outputs_by_rank():
    assert AdapterShape(3, 6, ("q_proj",)).tensor_shapes(BASE) == {
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (3, 5),
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (6, 3),
    }
    assert len(AdapterShape(3, 6, ("down_proj", "q_proj")).tensor_shapes(BASE)) == 4
    assert AdapterShape(3, 6, ("proj",)).tensor_shapes(BASE) == {}


@pytest.mark.parametrize("adapter", [None, AdapterShape(3, 6, ("down_proj", "q_proj"))])
def test_it_travels_with_its_publication(adapter):
    sent = publication(adapter)
    assert Publication.from_json(json.loads(json.dumps(sent.to_json()))) == sent


def test_what_was_stored_before_there_were_adapters_can_be_read():
    document = publication(None).to_json()
    del document["adapter"]
    assert Publication.from_json(document) == publication(None)


@pytest.mark.parametrize(
    ("adapter", "because"),
    [
        ({"rank": 0, "alpha": 6, "target_modules": ["q"]}, "adapter: rank is 0"),
        ({"rank": 3, "alpha": 1.5, "target_modules": ["q"]}, "adapter: alpha is 1.5"),
        ({"rank": 3, "alpha": 6, "target_modules": []}, "it must name linear layers"),
        ({"rank": 3, "alpha": 6, "target_modules": "q"}, "it must name linear layers"),
        ({"rank": 3, "alpha": 6}, "adapter lacks target_modules"),
        (4, "adapter is int; it must be a JSON object"),
    ],
)
def test_what_is_no_adapter_is_refused(adapter, because):
    with pytest.raises(PublicationError, match=because):
        Publication.from_json({**publication(None).to_json(), "adapter": adapter})

"""What is wrapped of vLLM has to be there; on a real engine ``gateway/test_continuation.py`` tests that it fits."""

from types import SimpleNamespace

import pytest

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.host.continuation import keep_sampled_ids


def test_another_vllm_is_refused_with_the_switch_that_helps():
    with pytest.raises(EngineError, match=r"_tokenize_prompt_async.*set keep_sampled_ids = false in \[engine\]"):
        keep_sampled_ids(SimpleNamespace(renderer=SimpleNamespace()))


def test_a_tokenizer_that_decodes_in_its_own_way_is_left_alone(caplog):
    async def tokenize(prompt, params): ...

    renderer = SimpleNamespace(_tokenize_prompt_async=tokenize, _executor=None, tokenizer=object())
    engine = SimpleNamespace(renderer=renderer, generate=tokenize)
    keep_sampled_ids(engine)
    assert (renderer._tokenize_prompt_async, engine.generate) == (tokenize, tokenize)
    assert "keep_sampled_ids has no effect: the tokenizer is a object" in caplog.text

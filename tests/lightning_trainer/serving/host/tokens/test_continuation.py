"""What is wrapped of vLLM has to be there; on a real engine ``gateway/test_continuation.py`` tests that it fits."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.host.tokens.continuation import begin_turn, keep_sampled_ids


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


@pytest.mark.parametrize(("end", "kept"), [("length", 5), ("stop", 5), ("abort", 0), ("error", 0), (None, 0)])
async def test_only_a_complete_answer_is_remembered(end: str | None, kept: int):
    """When an engine aborts cannot be chosen from outside, so what it would say is said here."""
    from transformers import PreTrainedTokenizerBase

    class Letters(PreTrainedTokenizerBase):
        """Ids are code points; those from 1000 on have no text."""

        def __init__(self) -> None: ...

        def encode(self, text, **_):
            return list(map(ord, text))

        def decode(self, token_ids, **_):
            return "".join(chr(id) for id in token_ids if id < 1000)

    letters = Letters()

    async def tokenize(prompt, params):
        return {**prompt, "prompt_token_ids": letters.encode(prompt["prompt"])}

    async def generate(prompt, sampling_params, request_id):
        for ids, reason in (([97, 1000], None), ([98], end)):
            choice = SimpleNamespace(index=0, token_ids=ids, finish_reason=reason)
            yield SimpleNamespace(outputs=[choice], finished=ids == [98])

    with ThreadPoolExecutor(1) as executor:
        renderer = SimpleNamespace(
            _tokenize_prompt_async=tokenize, _executor=executor, tokenizer=letters, get_tokenizer=lambda: letters
        )
        engine = SimpleNamespace(renderer=renderer, generate=generate)
        keep_sampled_ids(engine)
        limits = SimpleNamespace(max_input_tokens=None, truncate_prompt_tokens=None)
        asked = SimpleNamespace(output_kind=SimpleNamespace(name="DELTA"), n=1)
        for words in ("?:", "?:ab!"):
            turn = begin_turn([(b"x-lightning-conversation", b"a")])
            tokens = await renderer._tokenize_prompt_async({"prompt": words}, limits)
            assert [output async for output in engine.generate(tokens, asked, "1")][-1].finished
    assert turn is not None
    assert turn.kept_tokens == kept
    assert (tokens["prompt_token_ids"] == [63, 58, 97, 1000, 98, 33]) is (kept == 5)

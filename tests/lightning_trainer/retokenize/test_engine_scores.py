"""A real engine: ids made again from what a chat said are its own, and its scores of them are what it sampled with."""

import httpx
import pytest
from lightning_instrumentation.spans.messages import input_messages, output_message

from lightning_trainer.errors import EngineError
from lightning_trainer.retokenize.grading import EngineScorer, UnscorableError, retokenized
from lightning_trainer.retokenize.texts import Words
from lightning_trainer.retokenize.tokenizer import PolicyTokenizer
from lightning_trainer.types import Fidelity

pytestmark = pytest.mark.engine

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}
SYSTEM = {"role": "system", "content": "Brief."}
# The tokenizer writes a token a byte and the engine's context is 256 tokens, so what is said is short.
CHATS = {
    "plain": [{"role": "user", "content": "2+3?"}],
    "with a tool": [SYSTEM, {"role": "user", "content": "2+3?"}],
    "several turns": [
        SYSTEM,
        {"role": "user", "content": "Was gibt 2+3? äöü"},
        {"role": "assistant", "content": "5"},
        {"role": "user", "content": "sure?"},
    ],
    "after a tool": [
        SYSTEM,
        {"role": "user", "content": "2+3?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ],
}


@pytest.fixture(scope="module")
def scorer(engine):
    with EngineScorer(f"{engine.base_url}/v1", "tiny", headers=dict(engine.process.headers)) as scorer:
        yield scorer


@pytest.mark.parametrize("name", CHATS)
def test_the_ids_are_the_engines_own(engine, scorer, tiny_model, make_call, name: str) -> None:
    tools = [TOOL] if name == "with a tool" else []
    body = {
        "model": "tiny",
        "messages": CHATS[name],
        "max_tokens": 12,
        "temperature": 1.0,
        # The random model would sample bytes that are not text: printable ASCII and the end token are left to it.
        "allowed_token_ids": [2, *range(3, 97)],
        "return_token_ids": True,
        **({"tools": tools} if tools else {}),
    }
    headers = dict(engine.process.headers)
    answer = httpx.post(f"{engine.base_url}/v1/chat/completions", json=body, headers=headers, timeout=120).json()
    assert "choices" in answer, answer
    (choice,) = answer["choices"]
    words = Words(
        prompt=tuple(input_messages(CHATS[name])),
        answer=output_message(
            "assistant",
            content=choice["message"]["content"],
            reasoning=None,
            refusal=None,
            tool_calls=[],
            finish_reason=choice["finish_reason"],
        ),
        tools=tuple({"type": "function", **tool["function"]} for tool in tools),
        model=answer["model"],
        prompt_tokens=answer["usage"]["prompt_tokens"],
        response_tokens=answer["usage"]["completion_tokens"],
    )
    call = make_call("s", prompt=(), response=(), fidelity=Fidelity.TEXT_ONLY, behavior_logprobs=None, policy=None)
    found, reason = retokenized(call, words, PolicyTokenizer(tiny_model), "math", scorer)
    assert reason is None
    assert list(found.prompt_ids) == answer["prompt_token_ids"]
    assert list(found.response_ids) == choice["token_ids"]
    expected = engine.score([[*found.prompt_ids, *found.response_ids]])[0][len(found.prompt_ids) - 1 :]
    assert found.behavior_logprobs == pytest.approx(expected, abs=1e-4)


def test_an_engine_that_is_not_there_is_one_sentence() -> None:
    with EngineScorer("http://127.0.0.1:9/v1", "tiny") as scorer, pytest.raises(EngineError, match="cannot be asked"):
        scorer.score([1, 2, 3])


def test_a_model_that_is_not_served_is_said(engine) -> None:
    headers = dict(engine.process.headers)
    with (
        EngineScorer(f"{engine.base_url}/v1", "other", headers=headers) as scorer,
        pytest.raises(EngineError, match="404"),
    ):
        scorer.score([1, 2, 3])


def test_ids_that_it_cannot_score_are_the_calls_own_trouble(scorer) -> None:
    with pytest.raises(UnscorableError):
        scorer.score([5] * 1000)

"""Ids made again from words, with the tiny model's real tokenizer and template: confirmed, or the reason why not."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from lightning_trainer.errors import EngineError
from lightning_trainer.retokenize.grading import EngineScorer, UnscorableError, retokenized
from lightning_trainer.retokenize.texts import Words
from lightning_trainer.retokenize.tokenizer import PolicyTokenizer
from lightning_trainer.types import Fidelity

QUESTION = {"role": "user", "parts": [{"type": "text", "content": "2+3?"}]}
ANSWER = {"role": "assistant", "parts": [{"type": "text", "content": "it is 5"}]}
CALL_OF_A_TOOL = {
    "role": "assistant",
    "parts": [{"type": "tool_call", "id": "c", "name": "add", "arguments": {"a": 2, "b": 3}}],
}
END = 2


@pytest.fixture(scope="module")
def tokenizer(tiny_model) -> PolicyTokenizer:
    return PolicyTokenizer(tiny_model)


@pytest.fixture
def call(make_call):
    return make_call(
        "s",
        prompt=(),
        response=(),
        fidelity=Fidelity.TEXT_ONLY,
        behavior_logprobs=None,
        policy=None,
        policy_version=None,
    )


def words(tokenizer, answer=ANSWER, **changes) -> Words:
    """With the counts that a server would have given."""
    prompt = tokenizer.prompt_ids([{"role": "user", "content": "2+3?"}], [])
    fields = {"prompt": (QUESTION,), "answer": answer, "model": "m", "prompt_tokens": len(prompt), "response_tokens": 8}
    return Words(**{**fields, **changes})


class Engine:
    """Scores what it is asked; the numbers do not matter here, a real engine scores in ``test_engine_scores``."""

    model = "m"

    def __init__(self, logprob: float = -1.0) -> None:
        self.logprob = logprob

    def score(self, token_ids) -> tuple[float, ...]:
        return (self.logprob,) * (len(token_ids) - 1)


def test_counts_of_the_server_confirm_the_ids(call, tokenizer) -> None:
    found, reason = retokenized(call, words(tokenizer), tokenizer, "math")
    assert reason is None
    assert found.fidelity is Fidelity.VERIFIED
    assert tokenizer.decoded(found.prompt_ids).endswith("<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decoded(found.response_ids) == "it is 5<|im_end|>"
    # Nobody scored them, so nothing says how likely they were.
    assert (found.behavior_logprobs, found.policy_version) == (None, None)


def test_an_answer_that_was_cut_has_no_end_token(call, tokenizer) -> None:
    cut = replace(call, finish_reason="length")
    found, _ = retokenized(cut, words(tokenizer, response_tokens=7), tokenizer, "math")
    assert found.response_ids[-1] != END
    # One that a stop sequence ended has none either: the count says so.
    found, _ = retokenized(call, words(tokenizer, response_tokens=7), tokenizer, "math")
    assert found.response_ids[-1] != END


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompt_tokens": 3}, "the server counted 3 prompt tokens"),
        ({"response_tokens": 3}, "the server counted 3 response tokens"),
        ({"prompt_tokens": None}, "nothing confirms them"),
        ({"answer": None}, "no words of it were recorded"),
        ({"prompt": ({"role": "user", "parts": [{"type": "uri"}]},)}, "not text"),
        ({"answer": {"role": "user", "parts": []}}, "not of the assistant"),
    ],
)
def test_what_is_not_confirmed_stays_text(call, tokenizer, changes: dict, sentence: str) -> None:
    found, reason = retokenized(call, words(tokenizer, **changes), tokenizer, "math")
    assert found == call
    assert reason is not None
    assert sentence in reason


def test_words_that_the_tokenizer_does_not_give_back_stay_text(call, tokenizer) -> None:
    strange = {"role": "assistant", "parts": [{"type": "text", "content": "\ud800"}]}
    found, reason = retokenized(call, words(tokenizer, strange), tokenizer, "math")
    assert found == call
    assert reason is not None


def test_a_tool_call_is_spelled_as_the_template_writes_it(call, tokenizer) -> None:
    found, reason = retokenized(
        replace(call, finish_reason="tool_calls"),
        words(tokenizer, CALL_OF_A_TOOL, response_tokens=None, prompt_tokens=None),
        tokenizer,
        "math",
        Engine(),
    )
    assert reason is None
    assert tokenizer.decoded(found.response_ids) == (
        '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call><|im_end|>'
    )


def test_scores_of_the_model_that_answered_are_behavior_logprobs(call, tokenizer) -> None:
    found, _ = retokenized(call, words(tokenizer, model="m@v4"), tokenizer, "math", _named("m@v4"))
    assert found.behavior_logprobs == (-1.0,) * 8
    assert (found.policy, found.policy_version) == ("math", 4)


def test_scores_of_another_model_or_temperature_confirm_and_are_not_behavior_logprobs(call, tokenizer) -> None:
    for of_call, engine in ((call, _named("other")), (replace(call, temperature=0.5), Engine())):
        found, reason = retokenized(of_call, words(tokenizer), tokenizer, "math", engine)
        assert reason is None
        assert found.behavior_logprobs is None


def test_a_token_that_cannot_have_been_sampled_refutes_the_ids(call, tokenizer) -> None:
    for logprob in (-30.0, float("nan")):
        found, reason = retokenized(call, words(tokenizer), tokenizer, "math", Engine(logprob))
        assert found == call
        assert reason is not None
        assert "not sampled" in reason


def test_ids_that_the_engine_does_not_score_stay_text(call, tokenizer) -> None:
    class Full(Engine):
        def score(self, token_ids) -> tuple[float, ...]:
            raise UnscorableError("too many")

    assert retokenized(call, words(tokenizer), tokenizer, "math", Full()) == (call, "too many")


def _named(model: str) -> Engine:
    engine = Engine()
    engine.model = model
    return engine


def test_what_is_no_engine_is_one_sentence(monkeypatch):
    page = httpx.MockTransport(lambda _: httpx.Response(200, text="<html>It works!</html>"))
    client = partial(httpx.Client, transport=page)
    monkeypatch.setattr(httpx, "Client", client)
    with EngineScorer("http://proxy/v1", "m") as scorer, pytest.raises(EngineError, match="without prompt_logprobs"):
        scorer.score([1, 2])
    with pytest.raises(EngineError, match=r"'http://\[::1/v1' is not a URL"):
        EngineScorer("http://[::1/v1", "m")


def test_a_model_with_named_templates_writes_prompts_as_the_engine_does(tmp_path: Path, tiny_model: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("TOOLS")
    user = {"role": "user", "content": "hi"}
    tool = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}
    found = PolicyTokenizer(folder)
    assert found.decoded(found.prompt_ids([user], [tool])) == "TOOLS"
    assert found.prompt_ids([user], []) == PolicyTokenizer(tiny_model).prompt_ids([user], [])


@pytest.mark.parametrize(("stops", "end"), [([0, END], END), ([0], 0), (None, 0)])
def test_an_answer_is_closed_by_what_ends_a_turn_where_generation_stops_at_it(tmp_path, tiny_model, stops, end) -> None:
    """Before: with the tokenizer's end token, which is another one in Gemma and Phi-3."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": "<|endoftext|>"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    found = PolicyTokenizer(folder)
    user, calls = {"role": "user", "content": "2+3?"}, [{"function": {"name": "add", "arguments": {"a": 2}}}]
    for answer in ({"content": "5"}, {"content": "", "tool_calls": calls}):
        closed = next(found.answers([user], [], {"role": "assistant", **answer}, truncated=False))
        assert closed[-1] == end
        assert closed.count(END) == (end == END or "tool_calls" in answer)


def test_a_developers_message_is_rendered_as_the_gateway_serves_it(tokenizer) -> None:
    """Before: as a role that the template does not know."""
    told, user = {"content": "Answer in French."}, {"role": "user", "content": "Hi"}
    as_developer, as_system = (
        tokenizer.prompt_ids([{"role": role, **told}, user], []) for role in ("developer", "system")
    )
    assert as_developer == as_system

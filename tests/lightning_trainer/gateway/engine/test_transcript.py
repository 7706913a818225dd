"""What the gateway reads of an answer is what the client reads: one reader for both."""

import json

from lightning_trainer.gateway.engine.transcript import Transcript


def _streamed(*deltas: dict) -> Transcript:
    transcript = Transcript(1)
    for delta in deltas:
        transcript.add({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta}]})
    return transcript


def _parts(transcript: Transcript) -> list[dict]:
    return transcript.choices[0].as_message()["parts"]


def test_a_tools_name_and_arguments_that_come_in_pieces_are_joined():
    first = {"index": 0, "id": "c1", "function": {"name": "calcu", "arguments": '{"a"'}}
    second = {"index": 0, "function": {"name": "lator", "arguments": ": 1}"}}
    (call,) = _parts(_streamed({"tool_calls": [first]}, {"tool_calls": [second]}))
    assert (call["id"], call["name"], call["arguments"]) == ("c1", "calculator", {"a": 1})


def test_reasoning_under_either_name_and_a_refusal_are_kept():
    transcript = _streamed({"reasoning_content": "so "}, {"reasoning": "then"}, {"refusal": "I cannot"})
    said = json.dumps(_parts(transcript))
    assert "so then" in said
    assert "I cannot" in said


def test_a_token_without_a_log_probability_leaves_the_choice_unscored():
    transcript = Transcript(1)
    entries = [{"logprob": -0.5}, {"logprob": None}]
    transcript.add({"choices": [{"token_ids": [5, 6], "logprobs": {"content": entries}, "finish_reason": "stop"}]})
    assert transcript.choices[0].token_ids == [5, 6]
    assert len(transcript.choices[0].logprobs) != 2
    assert transcript.complete

"""Cutting ids and logprobs out gives exactly what reading everything gives, or is not done."""

import copy
import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning_instrumentation.spans.packing import NumberText, unpack_logprobs, unpack_token_ids
from lightning_instrumentation.wire.api import Wanted
from lightning_instrumentation.wire.chat import ChatCompletions
from lightning_instrumentation.wire.fast_extract import fast_extract

ALL = Wanted(token_ids=True, logprobs=True)
NASTY = [
    '"logprobs":',
    '\\"token_ids\\": [',
    "},",
    '"]}',
    '{"token_ids":[1]}',
    "\\",
    '"',
    "]",
    "é\n",
    '"prompt_token_ids":[1]',
]
texts = st.lists(st.one_of(st.sampled_from(NASTY), st.text(max_size=5)), max_size=4).map("".join)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)
logprobs = st.floats(-1e4, 0, allow_nan=False)


@st.composite
def answers(draw):
    choices = []
    for index in range(draw(st.integers(0, 3))):
        sampled = draw(ids)
        entries = [
            {"token": draw(texts), "logprob": draw(logprobs), "bytes": draw(st.none() | ids), "top_logprobs": []}
            for _ in sampled
        ]
        choices.append(
            {
                "index": index,
                "message": {"role": "assistant", "content": draw(texts)},
                "logprobs": draw(st.sampled_from([None, {"content": entries}, {"content": entries, "refusal": None}])),
                "finish_reason": "stop",
                "token_ids": draw(st.sampled_from([None, sampled])),
            }
        )
    return {"id": draw(texts), "model": "m", "choices": choices, "prompt_token_ids": draw(st.none() | ids)}


def read(document) -> tuple:
    answer = ChatCompletions().answer()
    answer.add(document)
    said = [(plain(c.token_ids), plain(c.logprobs, "f"), c.as_message()) for _, c in sorted(answer.choices.items())]
    counts = [value for key, value in answer.attributes(capture_content=False).items() if "tokens" in key]
    return answer.response_id, plain(answer.prompt_ids), said, counts


def plain(numbers, typecode: str = "i") -> list[float]:
    read = {"i": unpack_token_ids, "f": unpack_logprobs}[typecode]
    return list(array(typecode, read(numbers) if isinstance(numbers, NumberText) else numbers or ()))


@pytest.mark.long
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("escaped", [False, True])
def test_it_is_what_reading_everything_gives(separators, escaped):
    @given(answers())
    def holds(answer):
        data = json.dumps(answer, separators=separators, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
        found = fast_extract(data)
        if any(
            choice["logprobs"] and choice["logprobs"]["content"] and not choice["token_ids"]
            for choice in answer["choices"]
        ):
            assert found is None  # whose numbers these are is not known
            return
        assert found is not None
        assert read(found.part) == read(answer)
        hidden = copy.deepcopy(answer)
        ChatCompletions().hide(hidden, ALL)
        assert json.loads(found.text) == found.document == hidden

    holds()


ENTRY = {"token": "a", "logprob": -1.0, "bytes": None, "top_logprobs": []}


@pytest.mark.parametrize(
    "changed",
    [
        {"choices": [{"token_ids": [1], "token_ids_too": 1, "message": {"token_ids": [2]}}]},
        {"choices": [{"message": {"token_ids": [2]}}]},
        {"choices": [{"prompt_token_ids": [1]}], "prompt_token_ids": [1]},
        {"choices": [{"token_ids": "1"}]},
        {"choices": [{"token_ids": [[1], [2]]}]},
        {"choices": [{"token_ids": [1.5]}]},
        {"choices": [{"token_ids": [-1]}]},
        {"choices": [{"logprobs": {"content": [{**ENTRY, "top_logprobs": [{"token": "b", "logprob": -2.0}]}]}}]},
        {"choices": [{"token_ids": [1], "logprobs": {"content": [{**ENTRY, "top_logprobs": [ENTRY]}, ENTRY]}}]},
        {"choices": [{"token_ids": [1, 2], "logprobs": {"content": [{**ENTRY, "top_logprobs": [ENTRY]}, ENTRY]}}]},
        {"choices": [{"token_ids": [1, 2], "logprobs": {"content": [ENTRY]}}]},
        {"choices": [{"logprobs": {"content": [ENTRY]}}]},
        {"choices": [{"logprobs": {"content": [ENTRY], "more": 1}}]},
        {"choices": [{"logprobs": {"content": [ENTRY], "refusal": [ENTRY]}}]},
        {"choices": [{"logprobs": {"content": [], "refusal": [ENTRY]}}]},
        {"choices": [{"logprobs": {"content": [{"token": "a"}]}}, {"logprobs": {"content": [ENTRY]}}]},
        {"choices": [{"logprobs": {"content": [{**ENTRY, "more": 1}]}}, {"logprobs": {"content": [ENTRY]}}]},
        {"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [-1.0]}}]},
        {"choices": {"token_ids": [1]}},
        {"token_ids": [1]} | {"choices": "none"},
        {"choices": [{"index": 0}]},
        [{"token_ids": [1]}],
    ],
)
def test_another_form_is_left_alone(changed):
    assert fast_extract(json.dumps(changed).encode()) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b'{"choices":[{"token_ids":[1',
        b'{"choices":[{"token_ids":[1,]}]}',
        b'{"choices":[{"token_ids":[1]}]',
        b'{"choices":[{"token_ids":[1],"token_ids":[2]}]}',
        b'{"choices":[{"token_ids":',
    ],
)
def test_what_is_no_answer_is_left_alone(data):
    assert fast_extract(data) is None


def test_ids_of_one_choice_that_come_in_two_forms_are_one_list():
    choice = ChatCompletions().answer().choice(0)
    for ids in (NumberText("[1, 2]"), [3], NumberText("[4]")):
        choice.add_token_ids(ids)
    assert choice.token_ids == [1, 2, 3, 4]

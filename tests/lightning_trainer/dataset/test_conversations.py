"""Conversations of chat messages: every demonstration in one place, in the forms that other projects read."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.dataset.examples import Example
from lightning_trainer.dataset.formats.chat_rows import chat_rows
from lightning_trainer.dataset.formats.conversations import conversations, messages_row, openai_row
from lightning_trainer.dataset.forms import Form, Purpose, form_of, needs_of, write_demonstrations, write_preferences
from lightning_trainer.dataset.selection import Demonstrations, Pair, Preferences
from lightning_trainer.errors import DatasetError
from lightning_trainer.types import Fidelity

SEARCH = {"type": "function", "function": {"name": "search", "description": "", "parameters": {"type": "object"}}}
ASKED: tuple[dict[str, Any], ...] = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+3?"})
CALLED: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "search", "arguments": {"q": "2+3"}}}],
}
FOUND: dict[str, Any] = {"role": "tool", "tool_call_id": None, "content": "5"}
SAID: dict[str, Any] = {"role": "assistant", "content": "It is 5.", "reasoning_content": "as found"}


def _example(prompt: tuple[dict, ...], answer: dict, *, attempt: str = "a1", tools: tuple[dict, ...] = ()) -> Example:
    return Example(
        call_id="c/0",
        agent="solver",
        attempt_id=attempt,
        group_id="g",
        fidelity=Fidelity.TEXT_ONLY,
        model="m",
        reward=1.0,
        prompt=prompt,
        answer=answer,
        tools=tools,
        prompt_ids=(),
        response_ids=(),
    )


def _shown(rows: list[dict]) -> Counter[str]:
    """What a reader that knows weights imitates: prompts with their answers, as JSON."""
    pairs = [(one["prompt"], one["completion"]) for row in rows for one in chat_rows(row, "sft", "row")]
    return Counter(
        json.dumps([{**one, "weight": None} for one in [*prompt, answer]], sort_keys=True) for prompt, answer in pairs
    )


def _expected(examples: list[Example]) -> Counter[str]:
    return Counter(
        json.dumps([{**one, "weight": None} for one in [*(example.prompt or ()), example.answer or {}]], sort_keys=True)
        for example in examples
    )


def _written(examples: list[Example], path: Path, form: Form = Form.MESSAGES) -> list[dict]:
    assert write_demonstrations(Demonstrations(tuple(examples), (), ()), path, form, tokens=False) == len(examples)
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_calls_that_continue_each_other_are_one_conversation(tmp_path) -> None:
    first = _example(ASKED, CALLED, tools=(SEARCH,))
    second = _example((*ASKED, CALLED, FOUND), SAID, tools=(SEARCH,))
    (row,) = _written([first, second], tmp_path / "m.jsonl")
    assert row == {"messages": [*ASKED, CALLED, FOUND, SAID], "tools": [SEARCH]}


def test_an_answer_that_was_sent_again_with_its_agents_name_is_the_same_one() -> None:
    """As agents of LangChain's ``create_agent`` do that have a name."""
    named = {**CALLED, "name": "solver"}
    (one,) = conversations([_example(ASKED, CALLED), _example((*ASKED, named, FOUND), SAID)])
    assert messages_row(one)["messages"] == [*ASKED, named, FOUND, SAID]


def test_answers_that_were_not_chosen_have_no_weight() -> None:
    (one,) = conversations([_example((*ASKED, CALLED, FOUND), SAID)])
    assert messages_row(one)["messages"] == [*ASKED, {**CALLED, "weight": 0}, FOUND, SAID]
    assert one.only_read == 1


def test_where_histories_fork_every_answer_is_imitated_once() -> None:
    again = {"role": "user", "content": "sure?"}
    yes, no = {"role": "assistant", "content": "yes"}, {"role": "assistant", "content": "no"}
    rows = [
        messages_row(one)["messages"]
        for one in conversations(
            [
                _example(ASKED, SAID),
                _example((*ASKED, SAID, again), yes),
                _example((*ASKED, SAID, again), no),  # a second choice, or a retry
                _example(ASKED, SAID, attempt="a2"),
            ]
        )
    ]
    assert rows == [[*ASKED, SAID, again, yes], [*ASKED, {**SAID, "weight": 0}, again, no], [*ASKED, SAID]]


def test_an_answer_whose_reasoning_the_next_call_left_out_is_not_imitated_without_it() -> None:
    without = {"role": "assistant", "content": "It is 5."}
    again = {"role": "user", "content": "sure?"}
    rows = [
        messages_row(one)["messages"]
        for one in conversations([_example(ASKED, SAID), _example((*ASKED, without, again), SAID)])
    ]
    assert rows == [[*ASKED, SAID], [*ASKED, {**without, "weight": 0}, again, SAID]]


_texts = st.sampled_from(["a", "b"])
_turns = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), _texts), min_size=1, max_size=5)


@given(st.lists(st.tuples(_turns, _texts, st.sampled_from(["a1", "a2"])), max_size=12))
def test_whatever_was_said_each_demonstration_is_in_one_place(said) -> None:
    examples = [
        _example(
            tuple({"role": role, "content": text} for role, text in turns),
            {"role": "assistant", "content": answer},
            attempt=attempt,
        )
        for turns, answer, attempt in said
    ]
    made = conversations(examples)
    assert _shown([messages_row(one) for one in made]) == _expected(examples)
    assert _shown([openai_row(one) for one in made]) == _expected(examples)


def test_hugging_face_loads_conversations_and_pairs_of_them(tmp_path) -> None:
    import datasets

    _written([_example((*ASKED, CALLED, FOUND), SAID, tools=(SEARCH,)), _example(ASKED, SAID)], tmp_path / "m.jsonl")
    no = {"role": "assistant", "content": "no"}
    pair = Pair(_example(ASKED, SAID), _example(ASKED, no))
    assert write_preferences(Preferences((pair,), (), ()), tmp_path / "p.jsonl", Form.MESSAGES) == 1

    def loaded(name: str) -> list[dict]:
        found = datasets.load_dataset("json", data_files=str(tmp_path / name), cache_dir=str(tmp_path / "cache"))
        return found["train"].to_list()  # pyright: ignore[reportArgumentType, reportIndexIssue, reportCallIssue, reportAttributeAccessIssue]

    tooled, plain = loaded("m.jsonl")
    assert [one["role"] for one in tooled["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert tooled["messages"][2]["tool_calls"][0]["function"] == CALLED["tool_calls"][0]["function"]
    assert [one.get("weight") for one in tooled["messages"]] == [None, None, 0, None, None]
    assert not plain["tools"]
    (row,) = loaded("p.jsonl")
    assert [one["content"] for one in row["chosen"]] == ["Be brief.", "2+3?", "It is 5."]
    assert [one["content"] for one in row["rejected"]] == ["Be brief.", "2+3?", "no"]


def test_verls_dataset_finds_its_columns(tmp_path) -> None:
    """``MultiTurnSFTDataset`` takes ``messages`` and ``tools`` of ``pandas.read_parquet`` as lists of objects."""
    import pandas

    examples = [_example((*ASKED, CALLED, FOUND), SAID, tools=(SEARCH,)), _example(ASKED, SAID)]
    _written(examples, tmp_path / "m.parquet")
    frame = pandas.read_parquet(tmp_path / "m.parquet", dtype_backend="pyarrow")
    tooled = frame["messages"].tolist()[0]
    assert [one["role"] for one in tooled] == ["system", "user", "assistant", "tool", "assistant"]
    assert tooled[2]["tool_calls"][0]["function"] == CALLED["tool_calls"][0]["function"]
    assert frame["tools"].tolist()[0][0]["function"]["name"] == "search"


def test_objects_that_parquet_would_give_the_fields_of_others_are_refused(tmp_path) -> None:
    called = [{"type": "function", "function": {"name": "read", "arguments": {"path": "x"}}}]
    other = _example(ASKED, {**CALLED, "tool_calls": called})
    with pytest.raises(
        DatasetError, match=r"every object has the fields of all.*write --format messages to a \*\.jsonl"
    ):
        _written([_example(ASKED, CALLED), other], tmp_path / "m.parquet")
    assert list(tmp_path.iterdir()) == []


def test_openai_gets_arguments_as_text_calls_with_ids_and_no_reasoning(tmp_path) -> None:
    (row,) = _written([_example((*ASKED, CALLED, FOUND), SAID, tools=(SEARCH,))], tmp_path / "m.jsonl", Form.OPENAI)
    _, _, called, found, said = row["messages"]
    (call,) = called["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"q": "2+3"}
    assert call["id"] == found["tool_call_id"] == "call_2_0"
    assert (called["weight"], said) == (0, {"role": "assistant", "content": "It is 5."})
    assert row["tools"] == [SEARCH]


def test_openai_gets_no_null_for_what_is_not_known_of_a_tool() -> None:
    tool = {"type": "function", "function": {"name": "search", "description": None, "parameters": None}}
    (one,) = conversations([_example(ASKED, SAID, tools=(tool,))])
    assert openai_row(one)["tools"] == [{"type": "function", "function": {"name": "search"}}]
    assert messages_row(one)["tools"] == [tool]


def test_openais_preference_tuning_has_its_own_columns(tmp_path) -> None:
    pair = Pair(_example(ASKED, CALLED, tools=(SEARCH,)), _example(ASKED, SAID, tools=(SEARCH,)))
    write_preferences(Preferences((pair,), (), ()), tmp_path / "p.jsonl", Form.OPENAI)
    row = json.loads((tmp_path / "p.jsonl").read_text())
    assert row["input"] == {"messages": list(ASKED), "tools": [SEARCH]}
    assert row["preferred_output"][0]["tool_calls"][0]["id"] == "call_2_0"
    assert row["non_preferred_output"] == [{"role": "assistant", "content": "It is 5."}]
    (shown,) = chat_rows(row, "dpo", "row")
    assert (shown["prompt"], shown["tools"]) == (list(ASKED), [SEARCH])


@pytest.mark.parametrize("form", [Form.MESSAGES, Form.OPENAI])
def test_what_conversations_do_not_hold_is_refused(form) -> None:
    with pytest.raises(DatasetError, match=f"--format {form} is what was said, for --for sft and dpo"):
        form_of(Path("x.jsonl"), form, Purpose.RL)
    with pytest.raises(DatasetError, match=f"--format {form} has no ids"):
        needs_of(form, Purpose.SFT, tokens=True)
    with pytest.raises(DatasetError, match=r"another ending than \.parquet"):
        form_of(Path("x.parquet"), Form.OPENAI, Purpose.SFT)

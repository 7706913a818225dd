"""Demonstrations and pairs as ids: recorded ones where they are the policy's, else the words by its template."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightning_trainer.dataset.demonstrations import read_demonstrations
from lightning_trainer.dataset.forms import Form, write_demonstrations, write_preferences
from lightning_trainer.dataset.reading import read_recording
from lightning_trainer.dataset.selection import demonstrations, preferences
from lightning_trainer.errors import DatasetError
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.retokenize.tokenizer import PolicyTokenizer

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
PROMPT = [{"role": "user", "content": "2+3?"}]
YES, NO = {"role": "assistant", "content": "five"}, {"role": "assistant", "content": "six"}
NOTHING = {"role": "assistant", "content": None}
VOCABULARY = 320


@pytest.fixture(scope="module")
def tokenizer():
    made = PolicyTokenizer(resolve_model("random:tiny", model_cache()), TEMPLATE)
    return lambda: made


@pytest.fixture
def write(tmp_path):
    def make(*rows: dict) -> Path:
        path = tmp_path / "shown.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path

    return make


def _never():
    raise AssertionError("there are no words")


def test_recorded_ids_are_shown_as_they_are(write):
    path = write({"schema": "examples/1", "agent": "solver", "prompt_ids": [1, 2], "response_ids": [3, 4]})
    (row,) = read_demonstrations(path, "sft", VOCABULARY, _never)
    assert (row.name, row.agent) == ("shown.jsonl/1", "solver")
    assert (list(row.prompt_ids), [list(ids) for ids in row.answers]) == ([1, 2], [[3, 4]])


def test_words_are_written_by_the_template_and_closed(write, tokenizer):
    for row in (
        {"schema": "examples/1", "prompt": PROMPT, "answer": YES, "tools": []},
        {"prompt": PROMPT, "completion": [YES]},  # TRL's
        {"prompt": PROMPT, "answer": YES, "prompt_ids": [9], "response_ids": [9, 9]},  # ids of another tokenizer
    ):
        (shown,) = read_demonstrations(write(row), "sft", VOCABULARY, tokenizer)
        spelled = tokenizer().decoded([*shown.prompt_ids, *shown.answers[0]])
        assert spelled == "<|im_start|>user: 2+3?<|im_end|><|im_start|>assistant: five<|im_end|>"
        assert tokenizer().decoded(shown.answers[0]) == "five<|im_end|>"


@pytest.mark.parametrize(
    ("row", "objective", "said"),
    [
        ({"prompt": PROMPT, "answer": YES, "prompt_ids": [9], "response_ids": [9], "truncated": True}, "sft", ["five"]),
        (
            {"prompt": PROMPT, "chosen_answer": YES, "rejected_answer": NO, "rejected_truncated": True},
            "dpo",
            ["five<|im_end|>", "six"],
        ),
    ],
)
def test_words_that_a_limit_of_tokens_ended_are_not_closed(row, objective, said, write, tokenizer):
    """Before, they taught to stop in the middle of a sentence."""
    (shown,) = read_demonstrations(write(row), objective, VOCABULARY, tokenizer)
    assert [tokenizer().decoded(ids) for ids in shown.answers] == said


def test_ids_that_spell_the_words_stay_exact(write, tokenizer):
    """However the engine rendered the prompt: here without any template."""
    ids = list(tokenizer().text_ids("five"))
    row = {"prompt": PROMPT, "answer": YES, "prompt_ids": [7, 8], "response_ids": ids}
    (shown,) = read_demonstrations(write(row), "sft", VOCABULARY, tokenizer)
    assert (list(shown.prompt_ids), list(shown.answers[0])) == ([7, 8], ids)


def test_pairs_of_ours_and_of_trl(write, tokenizer):
    ours = {"schema": "pairs/1", "prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3, 4], "agent": "a"}
    (row,) = read_demonstrations(write(ours), "dpo", VOCABULARY, _never)
    assert [list(ids) for ids in row.answers] == [[2], [3, 4]]
    (row,) = read_demonstrations(
        write({"prompt": PROMPT, "chosen": [YES], "rejected": [NO]}), "dpo", VOCABULARY, tokenizer
    )
    assert [tokenizer().decoded(ids) for ids in row.answers] == ["five<|im_end|>", "six<|im_end|>"]


def test_trls_ids_and_mask(write):
    (row,) = read_demonstrations(
        write({"input_ids": [5, 6, 7], "completion_mask": [0, 1, 1]}), "sft", VOCABULARY, _never
    )
    assert (list(row.prompt_ids), list(row.answers[0])) == ([5], [6, 7])


@pytest.mark.parametrize(
    ("row", "objective", "said"),
    [
        ({"schema": "pairs/1"}, "sft", "has the schema 'pairs/1', and sft reads examples/1; make it with lightning"),
        ({"schema": "examples/1"}, "dpo", "and dpo reads pairs/1"),
        ({"prompt_ids": [1], "response_ids": [320]}, "sft", "row 1 holds the token id 320, and the policy has 320"),
        ({"prompt_ids": [1]}, "sft", "row 1 has neither ids nor words that can be shown"),
        ({"prompt_ids": [1], "chosen_ids": [2]}, "dpo", "row 1 has neither ids nor words"),
        ({"input_ids": [5, 6, 7], "completion_mask": [0, 1, 0]}, "sft", "row 1: its completion_mask is not zeros"),
        ({"input_ids": [5], "completion_mask": [1]}, "sft", "row 1: its completion_mask is not zeros"),
        ({"prompt": PROMPT, "completion": [YES, PROMPT[0]]}, "sft", "row 1: its answer is not one message"),
        ({"prompt": PROMPT, "answer": NOTHING}, "sft", "row 1: the words are not text"),
        ({"prompt": [], "completion": [YES]}, "sft", "row 1 has neither ids nor words"),
        ({"prompt": PROMPT, "completion": [YES], "tools": [1]}, "sft", "row 1: the chat template refuses"),
        ({"input_ids": None, "completion_mask": [0, 1]}, "sft", "row 1: its completion_mask is not zeros"),
        ({"input_ids": [5, 6.5], "completion_mask": [0, 1]}, "sft", "row 1: its token ids are not a list of whole"),
        ({"input_ids": [5, -6], "completion_mask": [0, 1]}, "sft", "row 1 holds the token id -6"),
        ({"messages": [PROMPT[0]]}, "sft", "row 1: its messages have no answer of the assistant to imitate"),
        ({"messages": "2+3?"}, "sft", "row 1: its messages are not a list of chat messages"),
        ({"messages": [YES]}, "sft", "row 1 has neither ids nor words"),
        ({"prompt": "2+3?", "completion": "five", "tools": "["}, "sft", "row 1: its tools are not JSON"),
        ({"chosen": "five", "rejected": "six"}, "dpo", "row 1 has neither ids nor words"),
        ({"chosen": [*PROMPT, YES], "rejected": [*PROMPT, NO, NO]}, "dpo", "row 1: its answer is not one message"),
        ({"preferred_output": [YES]}, "dpo", "row 1: it has a preferred_output and no input with messages"),
        ({"conversations": "2+3?"}, "sft", "row 1: its conversations are not a list"),
        (
            {"conversations": [{"from": "gpt"}]},
            "sft",
            "row 1: its conversations hold {'from': 'gpt'}, which is not an object",
        ),
        ({"conversations": [{"from": "function_call", "value": "look"}]}, "sft", "row 1: a function_call is not JSON"),
        ({"prompt_ids": [1], "response_ids": 7}, "sft", "row 1: its token ids are not a list of whole numbers"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_its_row(row, objective, said, write, tokenizer):
    with pytest.raises(DatasetError, match=said):
        read_demonstrations(write(row), objective, VOCABULARY, tokenizer)


def test_an_empty_file_is_refused(write):
    with pytest.raises(DatasetError, match=r"has no rows; make some with lightning-trainer build --for sft"):
        read_demonstrations(write(), "sft", VOCABULARY, _never)


@pytest.mark.parametrize(("name", "form"), [("x.parquet", Form.PARQUET), ("x.jsonl", Form.JSONL)])
def test_what_the_command_builds_can_be_shown(name, form, attempt_spans, make_policy, tokenizer, tmp_path):
    five, six = (list(tokenizer().text_ids(text)) for text in ("five", "six"))
    spans = [
        *attempt_spans("a1", 1, reward=1.0, answer="five", response=five),
        *attempt_spans("a2", 2, reward=0.0, answer="six", response=six),
    ]
    recording, path = read_recording(spans, with_words=True), tmp_path / name
    write_demonstrations(demonstrations(recording, make_policy()), path, form, tokens=False)
    rows = read_demonstrations(path, "sft", VOCABULARY, tokenizer)
    assert [(row.agent, list(row.prompt_ids), list(row.answers[0])) for row in rows] == [
        ("solver", [1, 2], five),
        ("solver", [1, 2], six),
    ]
    write_preferences(preferences(recording, make_policy()), path, form)
    (row,) = read_demonstrations(path, "dpo", VOCABULARY, tokenizer)
    assert [list(ids) for ids in row.answers] == [five, six]
    with pytest.raises(DatasetError, match=r"schema .?pairs/1"):
        read_demonstrations(path, "sft", VOCABULARY, tokenizer)


def test_ids_of_another_tokenizer_are_known_by_the_tool_that_is_called(write, tokenizer):
    calls = [{"type": "function", "function": {"name": "look", "arguments": {}}}]
    answer = {"role": "assistant", "content": "", "tool_calls": calls}
    spelled = list(tokenizer().prompt_ids([{"role": "user", "content": '{"name": "look"}'}], ()))
    for ids, foreign in ((spelled, False), ([9, 9], True)):
        path = write({"prompt": PROMPT, "answer": answer, "prompt_ids": [9], "response_ids": ids})
        if foreign:  # this template writes no calls
            with pytest.raises(DatasetError, match="chat template does not write the answer's tool calls"):
                read_demonstrations(path, "sft", VOCABULARY, tokenizer)
        else:
            (shown,) = read_demonstrations(path, "sft", VOCABULARY, tokenizer)
            assert list(shown.answers[0]) == ids


def test_reasoning_that_the_template_does_not_write_is_not_left_out_in_silence(write, tokenizer):
    path = write({"prompt": PROMPT, "answer": {**YES, "reasoning_content": "two and three\n"}})
    with pytest.raises(DatasetError, match=r"row 1: the policy's chat template does not write the answer's reasoning"):
        read_demonstrations(path, "sft", VOCABULARY, tokenizer)
    template = TEMPLATE.replace("{{ m.content", "{{ m.reasoning_content | default('') | trim }}|{{ m.content")
    thinking = PolicyTokenizer(resolve_model("random:tiny", model_cache()), template)
    (shown,) = read_demonstrations(path, "sft", VOCABULARY, lambda: thinking)
    assert thinking.decoded(shown.answers[0]) == "two and three|five<|im_end|>"


@pytest.fixture(scope="module")
def calling():
    """A tokenizer whose template writes tool calls as those of Qwen2.5 and Llama 3.1 do."""
    call = "{{ c.function.name }}({{ c.function.arguments | tojson }})"
    template = TEMPLATE.replace("{{ m.content }}", "{{ m.content }}{% for c in m.tool_calls %}" + call + "{% endfor %}")
    made = PolicyTokenizer(resolve_model("random:tiny", model_cache()), template)
    return lambda: made


@pytest.mark.parametrize(
    "call",
    [
        {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"number": 412}'}},  # OpenAI's
        {"name": "look", "arguments": {"number": 412}},  # Hugging Face's
        {"function": {"name": "look", "arguments": {"number": 412}}},
    ],
)
def test_a_tool_call_of_any_form_is_written_as_the_engine_writes_it(call, write, calling):
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    prompt = [*PROMPT, called, {"role": "tool", "tool_call_id": "c", "content": "5"}]
    (shown,) = read_demonstrations(write({"prompt": prompt, "completion": [called]}), "sft", VOCABULARY, calling)
    said = 'look({"number": 412})<|im_end|>'
    assert f"<|im_start|>assistant: {said}<|im_start|>tool: 5" in calling().decoded(shown.prompt_ids)
    assert calling().decoded(shown.answers[0]) == said


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"name": "look", "arguments": '{"number": 4'}, "row 1: the answer calls 'look' with the arguments '{\"number"),
        ({"type": "function"}, "row 1: a tool call is {'type': 'function'}, without a tool's name"),
        (7, "row 1: a tool call is 7"),
    ],
)
def test_a_broken_tool_call_is_not_imitated(call, said, write, calling):
    path = write({"prompt": PROMPT, "completion": [{"role": "assistant", "content": "", "tool_calls": [call]}]})
    with pytest.raises(DatasetError, match=said):
        read_demonstrations(path, "sft", VOCABULARY, calling)


ASKED, LATER = {"role": "user", "content": "2+3?"}, {"role": "user", "content": "1+5?"}
TOLD = "<|im_start|>user: 2+3?<|im_end|><|im_start|>assistant: "
FIVE, SIX = "five<|im_end|>", "six<|im_end|>"
SAID_LATER = "<|im_start|>user: 1+5?<|im_end|><|im_start|>assistant: "
SHAREGPT = [
    {"from": speaker, "value": said}
    for speaker, said in zip(["human", "gpt"] * 2, ["2+3?", "five", "1+5?", "six"], strict=True)
]


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"prompt": "2+3?", "completion": "five"}, [(TOLD, FIVE)]),
        (
            {"messages": [ASKED, YES, LATER, NO], "tools": [], "parallel_tool_calls": False},
            [(TOLD, FIVE), (f"{TOLD}{FIVE}<|im_start|>user: 1+5?<|im_end|><|im_start|>assistant: ", SIX)],
        ),
        ({"messages": [ASKED, {**NO, "weight": 0}, ASKED, YES]}, [(f"{TOLD}{SIX}{TOLD}", FIVE)]),  # OpenAI's
        ({"prompt": "2+3?", "messages": [ASKED, {**YES, "weight": 1}], "tools": "[]"}, [(TOLD, FIVE)]),
        ({"prompt": "2+3?", "chosen": "five", "rejected": "six"}, [(TOLD, FIVE, SIX)]),
        ({"chosen": [ASKED, YES], "rejected": [ASKED, NO]}, [(TOLD, FIVE, SIX)]),
        ({"prompt": "2+3?", "chosen": [ASKED, YES], "rejected": [ASKED, NO], "messages": []}, [(TOLD, FIVE, SIX)]),
        (
            {"input": {"messages": [ASKED], "tools": []}, "preferred_output": [YES], "non_preferred_output": [NO]},
            [(TOLD, FIVE, SIX)],
        ),
        ({"conversations": SHAREGPT}, [(TOLD, FIVE), (f"{TOLD}{FIVE}{SAID_LATER}", SIX)]),
        (
            {"conversations": [SHAREGPT[0], {**SHAREGPT[1], "weight": 0}, *SHAREGPT[2:]]},
            [(f"{TOLD}{FIVE}{SAID_LATER}", SIX)],
        ),
        (
            {"conversations": SHAREGPT[:1], "chosen": SHAREGPT[1], "rejected": SHAREGPT[3], "system": ""},
            [(TOLD, FIVE, SIX)],
        ),
        ({"instruction": "2+3?", "input": "", "output": "five"}, [(TOLD, FIVE)]),
        (
            {"instruction": "Add.", "input": "2+3?", "output": "five", "system": "Be brief."},
            [("<|im_start|>system: Be brief.<|im_end|>" + TOLD.replace("2+3?", "Add.\n\n2+3?"), FIVE)],
        ),
        ({"instruction": "1+5?", "output": "six", "history": [["2+3?", "five"]]}, [(f"{TOLD}{FIVE}{SAID_LATER}", SIX)]),
        ({"instruction": "2+3?", "chosen": "five", "rejected": "six"}, [(TOLD, FIVE, SIX)]),
    ],
)
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_rows_of_other_projects_are_shown(row, shown, form, write, tokenizer, tmp_path):
    path = write(row) if form == "jsonl" else tmp_path / "shown.parquet"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    objective = "dpo" if {"chosen", "preferred_output"} & set(row) else "sft"
    found = read_demonstrations(path, objective, VOCABULARY, tokenizer)
    decoded = tokenizer().decoded
    assert [tuple(map(decoded, (one.prompt_ids, *one.answers))) for one in found] == shown
    assert len({one.name for one in found}) == len(shown)


def test_a_tool_that_sharegpt_calls(write, calling):
    called = {"from": "function_call", "value": '{"name": "look", "arguments": {"number": 412}}'}
    said = [SHAREGPT[0], called, {"from": "observation", "value": "5"}, SHAREGPT[1]]
    look, five = read_demonstrations(write({"conversations": said}), "sft", VOCABULARY, calling)
    assert calling().decoded(look.answers[0]) == 'look({"number": 412})<|im_end|>'
    assert "<|im_start|>tool: 5" in calling().decoded(five.prompt_ids)


def test_fields_that_only_other_rows_of_a_table_have_are_left_out(calling, tmp_path):
    """Parquet gives every message the fields of all, and every call the arguments of all."""
    called = [
        {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": {name: 1}}}]} for name in "ab"
    ]
    path = tmp_path / "shown.parquet"
    pq.write_table(pa.Table.from_pylist([{"messages": [ASKED, *called]}]), path)
    first, second = read_demonstrations(path, "sft", VOCABULARY, calling)
    assert calling().decoded(first.answers[0]) == 'look({"a": 1})<|im_end|>'
    assert calling().decoded(second.answers[0]) == 'look({"b": 1})<|im_end|>'

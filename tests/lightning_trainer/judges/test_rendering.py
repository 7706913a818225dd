"""What a judge reads: everything that was said once, what is common once, and what is too long cut where it says so."""

import json
from dataclasses import replace

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.errors import JudgeError
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.judges.attempts import JudgedSpans
from lightning_trainer.judges.rendering import message_text, rendered
from lightning_trainer.types import Span


@pytest.fixture
def show(attempt_to_judge):
    def show(*attempts, max_chars=20_000):
        """``attempts``: names with what ``attempt_to_judge`` takes."""
        spans = [span for name, options in attempts for span in attempt_to_judge(name, **options)]
        return rendered(JudgedSpans(spans, read_spans(spans).attempts).attempts, max_chars)

    return show


def test_a_conversation_is_shown_once_though_every_call_repeats_it(show):
    text = show(("a", {"answers": ["Let me see.", "2 * 3 is 6.", "So it is 6."]})).text
    for said in ("You calculate.", "What is 2 * 3?", "Let me see.", "2 * 3 is 6.", "So it is 6.", "Go on (0)."):
        assert text.count(said) == 1
    assert text.index("Let me see.") < text.index("Go on (0).") < text.index("2 * 3 is 6.")


def test_an_answer_is_shown_once_though_the_next_prompt_repeats_it_without_its_reasoning(attempt_to_judge):
    spans = attempt_to_judge("a", ["Let me see.", "So it is 6."])
    thought = [{"type": "reasoning", "content": "Two threes."}, {"type": "text", "content": "Let me see."}]
    answer = json.dumps([{"role": "assistant", "parts": thought, "finish_reason": "stop"}])
    spans[1] = replace(spans[1], attributes={**spans[1].attributes, semconv.OUTPUT_MESSAGES: answer})
    text = rendered(JudgedSpans(spans, read_spans(spans).attempts).attempts, 5000).text
    for said in ("What is 2 * 3?", "(thinking) Two threes.", "Let me see.", "Go on (0).", "So it is 6."):
        assert text.count(said) == 1


def test_each_agent_is_shown_what_it_saw(show):
    text = show(("a", {"answers": ["Ask.", "6."], "agents": ["planner", "worker"]})).text
    assert text.count("[shown to planner: user]\nWhat is 2 * 3?") == 1
    assert text.count("[shown to worker: user]\nWhat is 2 * 3?") == 1
    assert "[worker answers]\n6." in text


def test_what_attempts_have_in_common_is_said_once(show):
    shown = show(*((name, {"answers": [f"It is {name}."]}) for name in "abc"))
    assert shown.text.count("What is 2 * 3?") == 1
    assert len(set(shown.codes)) == 3
    for name, code in zip("abc", shown.codes, strict=True):
        block = shown.text[shown.text.index(f"<attempt {code}>") : shown.text.index(f"</attempt {code}>")]
        assert f"It is {name}." in block


def test_attempts_that_are_alike_all_have_a_part_of_their_own(show):
    shown = show(*((name, {}) for name in "ab"))
    assert shown.text.count("It is 6.") == 2
    assert len(set(shown.codes)) == 2


def test_the_same_words_read_the_same_whatever_the_ids(show):
    assert show(("a", {}), ("b", {"answers": ["No."]})) == show(("x", {}), ("y", {"answers": ["No."]}))


def test_what_is_too_long_is_cut_in_the_middle_with_a_sentence(show):
    long = "begin " + "x" * 50_000 + " end"
    text = show(("a", {"answers": [long]}), max_chars=1000).text
    assert len(text) < 1300
    assert "characters are left out here" in text
    assert "You calculate." in text
    assert " end\n</attempt" in text


def test_a_failed_program_says_so(show):
    assert "The program then ended with an error: ValueError: 6" in show(("a", {"error": "ValueError: 6"})).text


def test_words_that_were_not_recorded_cannot_be_judged(show):
    with pytest.raises(JudgeError, match="attempt a cannot be read: the words of its calls were not recorded"):
        show(("a", {"content": False}))
    with pytest.raises(JudgeError, match="no model call of it was recorded"):
        show(("a", {"answers": []}))


def test_the_task_and_the_last_tool_are_shown(attempt_to_judge):
    root, call = attempt_to_judge("a", ["submit(6)"])
    root = replace(root, attributes={**root.attributes, semconv.ROLLOUT_INPUT: json.dumps({"sum": "2*3", "is": 6})})
    about = {key: call.attributes[key] for key in (semconv.ROLLOUT_ID, semconv.ATTEMPT_ID)}
    about |= {semconv.OPERATION: semconv.EXECUTE_TOOL, semconv.TOOL_NAME: "submit"}
    about |= {semconv.TOOL_CALL_ARGUMENTS: '{"n": 6}', semconv.TOOL_CALL_RESULT: "accepted"}
    tool = Span(call.trace_id, "ab" * 8, root.span_id, "tool", call.end_ns + 1, call.end_ns + 2, about)
    spans = [root, call, tool]
    text = rendered(JudgedSpans(spans, read_spans(spans).attempts).attempts, 5000).text
    assert '{"sum": "2*3", "is": 6}' in text
    assert 'At the end the tool submit was run with {"n": 6}; it gave:\naccepted' in text


@pytest.mark.parametrize(("of_the_root", "read"), [("the runner's", "the runner's"), (None, "the agent's")])
def test_the_input_is_the_runners_and_else_that_of_a_rollout_inside_the_attempt(attempt_to_judge, of_the_root, read):
    root, call = attempt_to_judge("a", ["6"])
    about = {key: call.attributes[key] for key in (semconv.ROLLOUT_ID, semconv.ATTEMPT_ID)}
    about |= {semconv.ROLLOUT_INPUT: "the agent's"}
    inside = Span(call.trace_id, "ab" * 8, root.span_id, "rollout t", call.start_ns, call.end_ns, about)
    if of_the_root is not None:
        root = replace(root, attributes={**root.attributes, semconv.ROLLOUT_INPUT: of_the_root})
    spans = [inside, call, root]  # as they end
    (attempt,) = JudgedSpans(spans, read_spans(spans).attempts).attempts
    assert attempt.asked == read


def test_every_part_of_a_message_leaves_a_trace():
    parts = [
        {"type": "reasoning", "content": "Hm."},
        {"type": "text", "content": "Wait."},
        {"type": "tool_call", "name": "add", "arguments": {"b": 2, "a": 1}},
        {"type": "tool_call_response", "response": "3"},
        {"type": "blob", "modality": "image"},
        "not a part",
    ]
    assert message_text({"role": "assistant", "parts": parts}).splitlines() == [
        "(thinking) Hm.",
        "Wait.",
        '(calls the tool add with {"a": 1, "b": 2})',
        "(the tool answers) 3",
        "(blob, not shown)",
    ]

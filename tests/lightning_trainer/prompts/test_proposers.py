"""What a text is made from: attempts and what they earned, shown to a model or as examples."""

import json
from dataclasses import replace
from string import Template
from typing import Any

import pytest
from lightning_instrumentation import semconv
from pydantic import TypeAdapter

from lightning_trainer.config.prompts import ExamplesConfig, PromptConfig, ReflectConfig
from lightning_trainer.errors import ProposalError
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.judges.attempts import JudgedSpans
from lightning_trainer.prompts.examples import ExamplesProposer, reward_of
from lightning_trainer.prompts.placeholders import in_place_of, misfits, placeholders
from lightning_trainer.prompts.reflect import ReflectProposer
from lightning_trainer.store.prompts import PromptState, PromptVersion
from lightning_trainer.types import Span, SpanEvent
from tests.lightning_trainer.judges.scripted import (  # pyright: ignore[reportMissingImports]
    START_NS,
    recorded_attempt,
    scripted_endpoint,
)

TEXT = "You calculate."


def version(text: str = TEXT) -> PromptVersion:
    return PromptVersion("clerk", 0, "0" * 64, text, None, PromptState.LIVE, "code", None, {}, START_NS)


def reward(name: str, value: float, why: str | None = None) -> Span:
    about = {semconv.ROLLOUT_ID: f"r-{name}", semconv.ATTEMPT_ID: name}
    said: dict[str, Any] = {semconv.EVALUATION_NAME: "reward", semconv.EVALUATION_SCORE: value}
    if why is not None:
        said[semconv.EVALUATION_EXPLANATION] = why
    event = SpanEvent(semconv.EVALUATION_EVENT, START_NS + 90, said)
    return Span(
        f"{name:0>32}".encode().hex()[:32],
        name.encode().hex()[:16].rjust(16, "0"),
        None,
        "evaluate reward",
        START_NS + 90,
        START_NS + 90,
        about,
        (event,),
    )


def attempts(*told: tuple[str, float, str | None], task: str | None = None, **options: Any):
    """Attempts by name, what each earned, and why."""
    spans = [span for name, _, _ in told for span in recorded_attempt(name, **options)]
    if task is not None:
        spans = [
            replace(
                span, attributes={**span.attributes, semconv.TASK_ID: f"{task}-{span.attributes[semconv.ATTEMPT_ID]}"}
            )
            for span in spans
        ]
    spans += [reward(name, value, why) for name, value, why in told]
    return JudgedSpans(spans, read_spans(spans).attempts).attempts


@pytest.fixture
def script():
    with scripted_endpoint() as made:
        yield made


@pytest.fixture
def reflect(script):
    def make(**settings: Any) -> ReflectProposer:
        section = {"name": "clerk", "kind": "reflect", "model": "big", "base_url": script.url, **settings}
        config = TypeAdapter(PromptConfig).validate_python(section)
        assert isinstance(config, ReflectConfig)
        return ReflectProposer(config)

    return make


async def test_the_model_reads_the_text_the_attempts_and_what_they_earned(reflect, script):
    script.answers = [{"diagnosis": "It guessed.", "prompt": "Use the calculator."}]
    proposer = reflect(instructions="Be brief.", attempts=2)
    shown = attempts(("a", 0.0, "it is 6, not 5"), ("b", 1.0, None), ("c", 1.0, None))
    proposal = await proposer.propose(version(), shown, seed=0)
    assert (proposal.text, proposal.made_by, proposal.reason) == ("Use the calculator.", "reflect", "It guessed.")
    (question,) = script.questions
    for said in (TEXT, "What is 2 * 3?", "reward = 0", "reward: it is 6, not 5", "reward = 1"):
        assert said in question
    assert question.count("[what it earned]") == 2, "as many attempts as it is to read"
    assert "Be brief." in script.bodies[0]["messages"][0]["content"]
    await proposer.close()


async def test_why_an_attempt_earned_what_it_did_is_cut_in_the_middle(reflect, script):
    script.answers = [{"diagnosis": "d", "prompt": "Calculate well."}]
    log = f"FAILED test_a\n{'x' * 100_000}\n3 failed"
    await reflect().propose(version(), attempts(("a", 0.0, log), ("b", 1.0, None)), seed=0)
    (question,) = script.questions
    assert len(question) < 10_000
    assert "FAILED test_a" in question
    assert "3 failed" in question


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("{task} and {more}", "nothing fills in {more}"),
        ("Answer.", "it lacks {task}"),
        ("Solve {task}.", "the text as it was"),
        ("  ", "0 characters"),
    ],
)
async def test_a_text_that_the_program_could_not_use_is_asked_for_again_with_the_reason(reflect, script, answer, why):
    script.answers = [{"diagnosis": "d", "prompt": answer}, {"diagnosis": "d", "prompt": "Solve {task} well."}]
    proposer = reflect()
    assert (
        await proposer.propose(version("Solve {task}."), attempts(("a", 0.0, None)), 0)
    ).text == "Solve {task} well."
    assert why in script.questions[1]
    await proposer.close()


async def test_what_cannot_be_proposed_is_one_sentence(reflect, script):
    script.answers = ["no JSON"]
    proposer = reflect(retries=1)
    with pytest.raises(ProposalError, match="big was asked 2 times, and its answer cannot be used"):
        await proposer.propose(version(), attempts(("a", 0.0, None)), 0)
    with pytest.raises(ProposalError, match="the words of its calls were not recorded"):
        await proposer.propose(version(), attempts(("a", 0.0, None), content=False), 0)
    poor = reflect(budget={"calls": 1}, retries=1)
    with pytest.raises(ProposalError, match=r"prompt\.budget\.calls is 1; raise it$"):
        await poor.propose(version(), attempts(("a", 0.0, None)), 0)
    for one in (proposer, poor):
        await one.close()


async def test_what_the_model_was_asked_for_a_text_is_told_and_part_of_what_the_section_may_cost(reflect, script):
    script.answers = ["no JSON", {"diagnosis": "d", "prompt": "Calculate well."}, "no JSON"]
    proposer = reflect(retries=1, budget={"calls": 5})
    told = attempts(("a", 0.0, None))
    assert (await proposer.propose(version(), told, 0)).spent == {"calls": 2, "input_tokens": 200, "output_tokens": 40}
    with pytest.raises(ProposalError) as refused:
        await proposer.propose(version(), told, 0)
    assert refused.value.spent == {"calls": 2, "input_tokens": 200, "output_tokens": 40}, "also where it was in vain"
    assert proposer.budget.spent == {"calls": 4, "input_tokens": 400, "output_tokens": 80}
    with pytest.raises(ProposalError, match=r"prompt\.budget\.calls is 5") as refused:
        await proposer.propose(version(), told, 0)
    assert refused.value.spent == {"calls": 1, "input_tokens": 100, "output_tokens": 20}
    await proposer.close()
    examples = ExamplesProposer(ExamplesConfig(name="clerk"))
    made = await examples.propose(version(), attempts(("a", 1.0, None)), 0)
    assert made.spent == {"calls": 0, "input_tokens": 0, "output_tokens": 0}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Hello {name}, {{ day }} and ${place}", {"{name}", "{{day}}", "${place}"}),
        ('Answer {{"a": 1}} or {"a": 1}', set()),
        ("Both {} and {0}", {"{}", "{0}"}),
        (
            "{price:.2f} of {user.name!r} on {day:%d.%m.} {rows[0]}",
            {"{price:.2f}", "{user.name!r}", "{day:%d.%m.}", "{rows[0]}"},
        ),
        ("{{ user.name | upper }} and {{- n -}}", {"{{user.name|upper}}", "{{-n-}}"}),
        ("$name pays US$ 5 or $5, $$HOME", {"$name"}),
        ("{type: string} {type:string} { }", set()),
        ("none", set()),
    ],
)
def test_placeholders_are_those_of_format_jinja_and_template(text, found):
    assert placeholders(text) == found


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("Solve {task}.", 'Solve {task} as {"a": 1}.', "write { and } twice"),
        ("Solve {task}.", "Solve {task} in }.", "write { and } twice"),
        ("Solve {task}.", 'Solve {task} as {{"a": 1}}.', None),
        ('Solve {task} as {"a": 1}.', 'Solve {task} as {"b": 2}.', None),
        ("Solve it.", 'Solve it as {"a": 1}.', None),
        ("Cost: {price:.2f}", "Cost: {price}", "it lacks {price:.2f}"),
        ("Hello $name", "Hello", "it lacks $name"),
        ("{% for a in b %}{{ a.c }}{% endfor %}", "{% for a in b %}- {{ a.c }}\n{% endfor %}", None),
        ("{% for a in b %}{{ a.c }}{% endfor %}", "{{ a.c }}", "the same Jinja statements, {% for a in b %}"),
        ("Do.", "Do {% if x %}", "which are none"),
        ("Hi {{ a }}", "Hi {{ a }} {{ ''.__class__.__mro__ }}", "nothing fills in {{''.__class__.__mro__}}"),
        ("Hi {{ a }}", "Hi {{ a }} {{ b", "nothing fills in {{"),
        ("Hi {{ a ~ '!' }}", "Hi", "it lacks {{a~'!'}}"),
        ("Hi {{ a }}", "Hi {{ a }} {# note", "nothing fills in {#"),
        ("Hi {{ a }}", "Hi {{ a }}, 50 {% of 100", "the same Jinja statements"),
        ("Hi {{ a }} {# note #}", "Hello {{ a }} {# note #}", None),
        ("# Rules {#rules}", "# All rules {#rules} {#more}", None),
    ],
)
def test_a_text_that_would_break_the_program_is_known(before, after, said):
    found = misfits(before, after)
    assert (found == []) == (said is None), found
    assert said is None or said in found[0]


@pytest.mark.parametrize(
    ("before", "text", "kept"),
    [("Rules:\n- a\n\n", " Rules.", "Rules.\n\n"), ("\n  A", "B\n", "\n  B"), (" ", "B", " B"), ("A", "B", "B")],
)
def test_the_white_space_around_a_text_stays(before, text, kept):
    assert in_place_of(before, text) == kept


async def test_a_rewritten_text_ends_as_the_one_before_did(reflect, script):
    script.answers = [{"diagnosis": "d", "prompt": "Solve it well."}]
    proposer = reflect()
    made = await proposer.propose(version("Solve it.\n\n"), attempts(("a", 0.0, None)), 0)
    assert made.text == "Solve it well.\n\n", "the program writes more after it"
    await proposer.close()


async def test_examples_are_good_attempts_of_different_tasks_below_the_text():
    proposer = ExamplesProposer(ExamplesConfig(name="clerk", most=2))
    told = attempts(("a", 1.0, None), ("b", 0.0, None), ("c", 1.0, None), ("d", 1.0, None), task="t")
    seen = set()
    for seed in range(30):
        text = (await proposer.propose(version(), told, seed)).text
        assert text.startswith(f"{TEXT}\n\nExamples of tasks that were done well:")
        assert 1 <= text.count("\n\nUser: What is 2 * 3?\nAssistant: It is 6.") <= 2
        assert text.count(TEXT) == 1, "the text itself is not part of an example"
        seen.add((await proposer.propose(version(), told, seed)).reason)
    assert len(seen) > 3, "another seed is another draw"
    assert not any("t-b" in reason for reason in seen if reason), "what earned nothing is no example"


@pytest.mark.parametrize(
    ("text", "asked", "shown"),
    [
        ("Work it out.", "Work it out.\n\nTask: 2 * 3\nResult:", "Task: 2 * 3\nResult:"),
        ("Work it out.", "Task: 2 * 3\n\nWork it out.", "Task: 2 * 3"),
        ("Work out {task} for {who}.", "Work out 2 * 3 for Ana.", "2 * 3\nAna"),
        ('Work out {{ task }} as {"n": 1}.', 'Work out 2 * 3 as {"n": 1}.', "2 * 3"),
        ('Work out {task} as {{"n": 1}}.', 'Work out 2 * 3 as {"n": 1}.', "2 * 3"),
        ("{task}", "2 * 3", "2 * 3"),
    ],
)
async def test_an_example_has_what_the_program_added_to_the_text(text, asked, shown):
    proposer = ExamplesProposer(ExamplesConfig(name="clerk"))
    proposal = await proposer.propose(version(text), attempts(("a", 1.0, None), question=asked), 0)
    assert proposal.text.endswith(f"done well:\n\nUser: {shown}\nAssistant: It is 6.")


async def test_an_example_has_none_of_the_examples_that_its_attempt_was_shown():
    proposer = ExamplesProposer(ExamplesConfig(name="clerk"))
    plain = "Work it out."
    first = (await proposer.propose(version(plain), attempts(("a", 1.0, None), question=f"{plain}\n\n2 * 3"), 0)).text
    later = attempts(("b", 1.0, None), question=f"{first}\n\n4 + 2")
    second = (await proposer.propose(version(first), later, 0)).text
    assert second == f"{plain}\n\nExamples of tasks that were done well:\n\nUser: 4 + 2\nAssistant: It is 6."
    with pytest.raises(ProposalError, match="no example"):  # its task cannot be told from those of the examples
        await proposer.propose(version(plain), later, 0)


async def test_attempts_whose_system_message_had_other_examples_can_be_shown():
    (told,) = attempts(("a", 1.0, None))
    words = f"{TEXT}\n\nExamples of tasks that were done well:\n\nUser: 1\nAssistant: 1"
    system = {"role": "system", "parts": [{"type": "text", "content": words}]}
    turns = tuple(replace(turn, prompt=(system, *turn.prompt[1:])) for turn in told.turns)
    proposal = await ExamplesProposer(ExamplesConfig(name="clerk")).propose(version(), [replace(told, turns=turns)], 0)
    assert proposal.text.endswith("done well:\n\nUser: What is 2 * 3?\nAssistant: It is 6.")


async def test_a_task_that_stands_in_the_system_message_alone_is_shown():
    proposer = ExamplesProposer(ExamplesConfig(name="clerk"))
    proposal = await proposer.propose(version("You {do}."), attempts(("a", 1.0, None), question=""), 0)
    assert proposal.text.endswith("\n\nUser: calculate\nAssistant: It is 6.")


async def test_examples_end_as_the_text_did():
    """The program writes more after it."""
    proposer = ExamplesProposer(ExamplesConfig(name="clerk"))
    plain = " Work it out.\n\n"
    first = (await proposer.propose(version(plain), attempts(("a", 1.0, None), question=f"{plain}2 * 3"), 0)).text
    assert first.startswith(plain)
    assert first.endswith("User: 2 * 3\nAssistant: It is 6.\n\n")
    told = attempts(("b", 1.0, None), question=f"{first}4 + 2")
    assert (await proposer.propose(version(first), told, 0)).text == first.replace("2 * 3", "4 + 2")


async def test_new_examples_take_the_place_of_the_old_ones():
    proposer = ExamplesProposer(ExamplesConfig(name="clerk"))
    told = attempts(("a", 1.0, None))
    first = (await proposer.propose(version(), told, 0)).text
    assert (await proposer.propose(version(first), told, 0)).text == first


async def test_braces_of_an_example_survive_the_programs_own_formatting():
    proposer = ExamplesProposer(ExamplesConfig(name="clerk"))
    told = attempts(("a", 1.0, None), answers=[json.dumps({"sum": 6})])
    text = (await proposer.propose(version("Solve for {who}."), told, 0)).text
    assert '{"sum": 6}' in text.format(who="me")
    text = (await proposer.propose(version('Solve for {who}, as {{"sum": 1}} or {{ return 1; }}.'), told, 0)).text
    assert 'Assistant: {"sum": 6}' in text.format(who="me")
    assert '{"sum": 6}' in (await proposer.propose(version("Solve."), told, 0)).text


@pytest.mark.parametrize("words", ["{{ ''.__class__ }}", "50 {% of 100?", "{# note"])
@pytest.mark.parametrize(
    "text", ["Work for {{ who }}.", "Work.{% if x %} Do.{% endif %}", "Work for {{ 'me' ~ who }}."]
)
async def test_an_example_whose_words_jinja_would_run_is_left_out(text, words):
    proposer = ExamplesProposer(ExamplesConfig(name="clerk"))
    bad, good = attempts(("a", 1.0, None), question=words), attempts(("b", 1.0, None), question="2 * 3 = {?}")
    for seed in range(5):
        made = (await proposer.propose(version(text), [*bad, *good], seed)).text
        assert made.endswith("done well:\n\nUser: 2 * 3 = {?}\nAssistant: It is 6.")
    with pytest.raises(ProposalError, match=r"none of 1 attempts .* no Jinja"):
        await proposer.propose(version(text), bad, 0)
    assert words in (await proposer.propose(version("Work."), bad, 0)).text, "nothing renders that text"


@pytest.mark.parametrize("text", ["Work for {{ who }} as {name}.", "Work for {{ who if who else 'me' }} as {name}."])
async def test_words_that_the_braces_of_format_would_make_jinja_are_left_out(text):
    proposer = ExamplesProposer(ExamplesConfig(name="clerk"))
    with pytest.raises(ProposalError, match="no Jinja"):
        await proposer.propose(version(text), attempts(("a", 1.0, None), question="{lipsum.__globals__}"), 0)


async def test_dollars_of_an_example_survive_the_programs_own_template():
    proposer = ExamplesProposer(ExamplesConfig(name="clerk"))
    asked = "What are $5, $HOME and $$ in US$?"
    plain = "Work for $company, for $$9."
    first = (await proposer.propose(version(plain), attempts(("a", 1.0, None), question=asked), 0)).text
    filled_in = Template(first).substitute(company="us")
    assert f"User: {asked}\n" in filled_in
    later = attempts(("b", 1.0, None), question=f"{filled_in}\n\n4 + 2")
    second = (await proposer.propose(version(first), later, 0)).text
    assert second.endswith("done well:\n\nUser: us\n4 + 2\nAssistant: It is 6."), "without the examples before"


async def test_without_a_good_attempt_there_is_no_example():
    proposer = ExamplesProposer(ExamplesConfig(name="clerk"))
    with pytest.raises(ProposalError, match="none of 1 attempts earned 1 or more"):
        await proposer.propose(version(), attempts(("a", 0.5, None)), 0)


def test_what_an_attempt_earned_is_what_its_function_returned():
    assert reward_of({"reward": 0.25, "style": 1.0}) == 0.25
    assert reward_of({"right": 1.0, "style": 0.0}) == 0.5
    assert reward_of({}) is None

"""What a version earns where programs run, told apart from searches, evaluations and attempts with two versions."""

import asyncio
import json
from dataclasses import replace

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.cli.prompts.listing import show_prompt
from lightning_trainer.errors import ConfigError
from lightning_trainer.prompts import earned as module
from lightning_trainer.prompts.earned import Earned, LiveEarned, earned_live
from lightning_trainer.report import mean_interval, wilson_interval
from lightning_trainer.store import SqliteStore, prompts
from lightning_trainer.store.prompts import root_of
from lightning_trainer.types import Span, SpanStatus


@pytest.fixture
def live(attempt_spans, reward_span):
    """Make the spans of an attempt that asked for versions of a prompt: ``live(id, version, reward=1.0)``."""

    def make(attempt: str, *versions: int, reward=None, mode=None, name="clerk", failed=False) -> list[Span]:
        spans = attempt_spans(attempt, [1], start_ns=int(attempt[1:]) * 10)
        if mode is not None:
            spans = [replace(one, attributes={**one.attributes, semconv.ROLLOUT_MODE: mode}) for one in spans]
        if failed:
            spans[0] = replace(spans[0], status=SpanStatus.ERROR)
        for number, version in enumerate(versions):
            about = {semconv.PROMPT_NAME: name, semconv.PROMPT_VERSION: version}
            span_id = f"{int(attempt[1:]) * 10 + number + 1:016x}"
            own = {**spans[0].attributes, **about}
            own.pop(semconv.ROLLOUT_ROOT)
            spans.append(Span(spans[0].trace_id, span_id, spans[0].span_id, f"prompt {name}", 1, 2, own))
        return spans if reward is None else [*spans, reward_span(reward, attempt=attempt)]

    return make


async def told(folder, *attempts: list[Span]) -> dict[int, Earned]:
    async with SqliteStore(folder / "lightning.sqlite") as store:
        await store.write(lambda connection: prompts.register(connection, "clerk", root_of("x"), "x", 1))
        for spans in attempts:
            await store.append(spans)
        return await store.scan(lambda connection: earned_live(connection, "clerk"))


async def test_live_attempts_are_told_apart_by_the_version_that_they_ran_with(tmp_path, live):
    found = await told(
        tmp_path,
        *(live(f"a{number}", 0, reward=float(number % 2)) for number in range(10)),
        live("a20", 1, reward=1.0),
        live("a21", 1, failed=True),
        live("a22", 0, 1, reward=1.0),
        live("a23", 1, reward=0.0, mode="evaluate"),
        live("a24", 1, reward=0.0, mode="record"),
        live("a25", 1, reward=0.0, name="cook"),
        live("a26", reward=0.0),
    )
    assert found == {
        0: Earned(0, 10, 0, 10, 0.5, wilson_interval(5, 10)),
        1: Earned(1, 2, 1, 1, 1.0, None),
    }


async def test_an_attempt_that_a_person_took_out_counts_for_nothing(tmp_path, live):
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        for number in range(5):
            await store.append(live(f"a{number}", 0, reward=float(number == 4)))
        await store.drop("a4", reason="an attack")
        assert await store.scan(lambda connection: earned_live(connection, "clerk")) == {
            0: Earned(0, 4, 0, 4, 0.0, wilson_interval(0, 4))
        }


async def test_the_newest_attempts_of_each_version_are_read(tmp_path, live, monkeypatch):
    monkeypatch.setattr(module, "MOST_OF_VERSION", 3)
    earlier = [live(f"a{number}", 0, reward=0.25) for number in range(4)]
    later = [live(f"a{number}", 1, reward=float(number > 12)) for number in range(10, 16)]
    found = await told(tmp_path, *earlier, *later)
    assert [(one.attempts, one.mean, one.more) for one in found.values()] == [(3, 0.25, True), (3, 1.0, True)]


async def test_versions_share_what_is_read_and_one_of_which_nothing_is_read_is_left_out(tmp_path, live, monkeypatch):
    attempts = [live(f"a{number}", number // 4, reward=0.25) for number in range(11)]
    monkeypatch.setattr(module, "_MOST", 8)
    found = await told(tmp_path, *attempts)
    assert {version: (one.attempts, one.rewarded, one.more) for version, one in found.items()} == {
        0: (2, 2, True),
        1: (3, 3, True),
        2: (3, 3, False),
    }
    monkeypatch.setattr(module, "_MOST", 2)
    assert [*await told(tmp_path)] == [1, 2]


async def test_a_reward_of_a_call_is_none_of_its_attempt(tmp_path, live, reward_span):
    of_calls = [*live("a1", 0), reward_span(1.0, response="response-a1")]
    inside = live("a2", 0)
    given = reward_span(0.5, attempt="a2")
    inside.append(replace(given, trace_id=inside[1].trace_id, parent_span_id=inside[1].span_id))
    found = await told(tmp_path, of_calls, inside, live("a3", 0, reward=0.25))
    assert found == {0: Earned(0, 3, 0, 1, 0.25, None)}


async def test_model_calls_are_not_read_where_rewards_are_of_whole_attempts(tmp_path, live, monkeypatch):
    read: list[Span] = []
    as_it_is = module.read_spans

    def reads(spans):
        read.extend(spans)
        return as_it_is(spans)

    monkeypatch.setattr(module, "read_spans", reads)
    found = await told(tmp_path, *(live(f"a{number}", 0, reward=1.0) for number in range(3)))
    assert found[0].rewarded == 3
    assert {one.name for one in read} == {"rollout", "prompt clerk", "evaluate reward"}


async def test_a_daemon_reads_in_pieces_and_answers_alike_questions_once(tmp_path, live, monkeypatch):
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    await told(tmp_path, *(live(f"a{number}", 0, reward=1.0) for number in range(5)))
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        asked = LiveEarned(store)
        at_once: list[int] = []
        running, as_it_is = 0, store.scan

        async def scan(query):
            nonlocal running
            running += 1
            at_once.append(running)
            found = await as_it_is(query)
            running -= 1
            return found

        monkeypatch.setattr(store, "scan", scan)
        answers = await asyncio.gather(*(asked.get("clerk") for _ in range(3)))
        assert [one[0].attempts for one in answers] == [5, 5, 5]
        assert at_once == [1, 1, 1, 1]
        await store.append(live("a9", 0, reward=1.0))
        assert (await asked.get("clerk"))[0].attempts == 5
        monkeypatch.setattr(module, "_KEPT_S", 0.0)
        assert await asked.get("cook") == {}
        assert (await asked.get("clerk"))[0].attempts == 6


async def test_the_table_and_the_json_have_what_is_earned_where_it_is_asked_for(tmp_path, live, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "lightning.toml").write_text('[daemon]\nstate_dir = "state"\n')
    await told(tmp_path / "state", *(live(f"a{number}", 0, reward=float(number < 6)) for number in range(8)))
    monkeypatch.setattr(module, "MOST_OF_VERSION", 7)
    show_prompt(None, "clerk", diff=False, as_json=False, live=True)
    assert " 7+ " in capsys.readouterr().out
    monkeypatch.setattr(module, "MOST_OF_VERSION", 8)
    show_prompt(None, "clerk", diff=False, as_json=False, live=True)
    table = capsys.readouterr().out
    assert "8+" not in table
    assert "live attempts" in table
    assert "0.750 of 8 (0.409 to 0.929)" in table
    show_prompt(None, "clerk", diff=False, as_json=True, live=True)
    (version,) = json.loads(capsys.readouterr().out)
    assert (version["live"]["attempts"], version["live"]["mean"]) == (8, 0.75)
    show_prompt(None, "clerk", diff=False, as_json=False)
    assert "live attempts" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("named", "diff", "sentence"),
    [
        ("clerk@v2", False, r"--live tells of all versions of a prompt .* 'clerk@v2': write 'clerk', or leave it out"),
        ("clerk", True, r"--diff shows what one version changes .* 'clerk': write it as clerk@v3, or leave it out"),
    ],
)
def test_an_option_that_does_not_go_with_what_is_named_is_refused(tmp_path, monkeypatch, named, diff, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=sentence):
        show_prompt(None, named, diff=diff, as_json=False, live=not diff)


def test_the_interval_of_a_mean_is_that_of_a_share_or_of_student():
    assert mean_interval([1.0, 0.0, 1.0]) is None
    assert mean_interval([0.5] * 9) is None
    assert mean_interval([1.0] * 4) == wilson_interval(4, 4)
    found = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])  # t(0.975, 4) = 2.776, s = 1.5811
    assert found == pytest.approx((3 - 2.776 * 1.5811 / 5**0.5, 3 + 2.776 * 1.5811 / 5**0.5), abs=0.01)

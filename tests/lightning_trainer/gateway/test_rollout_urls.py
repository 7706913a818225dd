"""A base URL is all that an agent needs: its calls are its rollout's, and it ends and is rewarded by two posts."""

import openai
import pytest
from lightning_instrumentation import semconv

from lightning_trainer.ingest.http.rewards import rewards_router
from lightning_trainer.ingest.http.rollouts import rollouts_router
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import AttemptState, RolloutMode

_BODY = {"model": "sql", "messages": [{"role": "user", "content": "Is it open?"}]}


@pytest.fixture
async def store(tmp_path):
    async with SqliteStore(tmp_path / "lightning.sqlite") as opened:
        yield opened


@pytest.fixture
async def daemon(open_gateway, store):
    """A gateway with what the daemon puts beside it, over one store."""
    routers = (rewards_router(store, store), rollouts_router(store, store))
    async with open_gateway(sink=store, beside=routers) as gateway:
        yield gateway


def _identity(span) -> tuple:
    return tuple(span.attributes.get(name) for name in (semconv.ROLLOUT_ID, semconv.ATTEMPT_ID, semconv.AGENT_NAME))


@pytest.mark.parametrize(
    ("base", "identity"),
    [
        ("/rollouts/run-7/v1", ("run-7", "run-7", "default")),
        ("/rollouts/run-7/agents/sql_writer/v1", ("run-7", "run-7", "sql_writer")),
        ("/v1", (None, None, None)),
    ],
)
async def test_the_url_says_whose_call_it_is(gateway, base: str, identity: tuple) -> None:
    asked = {
        "/chat/completions": _BODY,
        "/completions": {"model": "sql", "prompt": "?"},
        "/responses": {"model": "sql", "input": "?"},
        "/messages": {**_BODY, "max_tokens": 5},
    }
    for path, body in asked.items():
        answer = await gateway.http.post(base + path, json=body)
        assert answer.status_code == 200, answer.text
    assert [_identity(span) for span in gateway.sink.spans] == [identity] * len(asked)
    assert (await gateway.http.get(f"{base}/models")).json()["data"][0]["id"] == "sql"
    assert (await gateway.http.get(f"{base}/models/sql")).json()["id"] == "sql"


async def test_baggage_goes_before_the_url(gateway) -> None:
    headers = {
        "baggage": "lightning.attempt.id=a2,gen_ai.agent.name=fixer",
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
    }
    await gateway.http.post("/rollouts/r/v1/chat/completions", json=_BODY, headers=headers)
    span = await gateway.record()
    assert _identity(span) == ("r", "a2", "fixer")
    assert (span.trace_id, span.parent_span_id) == ("a" * 32, "b" * 16)


@pytest.mark.parametrize(
    ("base", "identity"),
    [
        # Before: 404 for each
        ("/rollouts/org%2Frepo%2F12/v1", ("org/repo/12", "org/repo/12", "default")),
        ("/rollouts/org/repo/12/v1", ("org/repo/12", "org/repo/12", "default")),
        ("/rollouts/org/repo/agents/sql/v1", ("org/repo", "org/repo", "sql")),
        ("/rollouts/a%2Fagents%2Fb/v1", ("a/agents/b", "a/agents/b", "default")),
        ("/rollouts/r/agents/team%2Fwriter/v1", ("r", "r", "team/writer")),
        ("/rollouts/%C3%BC%20%23%3F%3B&%251/v1", ("ü #?;&%1", "ü #?;&%1", "default")),
        ("/rollouts/-x/v1", ("-x", "-x", "default")),
    ],
)
async def test_an_id_may_have_slashes_and_any_character_that_is_printed(gateway, base: str, identity: tuple) -> None:
    answer = await gateway.http.post(f"{base}/chat/completions", json=_BODY)
    assert answer.status_code == 200, answer.text
    assert _identity(await gateway.record()) == identity


async def test_a_rollout_with_slashes_is_rewarded_and_ended(daemon, store) -> None:
    for name, url in (("org/repo/1", "org%2Frepo%2F1"), ("org/repo/2", "org/repo/2")):
        await daemon.http.post(f"/rollouts/{url}/v1/chat/completions", json=_BODY)
        assert (await daemon.http.post(f"/rollouts/{url}/reward", json={"value": 0.5})).json()["new"] is True
        assert (await daemon.http.post(f"/rollouts/{url}/end", json={})).json()["state"] == "succeeded"
        reading = read_spans(await store.spans_of_attempts([name]))
        assert [(e.value, e.rollout_id) for e in reading.evaluations] == [(0.5, name)]


async def test_settings_in_the_url_go_in_place_of_what_an_unmodified_program_asks(gateway) -> None:
    settings = "temperature=0.7&max_tokens=9&seed=3&metadata.split=train%26more&metadata.note=a%2Fb"
    asked = {
        "/chat/completions": {**_BODY, "temperature": 0, "max_completion_tokens": 100},
        "/completions": {"model": "sql", "prompt": "?", "temperature": 0},
        "/responses": {"model": "sql", "input": "?", "max_output_tokens": 100},
        "/messages": {**_BODY, "max_tokens": 100},
    }
    for path, body in asked.items():
        for base in ("/rollouts/r", "/rollouts/r/agents/sql_writer"):
            answer = await gateway.http.post(f"{base}/with/{settings}/v1{path}", json=body)
            assert answer.status_code == 200, answer.text
    for sent in gateway.engine.requests:
        assert (sent["temperature"], sent["max_tokens"], sent["seed"]) == (0.7, 9, 3)
        assert "max_completion_tokens" not in sent
    for span in gateway.sink.spans:
        said = span.attributes
        assert (said[semconv.REQUEST_TEMPERATURE], said[semconv.REQUEST_MAX_TOKENS], said[semconv.REQUEST_SEED]) == (
            0.7,
            9,
            3,
        )
        assert (said["lightning.metadata.split"], said["lightning.metadata.note"]) == ("train&more", "a/b")
    assert {_identity(span) for span in gateway.sink.spans} == {("r", "r", "default"), ("r", "r", "sql_writer")}


async def test_an_openai_client_takes_settings_in_its_base_url(gateway) -> None:
    base_url = f"{gateway.url}/rollouts/org%2Frepo/with/temperature=0.25&metadata.k=v/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        await client.chat.completions.create(model="sql", messages=[{"role": "user", "content": "?"}])
    span = await gateway.record()
    assert span.attributes[semconv.REQUEST_TEMPERATURE] == 0.25
    assert (span.attributes["lightning.metadata.k"], span.attributes[semconv.ROLLOUT_ID]) == ("v", "org/repo")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("temperature=hot", "temperature is 'hot' in the URL: it is a number"),
        ("top_k=1.5", "top_k is '1.5' in the URL: it is a whole number"),
        ("temperature=nan", "temperature is 'nan' in the URL: it is a number"),
        (f"seed={2**63}", f"seed is '{2**63}' in the URL: it is a number of 64 bits at most"),
        ("temprature=1", "'temprature' in the URL after /with/: set temperature, top_p"),
        ("capture_content=no", "capture_content is 'no' in the URL: write 0, or 1"),
        ("metadata.=x", "'metadata.' in the URL after /with/: set temperature, top_p"),
        ("&".join(f"metadata.k{n}=v" for n in range(33)), "the URL sets 33 fields of metadata: 32 at most"),
        ("&".join(["seed=1"] * 101), "Max number of fields exceeded"),
    ],
)
async def test_a_setting_that_is_none_is_refused(gateway, settings: str, sentence: str) -> None:
    answer = await gateway.http.post(f"/rollouts/r/with/{settings}/v1/chat/completions", json=_BODY)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(sentence)


@pytest.mark.parametrize("base", ["/rollouts/r/with/seed=1/agents/a/v1", "/rollouts/a/agents/b/agents/c/v1"])
async def test_a_url_of_which_it_cannot_be_told_what_is_what_is_refused(gateway, base: str) -> None:
    answer = await gateway.http.post(f"{base}/chat/completions", json=_BODY)
    assert answer.status_code == 400
    assert "the order is /rollouts/ID/agents/AGENT/with/SETTINGS/v1" in answer.json()["error"]["message"]
    assert gateway.engine.requests == []


@pytest.mark.parametrize("name", ["x" * 257, "a%00b", "%20a", "%FF%7F"])
async def test_a_name_that_is_none_is_refused(gateway, name: str) -> None:
    for base in (f"/rollouts/{name}/v1", f"/rollouts/r/agents/{name}/v1"):
        answer = await gateway.http.post(f"{base}/chat/completions", json=_BODY)
        assert (answer.status_code, "in the URL: use 1 to 256" in answer.json()["error"]["message"]) == (400, True)
    assert gateway.engine.requests == []


async def test_an_openai_client_needs_nothing_but_the_environment(gateway, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{gateway.url}/rollouts/run-7/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    async with openai.AsyncOpenAI(max_retries=0) as client:
        await client.chat.completions.create(model="sql", messages=[{"role": "user", "content": "?"}])
    assert _identity(await gateway.record())[0] == "run-7"


async def test_a_rollout_is_rewarded_and_ended_and_is_then_one_trace(daemon, store) -> None:
    for _ in range(2):
        assert (await daemon.http.post("/rollouts/run-7/v1/chat/completions", json=_BODY)).status_code == 200
    assert (await daemon.http.post("/rollouts/run-7/reward", json={"value": 0.5})).json()["new"] is True
    ended = await daemon.http.post("/rollouts/run-7/end", json={"task_id": "opening hours", "group_id": "g"})
    assert ended.json() == {"accepted": True, "new": True, "state": "succeeded"}

    attempt = await store.attempt("run-7")
    assert (attempt.rollout_id, attempt.task_id, attempt.group_id) == ("run-7", "opening hours", "g")
    assert (attempt.state, attempt.mode) == (AttemptState.SUCCEEDED, RolloutMode.TRAIN)
    spans = await store.spans_of_attempts(["run-7"])
    reading = read_spans(spans)
    assert [(call.agent, call.attempt_id, call.complete) for call in reading.calls] == [("default", "run-7", True)] * 2
    assert [(e.name, e.value, e.rollout_id) for e in reading.evaluations] == [("reward", 0.5, "run-7")]
    assert reading.problems == ()
    (root,) = [span for span in spans if span.attributes.get(semconv.ROLLOUT_ROOT)]
    assert {(call.trace_id, call.parent_span_id) for call in reading.calls} == {(root.trace_id, root.span_id)}


async def test_an_attempt_that_goes_on_in_another_process_is_one_until_its_end(daemon, store) -> None:
    """As "An attempt that pauses" in docs/rollouts.md has it: each process has traces of its own, and no root span."""
    for process in ("a", "b"):
        headers = {
            "baggage": "lightning.rollout.id=ticket-7,lightning.attempt.id=ticket-7,gen_ai.agent.name=support",
            "traceparent": f"00-{process * 32}-{process * 16}-01",
        }
        assert (await daemon.http.post("/v1/chat/completions", json=_BODY, headers=headers)).status_code == 200
        assert (await store.attempt("ticket-7")).state is AttemptState.RUNNING
    body = {"task_id": "refund", "reward": 1.0}
    assert (await daemon.http.post("/rollouts/ticket-7/end", json=body)).json()["state"] == "succeeded"
    attempt = await store.attempt("ticket-7")
    assert (attempt.task_id, attempt.group_id, attempt.state) == ("refund", "refund", AttemptState.SUCCEEDED)
    reading = read_spans(await store.spans_of_attempts(["ticket-7"]))
    assert [(call.agent, call.attempt_id) for call in reading.calls] == [("support", "ticket-7")] * 2
    assert [(e.value, e.attempt_id) for e in reading.evaluations] == [(1.0, "ticket-7")]


async def test_an_end_may_bring_the_reward_and_is_counted_once(daemon, store) -> None:
    await daemon.http.post("/rollouts/r/v1/chat/completions", json=_BODY)
    body = {"reward": -1, "error": "gave up", "mode": "evaluate"}
    answers = [(await daemon.http.post("/rollouts/r/end", json=body)).json() for _ in range(2)]
    assert [(answer["new"], answer["state"]) for answer in answers] == [(True, "failed"), (False, "failed")]
    attempt = await store.attempt("r")
    assert (attempt.state, attempt.error, attempt.mode) == (AttemptState.FAILED, "gave up", RolloutMode.EVALUATE)
    (evaluation,) = read_spans(await store.spans_of_attempts(["r"])).evaluations
    assert (evaluation.value, evaluation.attempt_id) == (-1.0, "r")


async def test_a_reward_that_comes_with_a_second_end_is_not_lost(daemon, store) -> None:
    await daemon.http.post("/rollouts/r/v1/chat/completions", json=_BODY)
    await daemon.http.post("/rollouts/r/end", json={})
    assert (await daemon.http.post("/rollouts/r/end", json={"reward": 1.0})).json()["new"] is True
    assert [e.value for e in read_spans(await store.spans_of_attempts(["r"])).evaluations] == [1.0]


@pytest.mark.parametrize(
    ("content", "status", "sentence"),
    [
        ("{}", 404, "no call of attempt 'unknown' of rollout 'unknown' has been seen"),
        ('{"reward": NaN}', 422, "reward is nan"),
        ('{"reward": "good"}', 422, "reward: Input should be a valid number"),
        ('{"task": "x"}', 422, "task: Extra inputs"),
        ('{"mode": "test"}', 422, "mode: Input should be 'train', 'evaluate', 'baseline', 'record' or 'retried'"),
        ("", 400, "the body is not JSON"),
    ],
)
async def test_an_end_that_is_none_is_refused(daemon, content: str, status: int, sentence: str) -> None:
    headers = {"content-type": "application/json"}
    answer = await daemon.http.post("/rollouts/unknown/end", content=content, headers=headers)
    assert (answer.status_code, sentence in answer.json()["error"]["message"]) == (status, True), answer.text
    assert (await daemon.http.post("/rollouts/unknown/end")).status_code == 415


async def test_a_caller_who_keeps_spans_of_his_own_is_recorded_in_them(gateway) -> None:
    headers = {"traceparent": f"00-{'c' * 32}-{'d' * 16}-01"}
    await gateway.http.post("/rollouts/r/v1/chat/completions", json=_BODY, headers=headers)
    assert (await gateway.record()).trace_id == "c" * 32

"""The routes of prompts, in the daemon's own application: for clients, for people, and for an optimizer."""

from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightning_instrumentation import semconv
from lightning_instrumentation.redaction.rules import redactor

from lightning_trainer.config import Config
from lightning_trainer.daemon.api.prompts import prompts_router
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.errors import ProposalError
from lightning_trainer.prompts.proposer import Proposal, Proposers
from lightning_trainer.store import SqliteStore, prompts
from lightning_trainer.store.prompts import root_of
from lightning_trainer.types import Span

A, B = "Answer with a number.", "Answer with a word."
SECRET = "Use the key sk-proj-" + "a1B2" * 12 + "."
URL = "/lightning/prompts/clerk"


class Client:
    """Asks and returns the status and the answer, or the sentence of a refusal."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def get(self, path: str) -> tuple[int, Any]:
        return self._read(await self.http.get(path))

    async def post(self, path: str, **body: Any) -> tuple[int, Any]:
        return self._read(await self.http.post(path, json=body))

    async def use(self, default: str | None, root: str = "", name: str = "clerk") -> tuple[int, Any]:
        """Ask as a client does."""
        return await self.post(f"/lightning/prompts/{name}", root=root or root_of(default or ""), default=default)

    @staticmethod
    def _read(answer: httpx.Response) -> tuple[int, Any]:
        said = answer.json()
        return answer.status_code, said["error"]["message"] if "error" in said else said


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8321")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(tmp_path / "lightning.sqlite") as opened:
        yield opened


@pytest.fixture
async def client(store: SqliteStore) -> AsyncIterator[Client]:
    """Of a daemon without any policy."""
    app = Daemon(Config())._app(store, NotifyingStore(store), [], None)
    async with client_of(app) as http:
        yield Client(http)


@pytest.fixture
def with_proposers(store: SqliteStore) -> Callable[[Proposers], Client]:
    def make(proposers: Proposers) -> Client:
        app = FastAPI()
        app.include_router(prompts_router(store, redactor(()), proposers))
        return Client(client_of(app))

    return make


async def test_a_client_gets_its_default_until_something_better_is_live(client: Client) -> None:
    assert await client.use(A) == (200, {"version": 0, "text": A})
    status, made = await client.post(f"{URL}/versions", text="better", parent=0, reason="it was vague")
    assert status == 200
    assert await client.use(A) == (200, {"version": 0, "text": A})
    assert (await client.post(f"{URL}/live", version=1)) == (200, {**made, "state": "live"})
    assert await client.use(A) == (200, {"version": 1, "text": "better"})
    assert await client.use(None, root_of(A)) == (200, {"version": 1, "text": "better"})


async def test_a_changed_default_starts_a_line_of_its_own(client: Client) -> None:
    await client.use(A)
    await client.post(f"{URL}/versions", text="better", parent=0)
    await client.post(f"{URL}/live", version=1)
    assert await client.use(B) == (200, {"version": 2, "text": B})
    assert await client.get("/lightning/prompts") == (
        200,
        {"prompts": [{"name": "clerk", "live": [1, 2], "versions": 3}]},
    )


@pytest.mark.long
async def test_what_was_tried_is_listed_with_where_it_came_from_and_how_it_did(client: Client) -> None:
    await client.use(A)
    await client.post(f"{URL}/versions", text="better", parent=0, reason="it was vague")
    status, scored = await client.post(f"{URL}/versions/1/scores", stage="validation", mean=0.61, tasks=50)
    assert (status, scored["scores"]) == (200, {"validation": {"mean": 0.61, "tasks": 50}})
    await client.post(f"{URL}/versions/1/scores", stage="held-out", mean=1, tasks=20)
    status, listed = await client.get(URL)
    assert (status, listed["name"]) == (200, "clerk")
    first, second = listed["versions"]
    assert first.pop("created_ns") <= second.pop("created_ns")
    assert first == {
        "version": 0,
        "root": root_of(A),
        "text": A,
        "parent": None,
        "state": "live",
        "made_by": "code",
        "reason": None,
        "scores": {},
    }
    assert second == {
        "version": 1,
        "root": root_of(A),
        "text": "better",
        "parent": 0,
        "state": "candidate",
        "made_by": "person",
        "reason": "it was vague",
        "scores": {"validation": {"mean": 0.61, "tasks": 50}, "held-out": {"mean": 1.0, "tasks": 20}},
    }


async def test_versions_are_paged_newest_last(client: Client) -> None:
    await client.use(A)
    for number in range(1, 5):
        await client.post(f"{URL}/versions", text=str(number), parent=0)

    async def listed(query: str) -> list[int]:
        return [one["version"] for one in (await client.get(f"{URL}?{query}"))[1]["versions"]]

    assert await listed("limit=2") == [3, 4]
    assert await listed("limit=2&before=3") == [1, 2]
    assert await listed("before=0") == []
    assert (await client.get(f"{URL}?limit=0"))[0] == 422


async def test_the_version_that_an_attempt_used_is_read_from_its_spans(client: Client, store: SqliteStore) -> None:
    for text in (A, B):
        await client.use(text)
        await client.use(text, name="clerk.2")
    used: list[Any] = [("cook", 0), ("clerk.2", 0), ("clerk", 1), ("clerk", 0), ("clerk", "1"), ("clerk", True), (7, 1)]
    used += [("clerk", None), ("clerk", 9)]
    for number, (name, version) in enumerate(used):
        about: dict[str, Any] = {semconv.ATTEMPT_ID: "a" if number < 4 else f"a{number}", semconv.ROLLOUT_ID: "r"}
        about[semconv.PROMPT_NAME] = name
        about |= {} if version is None else {semconv.PROMPT_VERSION: version}
        await store.append([Span("1" * 32, f"{number + 1:016x}", None, f"prompt {name}", number + 1, 9, about)])
    assert await client.get(f"{URL}?used_in=a") == (200, {"version": 1, "text": B})
    assert await client.get(f"{URL}?used_in=none&used_in=a4&used_in=a") == (200, {"version": 1, "text": B})
    assert (await client.get(URL + "?" + "used_in=a&" * 33))[0] == 422
    assert await client.get("/lightning/prompts/clerk.2?used_in=a") == (200, {"version": 0, "text": A})
    for attempt in ("a4", "a5", "a6", "a7", "none"):
        status, sentence = await client.get(f"{URL}?used_in={attempt}")
        assert (status, "did not ask for prompt 'clerk'" in sentence) == (404, True), sentence
    assert await client.get(f"{URL}?used_in=a8") == (404, "prompt 'clerk' has no version 9: its versions are 0 to 1")


async def test_what_a_version_earned_is_told_with_its_interval(client: Client, store: SqliteStore, reward_span) -> None:
    await client.use(A)
    for number in range(4):
        about: dict[str, Any] = {semconv.ATTEMPT_ID: f"a{number}", semconv.ROLLOUT_ID: f"r{number}"}
        used = about | {semconv.PROMPT_NAME: "clerk", semconv.PROMPT_VERSION: 0}
        root = about | {semconv.ROLLOUT_ROOT: True}
        trace = f"{number + 1:032x}"
        spans = [
            Span(trace, "1" * 16, None, "r", 1, 9, root),
            Span(trace, "2" * 16, "1" * 16, "prompt clerk", 2, 3, used),
        ]
        await store.append([*spans, reward_span(number / 4, attempt=f"a{number}")])
    status, told = await client.get(f"{URL}/earned")
    ((low, high),) = (one.pop("interval") for one in told["earned"])
    assert (status, told["earned"]) == (
        200,
        [{"version": 0, "attempts": 4, "failed": 0, "rewarded": 4, "mean": 0.375, "more": False}],
    )
    assert low < 0.375 < high
    assert await client.get("/lightning/prompts/cook/earned") == (200, {"name": "cook", "earned": []})


async def test_a_default_that_must_not_be_kept_is_not_registered(client: Client) -> None:
    status, said = await client.use(None, root_of(A))
    assert (status, "one is registered when its text is sent" in said) == (404, True)
    status, said = await client.use(SECRET)
    assert status == 404
    assert "[daemon] redact would change it; use it as it is" in said
    assert "sk-proj" not in said
    assert await client.get("/lightning/prompts") == (200, {"prompts": []})
    assert (await client.get(URL)) == (404, "there is no prompt 'clerk': a program that uses it registers it")


async def test_no_version_of_a_person_holds_a_secret(client: Client, store: SqliteStore) -> None:
    await client.use(A)
    status, said = await client.post(f"{URL}/versions", text=SECRET, parent=0)
    assert (status, "leave out what looks like a secret" in said, "sk-proj" in said) == (422, True, False)
    status, made = await client.post(f"{URL}/versions", text="better", parent=0, reason=SECRET)
    assert (status, "sk-proj" in made["reason"]) == (200, False)
    assert [one.text for one in await store.scan(lambda c: prompts.select(c, "clerk"))] == [A, "better"]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("", {"root": root_of(B), "default": "other"}, 422, "is not the SHA-256 of the default"),
        ("", {"root": root_of(A).upper(), "default": A}, 422, "root"),
        ("", {"root": root_of(""), "default": ""}, 422, "default"),
        ("", {"root": root_of("a\0"), "default": "a\0"}, 422, "character 0"),
        ("", {"root": "0" * 64, "default": A, "x": 1}, 422, "x: Extra inputs are not permitted"),
        ("/versions", {"text": "x", "parent": 9}, 404, "prompt 'clerk' has no version 9: its versions are 0 to 0"),
        ("/versions", {"text": "x", "parent": 10**30}, 422, "parent"),
        ("/versions", {"text": "x" * 65_537, "parent": 0}, 422, "text"),
        ("/versions", {"text": "x", "parent": True}, 422, "parent"),
        ("/live", {"version": 9}, 404, "has no version 9"),
        ("/live", {"version": -1}, 422, "version"),
        ("/versions/9/scores", {"stage": "validation", "mean": 0.5, "tasks": 1}, 404, "has no version 9"),
        ("/versions/0/scores", {"stage": "", "mean": 0.5, "tasks": 1}, 422, "stage"),
        ("/versions/0/scores", {"stage": "validation", "mean": "x", "tasks": 1}, 422, "mean"),
        ("/versions/0/scores", {"stage": "validation", "mean": 0.5, "tasks": 0}, 422, "tasks"),
        ("/versions/x/scores", {"stage": "validation", "mean": 0.5, "tasks": 1}, 422, "version"),
        ("/proposals", {"parent": 0, "attempts": []}, 422, "attempts"),
        ("/proposals", {"parent": 0, "attempts": ["a"] * 1001}, 422, "attempts"),
        ("/proposals", {"parent": 3, "attempts": ["a"]}, 404, "has no version 3"),
    ],
)
async def test_what_cannot_be_is_refused_with_a_sentence(client: Client, path, body, status, said) -> None:
    await client.use(A)
    found, sentence = await client.post(f"{URL}{path}", **body)
    assert (found, said in sentence) == (status, True), sentence
    assert len((await client.get(URL))[1]["versions"]) == 1


async def test_a_name_that_is_none_and_an_unknown_one_are_refused(client: Client) -> None:
    for name in ("-a", "a%20b", "a%0A", "%00", "x" * 65, "%ff"):
        assert (await client.get(f"/lightning/prompts/{name}"))[0] == 422
        assert (await client.use(A, name=name))[0] == 422
    unknown = (404, "there is no prompt 'cook': a program that uses it registers it")
    assert await client.post("/lightning/prompts/cook/live", version=0) == unknown
    assert await client.post("/lightning/prompts/cook/versions", text="x", parent=0) == unknown


async def test_infinity_is_no_mean(client: Client) -> None:
    await client.use(A)
    raw = b'{"stage": "validation", "mean": 1e999, "tasks": 1}'
    headers = {"content-type": "application/json"}
    answer = await client.http.post(f"{URL}/versions/0/scores", content=raw, headers=headers)
    assert answer.status_code == 422


class Appending:
    """Makes a longer text of the parent's and says what it was asked."""

    def __init__(self, addition: str = " Think first.", reason: str | None = "it guessed") -> None:
        self.addition, self.reason = addition, reason
        self.asked: list[tuple] = []
        self.spent = {"calls": 2, "input_tokens": 900, "output_tokens": 80}

    async def propose(self, name, parent, attempts, seed) -> Proposal:
        self.asked.append((name, parent.version, list(attempts), seed))
        return Proposal(parent.text + self.addition, "reflect", self.reason, self.spent)


async def test_a_proposal_is_a_candidate_made_from_its_parent_and_attempts(with_proposers) -> None:
    proposers = Appending()
    client = with_proposers(proposers)
    await client.use(A)
    status, made = await client.post(f"{URL}/proposals", parent=0, attempts=["a1", "a2"], seed=7)
    assert proposers.asked == [("clerk", 0, ["a1", "a2"], 7)]
    assert status == 200
    assert {name: made[name] for name in ("version", "text", "parent", "state", "made_by", "reason")} == {
        "version": 1,
        "text": f"{A} Think first.",
        "parent": 0,
        "state": "candidate",
        "made_by": "reflect",
        "reason": "it guessed",
    }
    status, grandchild = await client.post(f"{URL}/proposals", parent=1, attempts=["a3"])
    assert (status, grandchild["version"], grandchild["parent"], grandchild["root"]) == (200, 2, 1, root_of(A))
    assert (await client.post(f"{URL}/proposals", parent=0, attempts=["a4"]))[1] == made, "the same text is one version"


async def test_a_proposal_that_cannot_be_kept_adds_nothing_and_says_why(with_proposers) -> None:
    class Refusing:
        async def propose(self, name, parent, attempts, seed) -> Proposal:
            raise ProposalError("none of the 2 attempts is recorded: name attempts that the daemon has seen")

    for proposers, said in (
        (Refusing(), "none of the 2 attempts is recorded"),
        (Appending("x" * 65_536), f"the text of a prompt has {65_536 + len(A):,} characters"),
        (Appending(f" {SECRET}"), "[daemon] redact would change it"),
        (Appending("\ud800"), "is not kept"),
    ):
        client = with_proposers(proposers)
        await client.use(A)
        status, sentence = await client.post(f"{URL}/proposals", parent=0, attempts=["a", "b"])
        assert (status, said in sentence or "a lone surrogate" in sentence) == (422, True), sentence
        assert len((await client.get(URL))[1]["versions"]) == 1


async def test_what_a_proposal_cost_is_told_even_if_there_is_none(with_proposers) -> None:
    class Refusing:
        async def propose(self, name, parent, attempts, seed) -> Proposal:
            raise ProposalError("big was asked 2 times", spent=Appending().spent)

    asked = {"parent": 0, "attempts": ["a"]}
    for proposers in (Appending(), Refusing(), Appending("x" * 65_536), Appending(f" {SECRET}")):
        client = with_proposers(proposers)
        await client.use(A)
        answer = await client.http.post(f"{URL}/proposals", json=asked)
        said = answer.json()
        assert said.get("error", said)["spent"] == {"calls": 2, "input_tokens": 900, "output_tokens": 80}, said


async def test_the_reasons_of_a_proposer_are_cut_to_what_is_kept_and_without_secrets(with_proposers) -> None:
    client = with_proposers(Appending(reason=f"\ud800 {SECRET} " + "x" * 20_000))
    await client.use(A)
    _, made = await client.post(f"{URL}/proposals", parent=0, attempts=["a"])
    assert 9_000 < len(made["reason"]) <= 10_000
    assert "sk-proj" not in made["reason"]


async def test_a_daemon_without_proposers_says_what_can_be_done_instead(client: Client) -> None:
    await client.use(A)
    status, sentence = await client.post(f"{URL}/proposals", parent=0, attempts=["a"])
    assert (status, "post a text of yours to clerk/versions" in sentence) == (503, True)


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200)
_NUMBERS = count()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(default=_TEXT, better=_TEXT)
async def test_any_text_is_served_as_it_was_written(client: Client, default: str, better: str) -> None:
    name = f"p{next(_NUMBERS)}"
    assert await client.use(default, name=name) == (200, {"version": 0, "text": default})
    status, made = await client.post(f"/lightning/prompts/{name}/versions", text=better, parent=0)
    assert (status, made["text"], made["version"]) == (200, better, int(better != default))
    await client.post(f"/lightning/prompts/{name}/live", version=made["version"])
    served = await client.use(None, root_of(default), name=name)
    assert served == (200, {"version": made["version"], "text": better})

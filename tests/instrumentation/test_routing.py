"""What a process knows of the daemon's selection: fetched beside the calls, kept while it can be trusted."""

import json
import os
import threading

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import runtime
from lightning_instrumentation.access.proof import Access
from lightning_instrumentation.routing import router as router_module
from lightning_instrumentation.routing.router import Router
from lightning_instrumentation.routing.selection import Selection, SelectionError, fetch_selection, read_selection

PROSE = Selection((("prose", ("wri*",)), ("rest", ("*",))))


@pytest.fixture
def answers(monkeypatch):
    """What the next fetches bring: a selection or an error; the last one stays."""
    answers: list = [PROSE]
    fetched = []

    def fetch(access):
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        fetched.append(threading.current_thread())
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(router_module, "fetch_selection", fetch)
    monkeypatch.setattr(router_module, "FIRST_WAIT_S", 10.0)
    answers_and_threads = answers, fetched
    return answers_and_threads


def fetched_again(router: Router) -> None:
    """Let one more fetch begin and end."""
    router._fetch_at = 0.0
    router.keep_fresh()
    with router._fetching:
        pass


def test_the_first_policy_that_matches_has_the_agent(answers):
    router = Router(Access("http://d"))
    assert [router.policy_of(name) for name in ("writer", "judge", "Writer", None)] == ["prose", "rest", "rest", None]
    assert len(answers[1]) == 1
    assert answers[1][0] is not threading.current_thread()


def test_a_call_does_not_wait_for_a_refresh(answers, monkeypatch):
    router = Router(Access("http://d"))
    assert router.policy_of("writer") == "prose"
    hung, go_on = threading.Event(), threading.Event()

    def fetch(access):
        hung.set()
        assert go_on.wait(10)
        return Selection()

    monkeypatch.setattr(router_module, "fetch_selection", fetch)
    router._fetch_at = 0.0
    assert router.policy_of("writer") == "prose"
    assert hung.wait(10)
    assert router.policy_of("writer") == "prose"
    go_on.set()
    with router._fetching:
        assert router.policy_of("writer") is None


def test_only_the_first_question_waits_and_not_for_long(answers, monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(router_module, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(router_module, "fetch_selection", lambda access: never.wait(10))
    router = Router(Access("http://d"))
    assert router.policy_of("writer") is None
    assert router.is_late()
    never.set()


def test_a_daemon_that_accepts_the_connection_is_waited_for_as_long_as_for_its_proof(answers, monkeypatch):
    monkeypatch.setattr(router_module, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(router_module, "PROOF_S", 10.0)
    answer = threading.Event()

    def fetch(access):
        access.accepted = True
        assert answer.wait(10)
        return PROSE

    monkeypatch.setattr(router_module, "fetch_selection", fetch)
    router = Router(Access("http://d"))
    assert router.policy_of("writer", 0.05) is None, "no longer than its caller waits"
    threading.Timer(0.05, answer.set).start()
    assert router.policy_of("writer") == "prose"
    assert not router.is_late()


def test_a_question_beside_the_very_first_waits_with_it(answers):
    router = Router(Access("http://d"))
    assert router._fetching.acquire()  # another thread is about to begin the first fetch
    heard: list[str | None] = []
    beside = threading.Thread(target=lambda: heard.append(router.policy_of("writer")))
    beside.start()
    beside.join(0.2)
    router._fetch()
    beside.join(10)
    assert heard == ["prose"]


def test_nothing_is_said_where_no_agent_makes_a_call(answers, caplog):
    answers[0][:] = [ConnectionRefusedError("refused")]
    router = Router(Access("http://d"))
    router.keep_fresh()
    assert router._answered.wait(10)
    assert router.policy_of(None) is None
    assert not caplog.records
    assert router.policy_of("writer") is None
    assert len(caplog.records) == 1


def test_a_refused_connection_ends_routing_and_an_answer_brings_it_back(answers, caplog):
    router = Router(Access("http://d"))
    assert router.policy_of("writer") == "prose"
    for answer, policy in [
        (ConnectionRefusedError("refused"), None),
        (PROSE, "prose"),
        (ConnectionRefusedError("refused"), None),
    ]:
        answers[0][:] = [answer]
        fetched_again(router)
        assert router.policy_of("writer") == policy
    assert len([record for record in caplog.records if "is away" in record.getMessage()]) == 1


def test_a_busy_daemon_is_trusted_for_a_while_only(answers, monkeypatch):
    router = Router(Access("http://d"))
    assert router.policy_of("writer") == "prose"
    answers[0][:] = [TimeoutError("busy")]
    fetched_again(router)
    assert router.policy_of("writer") == "prose"
    monkeypatch.setattr(router_module, "_TRUST_S", 0.0)
    fetched_again(router)
    assert router.policy_of("writer") is None


def test_without_fallback_the_last_selection_stays_in_force(answers):
    router = Router(Access("http://d"), fallback=False)
    assert router.policy_of("writer") == "prose"
    answers[0][:] = [ConnectionRefusedError("refused")]
    fetched_again(router)
    router.daemon_is_away()
    assert router.policy_of("writer") == "prose"


def test_a_daemon_that_was_found_away_is_asked_again_by_the_next_call(answers):
    router = Router(Access("http://d"))
    assert router.policy_of("writer") == "prose"
    router.daemon_is_away()
    router.keep_fresh()
    with router._fetching:
        pass
    assert len(answers[1]) == 2
    assert router.policy_of("writer") == "prose"


def test_switched_off_it_asks_nobody(answers):
    router = Router(Access("http://d"), enabled=False)
    router.keep_fresh()
    assert router.policy_of("writer") is None
    assert answers[1] == []


def test_nothing_is_routed_only_where_that_is_known_and_nothing_is_to_do(answers):
    answers[0][:] = [Selection()]
    router = Router(Access("http://d"))
    assert not router.routes_nothing(), "the first selection has not come"
    assert router.policy_of("writer") is None
    assert router.routes_nothing()
    router._fetch_at = 0.0
    assert not router.routes_nothing(), "a fetch is due"
    answers[0][:] = [PROSE]
    fetched_again(router)
    assert not router.routes_nothing()
    answers[0][:] = [ConnectionRefusedError("refused")]
    fetched_again(router)
    assert not router.routes_nothing(), "that the daemon is away has to be told"
    assert router.policy_of("writer") is None
    assert router.routes_nothing()
    assert Router(Access("http://d"), enabled=False).routes_nothing()


def test_any_number_of_agent_names_fits(answers, monkeypatch):
    monkeypatch.setattr(router_module, "_MOST_REMEMBERED", 10)
    router = Router(Access("http://d"))
    assert {router.policy_of(f"agent {number}") for number in range(100)} == {"rest"}
    assert len(router._policies) <= 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_knows_what_its_parent_knew(receiver, tmp_path, answers):
    lt.shutdown(0.0)
    lt.init(receiver.url, spool_dir=tmp_path)
    started = runtime.runtime()
    assert started is not None
    assert started.router.policy_of("writer") == "prose"
    # A fetch that was under way in the parent does not go on in the child.
    started.router._fetching.acquire()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        router = runtime.runtime().router  # type: ignore[union-attr]
        known = router.policy_of("writer")
        os.write(writing, json.dumps([known, router._fetching.locked()]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    started.router._fetching.release()
    assert json.loads(os.read(reading, 100))[0] == "prose"
    assert len(answers[1]) == 1
    lt.shutdown(0.0)


@pytest.mark.parametrize(
    "document",
    [[], {}, {"policies": 1}, {"policies": [{}]}, {"policies": [{"name": 1, "agents": []}]},
     {"policies": [{"name": "p", "agents": [1]}]}, {"policies": [{"name": "p", "agents": None}]}],
)  # fmt: skip
def test_what_is_no_selection_is_refused(document):
    with pytest.raises((KeyError, TypeError)):
        read_selection(document)


def test_the_stubs_empty_selection_is_fetched(receiver):
    assert fetch_selection(Access(receiver.url)) == Selection()


def test_a_server_that_knows_no_selection_says_so(model):
    with pytest.raises(SelectionError, match="501"):
        fetch_selection(Access(model.url))

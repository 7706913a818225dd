"""What must hold for whole processes: light import, forks, exits and kills."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.delivery.spool import endpoint_folder, orphaned_spools

pytestmark = pytest.mark.process

PREAMBLE = """
import os, signal, sys, time
import lightning_instrumentation as lt
from lightning_instrumentation.delivery import outbox, post
# What does not get out in time waits on disk; on a crowded machine the time is short, and here it is not the question.
outbox._AT_EXIT_S = post._CONNECT_TIMEOUT_S = 30.0
@lt.agent("child")
def work():
    return lt.stats()
"""


def run(code: str, receiver_url: str, spool_dir, *, check: bool = True) -> subprocess.CompletedProcess:
    environment = {**os.environ, "LIGHTNING_ENDPOINT": receiver_url, "LIGHTNING_SPOOL_DIR": str(spool_dir)}
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def test_the_import_is_light():
    code = """
    import resource, sys
    before = resource.getrusage(resource.RUSAGE_SELF)
    import lightning_instrumentation
    after = resource.getrusage(resource.RUSAGE_SELF)
    heavy = {"openai", "httpx", "requests", "pydantic", "langchain_core", "torch", "numpy", "lightning_trainer"}
    print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, *(heavy & set(sys.modules)))
    """
    measured = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
        seconds, *heavy = done.stdout.split()
        assert heavy == []
        measured.append(float(seconds))
    assert min(measured) < 0.3, measured


def test_starting_imports_no_http_client_and_no_framework():
    done = run(
        """
        work()
        print(*({"openai", "httpx", "httpx2", "requests", "pydantic", "langchain_core"} & set(sys.modules)))
        """,
        "http://127.0.0.1:9",
        os.devnull,
    )
    assert done.stdout.split() == []


def test_a_program_that_ends_at_once_has_delivered_everything(receiver, tmp_path):
    run("for _ in range(20): work()", receiver.url, tmp_path)
    assert len(receiver.spans()) == 20
    assert list(endpoint_folder(tmp_path, receiver.url).iterdir()) == []


@pytest.mark.parametrize("before", ["pass", "import tempfile; kept = tempfile.TemporaryDirectory()"])
def test_what_is_read_halfway_at_the_end_is_delivered_whatever_came_first(receiver, model, tmp_path, before):
    code = f"""
    {before}
    import lightning_instrumentation as lt
    import httpx
    lt.init()
    asked = {{"model": "m", "stream": True, "messages": [{{"role": "user", "content": "a b c"}}]}}
    client = httpx.Client()
    request = client.build_request("POST", "{model.base_url}/chat/completions", json=asked)
    lines = client.send(request, stream=True).iter_lines()
    @lt.agent("reader")
    def read():
        yield next(lines)
    @lt.agent("async reader")
    async def read_on():
        yield next(lines)
    async def begin():
        global reading_on
        reading_on = read_on()
        await anext(reading_on)
    @lt.tool
    def listing():
        yield 1
    reading, listed = read(), listing()
    next(reading), next(listed)
    import asyncio
    asyncio.run(begin())
    """
    environment = {**os.environ, "LIGHTNING_ENDPOINT": receiver.url, "LIGHTNING_SPOOL_DIR": str(tmp_path)}
    program = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(program, env=environment, check=True, timeout=60, capture_output=True, text=True)
    assert done.stderr == ""
    held, *generators = receiver.wait_for(4)
    assert held.attributes[semconv.STREAM_COMPLETE] is False
    assert [(span.name, span.error) for span in generators] == [
        ("invoke_agent reader", None),
        ("execute_tool listing", None),
        ("invoke_agent async reader", None),
    ]


def test_an_unreachable_daemon_does_not_delay_the_end_and_spans_wait(receiver, tmp_path):
    receiver.stop()
    began = time.monotonic()
    done = run("began = time.monotonic(); work(); import atexit; atexit.register(lambda: None)", receiver.url, tmp_path)
    assert time.monotonic() - began < 10
    assert "not reachable" in done.stderr
    assert done.stderr.count("\n") == 1
    (orphan,) = orphaned_spools(tmp_path, receiver.url)
    assert orphan.rows == 1
    orphan.close()
    receiver.start()
    run("work()\nlt.flush(10)\ntime.sleep(0.2)", receiver.url, tmp_path)
    assert len(receiver.wait_for(2)) == 2


def test_a_process_that_is_killed_right_after_a_call_has_lost_nothing(receiver, tmp_path):
    receiver.stop()
    done = run("work(); os.kill(os.getpid(), signal.SIGKILL)", receiver.url, tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    receiver.start()
    lt.shutdown(0.0)
    lt.init(receiver.url, spool_dir=tmp_path)

    @lt.agent("next process")
    def following() -> None:
        pass

    following()
    receiver.wait_for(2)
    assert {span.attributes[semconv.AGENT_NAME] for span in receiver.spans()} == {"child", "next process"}
    lt.shutdown()
    assert list(endpoint_folder(tmp_path, receiver.url).iterdir()) == []


def test_a_forked_child_delivers_its_own_and_the_parent_its_own(receiver, tmp_path):
    run(
        """
        work()
        lt.flush()
        with lt.rollout("t", rollout_id="r"):
            child = os.fork()
            work()
            if child == 0:
                lt.flush(10)
        if child == 0:
            sys.exit(0)
        os.waitpid(child, 0)
        work()
        """,
        receiver.url,
        tmp_path,
    )
    agents = receiver.spans("invoke_agent")
    assert len(agents) == 4
    assert sum(span.attributes.get(semconv.ROLLOUT_ID) == "r" for span in agents) == 2
    assert len({span.resource["process.pid"] for span in agents}) == 2
    assert list(endpoint_folder(tmp_path, receiver.url).iterdir()) == []


def test_children_of_multiprocessing_deliver_before_they_end(receiver, tmp_path):
    run(
        """
        import multiprocessing
        work()
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=work) for _ in range(4)]
        for child in children: child.start()
        for child in children: child.join()
        """,
        receiver.url,
        tmp_path,
    )
    assert len(receiver.spans()) == 5
    assert list(endpoint_folder(tmp_path, receiver.url).iterdir()) == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_work_for_a_pool_of_processes_is_its_callers(receiver, tmp_path, method):
    """Workers are started in the middle of one rollout, and serve every caller."""
    (tmp_path / "pooled.py").write_text(
        "import lightning_instrumentation as lt\n@lt.agent('pooled')\ndef work(name):\n    return name\n"
    )
    run(
        f"""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        sys.path.append({str(tmp_path)!r})
        import pooled
        context = multiprocessing.get_context({method!r})
        executor = ProcessPoolExecutor(1, mp_context=context)
        with lt.rollout("t", rollout_id="first"):
            pool = context.Pool(1)
            assert executor.submit(pooled.work, "e first").result() == "e first"
        for name in ("second", "third"):
            with lt.rollout("t", rollout_id=name):
                executor.submit(pooled.work, f"e {{name}}").result()
                assert list(executor.map(pooled.work, ["x", "y"])) == ["x", "y"]
                assert pool.map(pooled.work, ["x", "y"]) == ["x", "y"]
                assert pool.apply(pooled.work, ("x",)) == next(pool.imap(pooled.work, "x")) == "x"
        executor.submit(pooled.work, "nobody").result()
        pool.apply_async(func=pooled.work, args=("nobody",)).get()
        executor.shutdown()
        pool.close()
        pool.join()
        """,
        receiver.url,
        tmp_path,
    )
    spans = receiver.wait_for(16, prefix="invoke_agent")
    roots = {span.attributes[semconv.ROLLOUT_ID]: span for span in receiver.spans("rollout")}
    whose = [span.attributes.get(semconv.ROLLOUT_ID) for span in spans]
    assert sorted(map(str, whose)) == ["None"] * 2 + ["first"] + ["second"] * 7 + ["third"] * 7
    for span, name in zip(spans, whose, strict=True):
        if name is not None:
            assert (span.trace_id, span.parent_span_id) == (roots[name].trace_id, roots[name].span_id)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_pools_process_is_told_what_the_program_told_its_client(receiver, model, tmp_path, method):
    """Before, the client was not started there, or with the environment's settings."""
    receiver.token = "the-token"
    done = in_a_pool(receiver, model, tmp_path, method, 'redact="emails", token="the-token"')
    assert done.stderr == ""
    calls = receiver.wait_for(3, prefix="chat")
    assert [call.attributes[semconv.AGENT_NAME] for call in calls] == ["support", "support", "program"]
    for call in calls:
        assert call.resource["process.pid"] != int(done.stdout)
        assert "[redacted e-mail]" in repr(call)
        assert "ann@" not in repr(call)
    assert {headers["authorization"] for _, _, headers in receiver.posts} == {"Bearer the-token"}


@pytest.mark.parametrize("rule", ["lambda text: text", "of_main"])
def test_where_a_rule_cannot_go_no_texts_are_recorded(receiver, model, tmp_path, rule):
    done = in_a_pool(receiver, model, tmp_path, "spawn", f"redact={rule}")
    assert done.stderr.count("no texts are recorded in this one") == done.stderr.count("\n") == 1
    calls = receiver.wait_for(3, prefix="chat")
    assert "ann@" not in repr(calls)
    assert {call.attributes[semconv.RESPONSE_MODEL] for call in calls} == {"m"}


def in_a_pool(receiver, model, tmp_path, method: str, told: str) -> subprocess.CompletedProcess:
    (tmp_path / "pooled.py").write_text(
        "import httpx\n"
        "def ask(said):\n"
        f"    url, messages = '{model.base_url}/chat/completions', [{{'role': 'user', 'content': said}}]\n"
        "    httpx.post(url, json={'model': 'm', 'messages': messages})\n"
    )
    return run(
        f"""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        sys.path.append({str(tmp_path)!r})
        import pooled
        def of_main(text): return text
        lt.init({receiver.url!r}, spool_dir={str(tmp_path / "spool")!r}, agent="program", {told})
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context({method!r})) as pool:
            with lt.agent("support"):
                list(pool.map(pooled.ask, ["I am ann@example.com"] * 2))
            pool.submit(pooled.ask, "ann@example.com asks").result()
        print(os.getpid())
        """,
        "http://127.0.0.1:9",
        os.devnull,
    )


def test_a_fork_during_an_import_of_the_sender_does_not_stop_the_child(receiver, tmp_path):
    """The child has the lock on the half-imported module, and nobody who could ever let go of it."""
    run(
        """
        import importlib.abc, multiprocessing, multiprocessing.popen_fork
        class Slow(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name == "encodings.idna":
                    importing.set()
                    time.sleep(1.0)
        import threading
        importing = threading.Event()
        outbox._AT_EXIT_S = 5.0
        sys.meta_path.insert(0, Slow())
        work()
        def work_beside_a_thread():
            # It takes the identity that the parent's sender had: whose lock it is would let the child's own in.
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            work()
        child = multiprocessing.get_context("fork").Process(target=work_beside_a_thread)
        importing.wait(5)
        child.start()
        child.join()
        lt.flush()
        os._exit(0)  # it would deliver what the child had to leave
        """,
        receiver.url,
        tmp_path,
    )
    assert len(receiver.spans()) == 2


def test_a_child_that_is_the_first_to_record_delivers_too(receiver, tmp_path):
    run(
        """
        import multiprocessing
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        """,
        receiver.url,
        tmp_path,
    )
    assert len(receiver.spans()) == 1


def test_threads_write_while_the_process_forks(receiver, tmp_path):
    run(
        """
        import threading
        stop = threading.Event()
        def busy():
            while not stop.is_set(): work()
        threads = [threading.Thread(target=busy) for _ in range(4)]
        for thread in threads: thread.start()
        for _ in range(5):
            child = os.fork()
            if child == 0:
                work()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads: thread.join()
        """,
        receiver.url,
        tmp_path,
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("kind", ["target", "run"])
def test_a_process_of_the_users_own_is_told_what_a_forked_one_knows(receiver, model, tmp_path, method, kind):
    """Before, a spawned one recorded every text, for the daemon of the environment, and in no rollout."""
    (tmp_path / "worker.py").write_text(
        "import httpx, multiprocessing\n"
        "def ask():\n"
        f"    url, messages = '{model.base_url}/chat/completions', [{{'role': 'user', 'content': 'a secret'}}]\n"
        "    httpx.post(url, json={'model': 'm', 'messages': messages})\n"
        f"class Worker(multiprocessing.get_context({method!r}).Process):\n"
        "    def run(self):\n"
        "        assert ask.__module__ == 'worker'\n"
        "        ask()\n"
    )
    process = (
        "worker.Worker()" if kind == "run" else f"multiprocessing.get_context({method!r}).Process(target=worker.ask)"
    )
    done = run(
        f"""
        import multiprocessing
        sys.path.append({str(tmp_path)!r})
        import worker
        lt.init({receiver.url!r}, spool_dir={str(tmp_path / "spool")!r}, capture_content=False, route=False)
        with lt.rollout("t", rollout_id="r"), lt.agent("support"):
            process = {process}
            process.start()
            process.join()
        assert process.exitcode == 0
        assert "run" not in vars(process)
        """,
        "http://127.0.0.1:9",
        os.devnull,
    )
    assert done.stderr == ""
    (call,) = receiver.wait_for(1, prefix="chat")
    assert (call.attributes[semconv.ROLLOUT_ID], call.attributes[semconv.AGENT_NAME]) == ("r", "support")
    assert "a secret" not in repr(call)
    (agent,) = receiver.spans("invoke_agent")
    assert call.parent_span_id == agent.span_id

"""``lightning-trainer run``: programs without a line of ours are captured, and behave as they do without us."""

import os
import re
import resource
import signal
import subprocess
import sys
import sysconfig
import textwrap
from http.client import BadStatusLine
from pathlib import Path

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.routing.selection import Selection, SelectionError
from lightning_instrumentation.zero_code.environ import SITE, ProgramRollout, with_site, write_rollout

from lightning_trainer.cli import other_languages

pytestmark = pytest.mark.process

BIN = Path(sysconfig.get_path("scripts"))
LAUNCHER = str(BIN / "lightning-trainer")

AGENT = """
import os, sys
import httpx
def ask(said):
    body = {"model": "m", "messages": [{"role": "user", "content": said}]}
    httpx.post(os.environ["MODEL_URL"] + "/chat/completions", json=body).raise_for_status()
"""
# Importing openai takes ten times as long: it stands where something depends on it.
AGENT_WITH_OPENAI = """
import os, sys
import openai
client = openai.OpenAI(base_url=os.environ["MODEL_URL"], api_key="k", max_retries=0)
def ask(said):
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": said}])
"""


@pytest.fixture
def launch(receiver, model, tmp_path):
    """Run a command under the launcher; ``agent.py`` and what else is given lies in the working directory."""
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "helper.py").write_text(AGENT)
    (folder / "with_openai.py").write_text(AGENT_WITH_OPENAI)
    receiver.model = model

    def launch(options: list[str], command: list[str], *, files: dict[str, str] | None = None, plain=False, **extra):
        for name, code in (files or {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(textwrap.dedent(code))
        environment = {
            **os.environ,
            "LIGHTNING_ENDPOINT": receiver.url,
            "LIGHTNING_SPOOL_DIR": str(tmp_path / "spool"),
            "MODEL_URL": model.base_url,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # they take longer to import than all else
            **extra.pop("env", {}),
        }
        whole = command if plain else [LAUNCHER, "run", *options, "--", *command]
        return subprocess.run(whole, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, **extra)

    return launch


def agents(receiver) -> list[tuple[str | None, str | None]]:
    """(agent, attempt) of every captured call."""
    said = [span.attributes for span in receiver.spans("chat")]
    return [(of.get(semconv.AGENT_NAME), of.get(semconv.ATTEMPT_ID)) for of in said]


SCRIPT = "from helper import ask\nask('hi')\n"
OPENAI_SCRIPT = SCRIPT.replace("helper", "with_openai")


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"agent.py": SCRIPT}, [sys.executable, "agent.py"]),
        ({"agent.py": OPENAI_SCRIPT}, [sys.executable, "agent.py"]),
        ({"pack/__main__.py": SCRIPT}, [sys.executable, "-m", "pack"]),
        ({}, [sys.executable, "-c", SCRIPT]),
        (
            {"test_it.py": "from helper import ask\ndef test_it(): ask('hi')\n"},
            [str(BIN / "pytest"), "-q", "-p", "no:cacheprovider"],
        ),
        ({"agent.py": SCRIPT, "run.sh": f"cd .\n{sys.executable} agent.py\n"}, ["sh", "run.sh"]),
        (
            {"agent.py": f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SCRIPT!r}], check=True)\n"},
            [sys.executable, "agent.py"],
        ),
        (
            {"agent.py": """
                import multiprocessing
                from helper import ask
                if __name__ == "__main__":
                    with multiprocessing.get_context("spawn").Pool(1) as pool:
                        pool.map(ask, ["hi"])
                        pool.close()
                        pool.join()
                """},
            [sys.executable, "agent.py"],
        ),
    ],
    ids=["script", "script with openai", "module", "code", "console script", "shell", "subprocess", "spawned"],
)  # fmt: skip
def test_a_program_is_captured(launch, receiver, files, command):
    done = launch(["--agent", "helper"], command, files=files)
    assert done.returncode == 0, done.stderr
    assert agents(receiver) == [("helper", None)], done.stderr
    assert "lightning" not in done.stderr


def test_a_program_finds_its_own_file_of_secrets(launch, receiver):
    """Before: the standard library's was loaded by then, and had none of them."""
    files = {"secrets.py": "API_KEY = 'k'\n", "agent.py": f"import secrets\nprint(secrets.API_KEY)\n{SCRIPT}"}
    done = launch(["--task", "t"], [sys.executable, "agent.py"], files=files)
    assert (done.returncode, done.stdout) == (0, "k\n"), done.stderr
    assert len(agents(receiver)) == 1


@pytest.mark.parametrize("launcher", ["ours", "ours, with a rollout", "opentelemetry's"])
def test_what_the_program_itself_leaves_out_is_left_out(launch, receiver, launcher):
    """Before, `import openai` started the client with the environment's settings, and the program's had no effect."""
    files = {
        "agent.py": """
        from with_openai import ask
        import lightning_instrumentation as lt
        lt.init(capture_content=False, agent="discreet")
        ask("the question")
        """
    }
    command, plain = [sys.executable, "agent.py"], launcher.startswith("open")
    if plain:
        command = [str(BIN / "opentelemetry-instrument"), "--traces_exporter", "none", *command]
    done = launch(["--task", "t"] if "rollout" in launcher else [], command, files=files, plain=plain)
    assert (done.returncode, done.stderr) == (0, "")
    (call,) = receiver.spans("chat")
    assert call.attributes[semconv.AGENT_NAME] == "discreet"
    assert "question" not in repr(receiver.spans())


def test_exit_code_streams_arguments_and_path_are_the_programs_own(launch):
    files = {
        "agent.py": """
        import sys
        print(sys.argv, sys.path, "sitecustomize" in sys.modules and sys.modules["sitecustomize"].__file__)
        print(sys.stdin.read(), file=sys.stderr)
        sys.exit(7)
        """
    }
    command = [sys.executable, "agent.py", "--agent", "--", "-x"]
    captured, plain = (launch([], command, files=files, input="typed", plain=plain) for plain in (False, True))
    assert (captured.returncode, captured.stderr) == (plain.returncode, plain.stderr) == (7, "typed\n")
    ours = str(SITE / "sitecustomize.py")
    assert captured.stdout == plain.stdout or captured.stdout == plain.stdout.replace("False", ours)


def test_signals_reach_the_program_itself(launch, tmp_path):
    code = "import os, signal; print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGTERM)"
    assert launch([], [sys.executable, "-c", code]).returncode == -signal.SIGTERM
    # What Python ignores, another program must not inherit as ignored.
    assert launch([], ["sh", "-c", "kill -PIPE $$; echo alive"]).returncode == -signal.SIGPIPE


def test_the_users_own_sitecustomize_runs_first_and_its_mistakes_are_its_own(launch, receiver, tmp_path):
    site = tmp_path / "theirs"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys; sys.theirs = 'openai' in sys.modules\nVALUE = 4\n")
    code = OPENAI_SCRIPT + "import sys, sitecustomize; print(sys.theirs, sitecustomize.VALUE)"
    done = launch([], [sys.executable, "-c", code], env={"PYTHONPATH": str(site)})
    assert done.stdout == "False 4\n", done.stderr
    assert len(agents(receiver)) == 1
    (site / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    broken = launch([], [sys.executable, "-c", SCRIPT], env={"PYTHONPATH": str(site)})
    assert (broken.returncode, len(agents(receiver))) == (0, 2)
    assert "ValueError: theirs" in broken.stderr


@pytest.mark.parametrize(
    ("before", "after"), [(None, "S"), ("", "S"), ("/a", "S:/a"), (":/a", "S::/a"), ("/a:S", "/a:S")]
)
def test_pythonpath_gets_our_folder_once_and_no_empty_entry(before, after):
    given = before and before.replace("S", str(SITE))
    assert with_site(given) == after.replace("S", str(SITE))


class TestRollout:
    def test_the_whole_run_is_one_attempt_of_all_its_processes(self, launch, receiver):
        files = {
            "agent.py": f"""
            import os, subprocess, sys, threading
            from helper import ask
            ask("one")
            thread = threading.Thread(target=ask, args=("two",)); thread.start(); thread.join()
            subprocess.run([sys.executable, "-c", {SCRIPT!r}], check=True)
            if os.fork() == 0:
                ask("four")
                sys.exit(0)
            os.wait()
            import lightning_instrumentation as lt
            lt.reward(1.0)
            """
        }
        options = ["--task=t", "--rollout", "r", "--group", "g", "--agent", "a"]
        done = launch(options, [sys.executable, "agent.py"], files=files)
        assert done.returncode == 0, done.stderr
        (root,) = receiver.spans("rollout")
        assert root.attributes[semconv.ROLLOUT_ROOT] is True
        named = (semconv.ROLLOUT_ID, semconv.TASK_ID, semconv.GROUP_ID)
        assert [root.attributes[key] for key in named] == ["r", "t", "g"]
        attempt = root.attributes[semconv.ATTEMPT_ID]
        assert agents(receiver) == [("a", attempt)] * 4
        assert len(receiver.spans("evaluate")) == 1
        assert root.end_ns >= max(span.end_ns for span in receiver.spans())
        assert root.error is None

    def test_a_rollout_of_the_programs_own_is_the_attempt(self, launch, receiver):
        code = "import lightning_instrumentation as lt\nwith lt.rollout('mine', mode='record'): lt.reward(1.0)"
        done = launch(["--task", "t", "--mode", "evaluate"], [sys.executable, "-c", code])
        assert done.returncode == 0, done.stderr
        (evaluation,) = receiver.spans("evaluate")
        (root,) = (span for span in receiver.spans("rollout") if semconv.ROLLOUT_ROOT in span.attributes)
        assert evaluation.attributes[semconv.ATTEMPT_ID] == root.attributes[semconv.ATTEMPT_ID]
        assert evaluation.attributes[semconv.ROLLOUT_MODE] == "evaluate"

    def test_an_uncaught_exception_fails_the_attempt_and_sys_exit_does_not(self, launch, receiver):
        assert launch(["--task", "t"], [sys.executable, "-c", "raise ValueError('no')"]).returncode == 1
        assert launch(["--task", "t"], [sys.executable, "-c", "import sys; sys.exit(3)"]).returncode == 3
        assert [root.error for root in receiver.spans("rollout")] == ["no", None]

    def test_a_program_that_replaces_itself_is_still_one_attempt(self, launch, receiver):
        again = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'pass'])"
        assert launch(["--task", "t"], [sys.executable, "-c", again]).returncode == 0
        assert len(receiver.spans("rollout")) == 1

    def test_what_cannot_begin_a_rollout_is_refused_or_says_so(self, launch, receiver):
        done = launch(["--task", "t"], ["env", "true"])
        assert done.returncode == 2
        assert "'env' is not a Python program" in done.stderr
        script = launch(["--task", "t"], ["./run.sh"], files={"run.sh": ""})  # not executable
        assert script.returncode == 126

    def test_a_shell_script_is_told_that_the_rollout_has_no_end(self, launch, receiver, tmp_path):
        script = tmp_path / "run.sh"
        script.write_text(f"#!/bin/sh\n{sys.executable} -c pass\n")
        script.chmod(0o755)
        done = launch(["--task", "t"], [str(script)])
        assert done.returncode == 0
        assert "no beginning and no end" in done.stderr
        assert receiver.spans("rollout") == []


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "code", "sentence"),
        [
            ([], 2, "there is no command to run"),
            (["--agent", "a", "--"], 2, "there is no command to run"),
            (["--endpoint", "localhost:1", "--", "true"], 2, "'localhost:1' is not an http(s) URL"),
            (["--", "no-such-command"], 127, "no command 'no-such-command'"),
            (["--", "/etc/passwd"], 126, "'/etc/passwd' cannot be run"),
            (["--agnet", "a", "--", "true"], 2, "no option '--agnet'"),
            (["--agent"], 2, "--agent needs a value"),
            (["--agent", " ", "--", "true"], 2, "--agent is empty"),
            (["--task", "t", "--mode", "test", "--", "true"], 2, "--mode is 'test'"),
            (["--group", "g", "--", "true"], 2, "name it with --task"),
        ],
    )
    def test_each_is_one_sentence(self, arguments, code, sentence):
        done = subprocess.run([LAUNCHER, "run", *arguments], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (code, "")
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1

    def test_help_is_there(self):
        done = subprocess.run([LAUNCHER, "run", "--help"], capture_output=True, text=True)
        assert done.returncode == 0
        assert "--agent" in done.stdout


def cpu_s(command: list[str], folder: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class TestOtherLanguages:
    """A program that is not Python: before, nothing was captured and nothing said."""

    SCRIPT = "console.log(JSON.stringify([process.env.OPENAI_BASE_URL, process.env.ANTHROPIC_BASE_URL]))"

    @pytest.fixture
    def node(self, tmp_path) -> str:
        """A script that names node; what runs it is of no matter here."""
        path = tmp_path / "bin" / "node"
        path.parent.mkdir()
        path.write_text("#!/usr/bin/env node\n")
        path.chmod(0o755)
        return str(path)

    @staticmethod
    def select(monkeypatch, answer) -> None:
        def fetch(access):
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(other_languages, "fetch_selection", fetch)

    def test_where_a_policy_claims_its_agent_it_finds_the_gateway(self, monkeypatch) -> None:
        self.select(monkeypatch, Selection((("sql", ("writer",)),)))
        environment = {"LIGHTNING_ENDPOINT": "http://d:1", "OPENAI_API_KEY": "sk-mine"}
        said = other_languages.lead(environment, "node", "writer")
        base = environment["ANTHROPIC_BASE_URL"]
        assert re.fullmatch(r"http://d:1/rollouts/[0-9a-f]{32}/agents/writer", base)
        assert environment["OPENAI_BASE_URL"] == environment["OPENAI_API_BASE"] == f"{base}/v1"
        assert (environment["OPENAI_API_KEY"], environment["ANTHROPIC_API_KEY"]) == ("sk-mine", "none")
        assert "'node' is not a Python program: the policy 'sql' answers its agent 'writer'" in said
        assert "by OPENAI_BASE_URL, OPENAI_API_BASE, ANTHROPIC_BASE_URL" in said
        assert "/end" in said

    @pytest.mark.parametrize("attempt", ["r 1", "another"])
    def test_inside_an_attempt_it_belongs_to_that_where_its_url_can_name_it(self, monkeypatch, attempt) -> None:
        self.select(monkeypatch, Selection((("sql", ("*",)),)))
        environment = {"LIGHTNING_ENDPOINT": "http://d:1"}
        write_rollout(environment, ProgramRollout(1, "t", "r 1", attempt, "g", "train"))
        said = other_languages.lead(environment, "node", None)
        inside = environment["ANTHROPIC_BASE_URL"] == "http://d:1/rollouts/r%201/agents/default"
        assert inside == (attempt == "r 1")
        assert said.endswith("). Its calls belong to the attempt around it") == inside
        assert ("Reward and end it" in said) != inside

    def test_the_daemons_token_is_its_key_and_its_url_says_that_no_texts_are_recorded(self, monkeypatch) -> None:
        self.select(monkeypatch, Selection((("sql", ("*",)),)))
        environment = {"LIGHTNING_TOKEN": "token", "OPENAI_API_KEY": "sk-mine", "LIGHTNING_CAPTURE_CONTENT": "off"}
        other_languages.lead(environment, "node", None)
        assert (environment["OPENAI_API_KEY"], environment["ANTHROPIC_API_KEY"]) == ("token", "token")
        assert environment["ANTHROPIC_BASE_URL"].endswith("/agents/default/with/capture_content=0")

    @pytest.mark.parametrize(
        ("answer", "sentence"),
        [
            # Before: "no policy claims the agent", where there was none that could
            (
                Selection(),
                "the daemon at http://127.0.0.1:8321 has no [[policy]]: it records what comes to it as spans",
            ),
            (Selection((("sql", ("a",)),)), "no policy claims the agent 'writer'; name one that a policy lists with -"),
            (ConnectionRefusedError("refused"), "no daemon answers at http://127.0.0.1:8321 (refused); start it with"),
            (SelectionError("it answered 401", 401), "refuses our token; set LIGHTNING_TOKEN"),
            (SelectionError("it answered 404", 404), "is not a lightning-trainer daemon (it answered 404)"),
            (BadStatusLine("x"), "does not speak HTTP; check --endpoint"),
        ],
    )
    def test_else_it_is_left_as_it_is_and_what_to_do_is_said(self, monkeypatch, answer, sentence) -> None:
        self.select(monkeypatch, answer)
        environment = {"OPENAI_BASE_URL": "https://api.example/v1"}
        said = other_languages.lead(environment, "node", "writer")
        assert environment == {"OPENAI_BASE_URL": "https://api.example/v1"}
        assert sentence in said
        assert "Its calls are recorded where its client has the base URL http://127.0.0.1:8321/rollouts/" in said

    @pytest.mark.parametrize(
        ("answer", "sentence"),
        [
            (Selection(), "has no [[policy]] that answers at LIGHTNING_ROLLOUT_URL: its calls are not captured; add"),
            (Selection((("sql", ("a",)),)), None),
            (ConnectionRefusedError("refused"), None),
            (SelectionError("it answered 401", 401), None),
        ],
    )
    def test_of_rollouts_it_is_said_where_nothing_answers_them(self, monkeypatch, node, answer, sentence) -> None:
        # Before: its calls were answered 404, "recorded all the same"
        self.select(monkeypatch, answer)
        said = other_languages.unanswered({}, node)
        assert (said is None) if sentence is None else (sentence in said and node in said)
        assert other_languages.unanswered({}, sys.executable) is None

    def test_the_launcher_says_it_once_and_the_program_runs(self, launch, node, tmp_path) -> None:
        done = launch(["--agent", "writer"], [node])
        assert done.returncode == 0
        assert done.stderr.startswith(f"lightning-trainer: {node!r} is not a Python program")
        assert "has no [[policy]]" in done.stderr  # the receiver's selection is empty
        assert done.stderr.count("\n") == 1

    @pytest.mark.parametrize(
        ("name", "first_line", "other"),
        [
            ("node", "#!/bin/sh", False),  # a shim, which becomes whatever it becomes
            ("agent", "#!/usr/bin/env node", True),
            ("agent", "#!/usr/bin/env -S deno run", True),
            ("agent", "#!/usr/bin/env python3", False),
            ("agent", "#!/opt/venv/bin/python3.11", False),
            ("agent", "#!/bin/sh", False),
            ("agent", "\x7fELF", True),
            ("node", "\x7fELF", True),
            ("timeout", "\x7fELF", False),
            ("python3.11", "\x7fELF", False),
            ("pypy3", "\x7fELF", False),
            ("bash", "\x7fELF", False),
        ],
    )
    def test_what_is_another_language_is_told_by_name_and_first_line(self, tmp_path, name, first_line, other) -> None:
        (tmp_path / name).write_text(f"{first_line}\n")
        assert other_languages.other_language(str(tmp_path / name)) is other


def test_starting_adds_little_cpu_time_and_imports_nothing_heavy(tmp_path):
    heavy = "{'opentelemetry.sdk', 'openai', 'typer', 'pydantic'}"
    program = [sys.executable, "-c", f"import sys; assert not {heavy} & set(sys.modules)"]
    added = min(cpu_s([LAUNCHER, "run", "--", *program], tmp_path) - cpu_s(program, tmp_path) for _ in range(3))
    assert added < 0.6


def test_the_launcher_needs_nothing_beyond_the_light_client():
    code = """
    import sys
    sys.argv = ["lightning-trainer", "run"]
    from lightning_trainer.cli import main
    try:
        main()
    except SystemExit:
        print(*({"typer", "rich", "pydantic", "fastapi", "httpx", "opentelemetry.sdk"} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stdout.split() == [], done.stderr


def test_an_interpreter_without_the_client_says_so_once_and_runs(tmp_path):
    base = getattr(sys, "_base_executable", sys.executable)
    again = f"import subprocess; subprocess.run([{base!r}, '-c', 'print(1)'])"
    environment = {**os.environ, "PYTHONPATH": str(SITE)}
    environment.pop("VIRTUAL_ENV", None)
    done = subprocess.run(
        [base, "-c", f"print('ran', flush=True); {again}"], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "ran\n1\n")
    assert done.stderr.count("is not captured (ModuleNotFoundError") == 1


def test_opentelemetrys_own_launcher_captures_too_where_a_daemon_is_named(launch, receiver):
    command = [str(BIN / "opentelemetry-instrument"), "--traces_exporter", "none", sys.executable, "-c", SCRIPT]
    named = launch([], command, plain=True, env={"LIGHTNING_AGENT": "theirs"})
    assert named.returncode == 0, named.stderr
    assert agents(receiver) == [("theirs", None)]
    unnamed = launch([], command, plain=True, env={"LIGHTNING_ENDPOINT": ""})
    assert (unnamed.returncode, len(agents(receiver))) == (0, 1)


@pytest.mark.parametrize("endpoint", ["the receiver's", "not named"])
def test_opentelemetrys_launcher_below_ours_is_captured_in_the_rollout(launch, receiver, endpoint):
    """Its folder comes before ours on the path, and an interpreter runs one ``sitecustomize`` alone."""
    active = "from lightning_instrumentation.hooks import registry; print(registry.is_active())"
    command = [str(BIN / "opentelemetry-instrument"), "--traces_exporter", "none", sys.executable, "-c"]
    if endpoint == "not named":
        done = launch([], [*command, active], env={"LIGHTNING_ENDPOINT": ""})
        assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
        return
    done = launch(["--task", "t"], [*command, SCRIPT])
    assert done.returncode == 0, done.stderr
    (root,) = (span for span in receiver.spans("rollout") if semconv.ROLLOUT_ROOT in span.attributes)
    assert agents(receiver) == [(None, root.attributes[semconv.ATTEMPT_ID])]

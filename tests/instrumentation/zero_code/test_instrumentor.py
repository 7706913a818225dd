"""What is wrapped can be put back, all of it, and be wrapped again."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import importlib, json, os, sys, threading
import lightning_instrumentation as lt
from lightning_instrumentation.hooks.registry import _HOOKS
from lightning_instrumentation.zero_code.instrumentor import LightningInstrumentor

modules = []
for name in sorted({module for module, _ in _HOOKS}):
    try:
        modules.append(importlib.import_module(name))
    except ImportError:
        pass

def attributes():
    seen = {}
    for module in modules:
        places = [module, *(kind for kind in vars(module).values() if isinstance(kind, type))]
        for place in places:
            for name, value in list(vars(place).items()):
                if name == "__warningregistry__":  # Python writes there which warnings it has shown
                    continue
                seen[f"{module.__name__}:{place.__name__}.{name}"] = value
    return seen

def changed(before, after):
    return [name for name in after if after[name] is not before.get(name)] + [n for n in before if n not in after]

def look(begin, again):
    original = attributes()
    ours = LightningInstrumentor()
    exec(begin)
    wrapped = attributes()
    ours.uninstrument()
    ours.uninstrument()
    restored = attributes()
    exec(again)
    wrapped_again = attributes()
    ours.uninstrument()
    return {
        "wrapped": changed(original, wrapped),
        "after": changed(original, restored),
        "again": changed(original, wrapped_again),
        "in the end": changed(original, attributes()),
        "is": ours.is_instrumented_by_opentelemetry,
    }

# Importing all of the frameworks takes seconds, so that each case is a child that has imported them and done nothing.
assert threading.active_count() == 1
for name, case in json.load(sys.stdin).items():
    if (child := os.fork()) == 0:
        os.environ.update(case["environment"])
        print(json.dumps([name, look(case["begin"], case["again"])]), flush=True)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0, name
"""


INSTRUMENT = "ours.instrument()"
INIT = "lt.init('http://127.0.0.1:9')"
BLOCK = "lt.shutdown(0.0)\nwith lt.agent('a'):\n    pass\n"
NAMED, UNNAMED = {"LIGHTNING_ENDPOINT": "http://127.0.0.1:9"}, {"LIGHTNING_ENDPOINT": ""}
CASES = {
    "instrumented": {"begin": INSTRUMENT, "again": INSTRUMENT, "environment": NAMED},
    "started, instrumented": {"begin": INIT, "again": INSTRUMENT, "environment": UNNAMED},
    "started, started": {"begin": INIT, "again": INIT, "environment": UNNAMED},
    "no daemon": {"begin": INSTRUMENT, "again": INSTRUMENT, "environment": UNNAMED},
    "started, a block": {"begin": INIT, "again": BLOCK, "environment": NAMED},
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict[str, dict]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))},
        input=json.dumps(CASES),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


def test_every_original_comes_back_and_can_be_wrapped_again(seen):
    case = seen["instrumented"]
    for function in (
        "httpx:Client.send",
        "requests.sessions:Session.send",
        "openai._base_client:SyncAPIClient.request",
        "pydantic_ai.tool_manager:ToolManager.execute_tool_call",
    ):
        assert function in case["wrapped"]
    assert len(case["wrapped"]) > 20
    assert case["after"] == case["in the end"] == []
    assert case["again"] == case["wrapped"]
    assert not case["is"]


@pytest.mark.parametrize("again", ["instrumented", "started"])
def test_a_client_that_the_program_has_started_is_wrapped_again_too(seen, again):
    case = seen[f"started, {again}"]
    assert "httpx:Client.send" in case["wrapped"]
    assert case["after"] == case["in the end"] == []
    assert case["again"] == case["wrapped"]


def test_nothing_is_wrapped_where_no_daemon_is_named(seen):
    assert seen["no daemon"]["wrapped"] == []


def test_a_function_that_somebody_wrapped_on_top_of_ours_is_called_as_before():
    program = """
import types
from lightning_instrumentation.hooks import patching

class Client:
    def send(self): return ["sent"]

patching.wrap(Client, "send", lambda wrapped, instance, args, kwargs: ["ours", *wrapped()])
ours = Client.send
Client.send = lambda self: ["theirs", *ours(self)]
theirs = Client.send
said = [Client().send()]
patching.restore_originals()
said += [Client().send(), Client.send is theirs]
patching.wrap_again()
print([*said, Client().send()])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    expected = [["theirs", "ours", "sent"], ["theirs", "sent"], True, ["theirs", "ours", "sent"]]
    assert (done.stdout.strip(), done.stderr) == (str(expected), "")


def test_only_init_and_instrument_wrap_again_what_was_put_back(seen):
    case = seen["started, a block"]
    assert "httpx:Client.send" in case["wrapped"]
    assert case["again"] == []

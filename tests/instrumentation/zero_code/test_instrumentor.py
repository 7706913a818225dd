"""What is wrapped can be put back, all of it, and be wrapped again."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import importlib, json, types
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

original = attributes()
ours = LightningInstrumentor()
{begin}
wrapped = attributes()
ours.uninstrument()
ours.uninstrument()
restored = attributes()
{again}
again = attributes()
ours.uninstrument()
print(json.dumps({
    "modules": [module.__name__ for module in modules],
    "wrapped": changed(original, wrapped),
    "after": changed(original, restored),
    "again": changed(original, again),
    "in the end": changed(original, attributes()),
    "is": ours.is_instrumented_by_opentelemetry,
}))
"""


INSTRUMENT = "ours.instrument()"
INIT = "lt.init('http://127.0.0.1:9')"


def run(begin: str = INSTRUMENT, again: str = INSTRUMENT, /, **environment: str) -> dict:
    program = PROGRAM.replace("{begin}", begin).replace("{again}", again)
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_original_comes_back_and_can_be_wrapped_again(tmp_path):
    seen = run(LIGHTNING_ENDPOINT="http://127.0.0.1:9", XDG_STATE_HOME=str(tmp_path))
    for function in (
        "httpx:Client.send",
        "requests.sessions:Session.send",
        "openai._base_client:SyncAPIClient.request",
    ):
        assert function in seen["wrapped"]
    assert len(seen["wrapped"]) > 20
    assert seen["after"] == seen["in the end"] == []
    assert seen["again"] == seen["wrapped"]
    assert not seen["is"]


@pytest.mark.parametrize("again", [INSTRUMENT, INIT])
def test_a_client_that_the_program_has_started_is_wrapped_again_too(tmp_path, again):
    seen = run(INIT, again, LIGHTNING_ENDPOINT="", XDG_STATE_HOME=str(tmp_path))
    assert "httpx:Client.send" in seen["wrapped"]
    assert seen["after"] == seen["in the end"] == []
    assert seen["again"] == seen["wrapped"]


def test_nothing_is_wrapped_where_no_daemon_is_named(tmp_path):
    assert run(LIGHTNING_ENDPOINT="", XDG_STATE_HOME=str(tmp_path))["wrapped"] == []


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


def test_only_init_and_instrument_wrap_again_what_was_put_back(tmp_path):
    begun = "lt.shutdown(0.0)\nwith lt.agent('a'):\n    pass\n"
    seen = run(INIT, begun, LIGHTNING_ENDPOINT="http://127.0.0.1:9", XDG_STATE_HOME=str(tmp_path))
    assert "httpx:Client.send" in seen["wrapped"]
    assert seen["again"] == []

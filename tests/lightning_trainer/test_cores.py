"""What the processor is good at decides the precision, and what it and a container leave us the number of threads."""

from pathlib import Path

import pytest

from lightning_trainer.cli.doctor import State, machine, run_checks
from lightning_trainer.config import Config
from lightning_trainer.config import hardware as cores
from lightning_trainer.config.hardware import available_cores, fast_dtype, usable_cores
from lightning_trainer.config.training import TrainingConfig
from lightning_trainer.serving.host.patches.forking import thread_variables
from lightning_trainer.serving.settings import EngineSettings, replica_settings
from lightning_trainer.training.settings import TrainerSettings


def config(**sections) -> Config:
    return Config.model_validate({"policy": [{"name": "p", "agents": ["a"], "model": "random:tiny"}], **sections})


@pytest.mark.parametrize(
    ("line", "dtype"),
    [
        ("flags\t\t: fpu sse avx2 fma", "float32"),
        ("flags\t\t: fpu avx512f avx512_bf16", "bfloat16"),
        ("flags\t\t: fpu amx_bf16 amx_tile", "bfloat16"),
        ("Features\t: fp asimd bf16", "bfloat16"),
        ("Features\t: fp asimd sha3", "float32"),
        ("model name\t: avx512_bf16", "float32"),
    ],
)
def test_bfloat16_is_for_processors_that_have_it(tmp_path, line, dtype):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
    assert fast_dtype(tmp_path / "cpuinfo") == dtype


def test_a_machine_that_says_nothing_of_its_processor_computes_in_float32(tmp_path):
    assert fast_dtype(tmp_path / "absent") == "float32"


@pytest.mark.parametrize("fast", ["float32", "bfloat16"])
def test_the_default_is_what_is_fast_and_what_is_given_counts(monkeypatch, tmp_path, fast):
    monkeypatch.setattr("lightning_trainer.config.training.fast_dtype", lambda: fast)
    monkeypatch.setattr("lightning_trainer.config.engine.fast_engine_dtype", lambda: fast)
    for sections in ({"engine": {}, "training": {}}, {"engine": {"dtype": "auto"}, "training": {"dtype": "auto"}}):
        assert (config(**sections).engine.dtype, config(**sections).training.dtype) == (fast, fast)
    given = config(engine={"dtype": "float32"}, training={"dtype": "bfloat16"})
    assert (given.engine.dtype, given.training.dtype) == ("float32", "bfloat16")
    with pytest.raises(ValueError, match="float16"):
        config(engine={"dtype": "float16"})


def test_an_engine_with_a_gpu_takes_bfloat16(monkeypatch):
    monkeypatch.setattr(cores, "visible_gpus", lambda: ("0",))
    assert cores.fast_engine_dtype() == "bfloat16"
    monkeypatch.setattr(cores, "visible_gpus", lambda: ())  # also one that CUDA_VISIBLE_DEVICES hides
    assert cores.fast_engine_dtype() == fast_dtype()


@pytest.mark.parametrize(("fast", "state"), [("float32", State.WARNING), ("bfloat16", State.OK)])
def test_the_doctor_says_where_bfloat16_is_emulated(monkeypatch, fast, state):
    monkeypatch.setattr(machine, "fast_dtype", lambda: fast)
    monkeypatch.setattr(machine, "fast_engine_dtype", lambda: fast)
    asked = config(engine={"dtype": "float32"}, training={"dtype": "bfloat16"})
    found = {check.name: check for check in run_checks(asked)}["precision"]
    assert found.state is state
    assert "trainer bfloat16" in found.found


def test_some_core_is_ours():
    assert available_cores() >= 1


@pytest.fixture
def limited(monkeypatch, tmp_path):
    """Give this process 64 cores, and cgroups that limit it: each file by its place below the root."""

    def limit(files: dict[str, str]) -> None:
        (tmp_path / "membership").write_text("4:memory:/m\n3:cpu,cpuacct:/docker/1\n0::/a.slice/b.service\n")
        for place, text in files.items():
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place).write_text(text)

    monkeypatch.setattr(cores, "_CGROUP", tmp_path)
    monkeypatch.setattr(cores, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    return limit


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "400000 100000\n"}, 4),
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "12800000 100000\n"}, 64),
        ({"a.slice/b.service/cpu.max": "max 100000\n", "a.slice/cpu.max": "250000 100000\n"}, 2.5),
        ({"a.slice/b.service/cpu.max": "200000 100000\n", "a.slice/cpu.max": "300000 100000\n"}, 2),
        ({"m/cpu.max": "100000 100000\n"}, 64),  # of another cgroup
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/docker/1/cpu.cfs_quota_us": "75000\n", "cpu/docker/1/cpu.cfs_period_us": "50000\n"}, 1.5),
    ],
)
def test_a_limit_of_the_container_or_of_what_it_is_in_counts(limited, files, usable):
    limited(files)
    assert usable_cores() == usable
    assert available_cores() == max(1, int(usable))


def test_trainer_and_engines_start_no_more_threads_than_the_container_has_cores(limited):
    limited({"cpu.max": "400000 100000\n"})
    assert TrainerSettings("p", Path("m"), training=TrainingConfig()).threads_here == 4
    engine = EngineSettings(Path("m"), ("p",), Path("w"), Path("l"))
    assert "4" in thread_variables(engine.threads_here).values()
    assert [each.threads_here for each in replica_settings(engine, 2)] == [2, 2]
    assert EngineSettings(Path("m"), ("p",), Path("w"), Path("l"), threads=8).threads_here == 8

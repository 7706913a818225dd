"""Processes of a trainer that are on one node of a cluster: what they read is sent there once."""

from types import SimpleNamespace

import pytest

from lightning_trainer.config.sections import RayConfig
from lightning_trainer.serving.node_files import Elsewhere
from lightning_trainer.training.on_ray import cluster_process
from lightning_trainer.training.on_ray.cluster import Node
from lightning_trainer.training.on_ray.cluster_process import ClusterProcess
from lightning_trainer.training.on_ray.process import TrainerActor
from lightning_trainer.training.on_ray.session import RaySession
from lightning_trainer.training.settings import TrainerSettings

pytestmark = pytest.mark.ray


class Actor(TrainerActor):
    """In this process, on a node of its own."""

    def __init__(self, settings, rank, node_id):
        super().__init__(settings, rank)
        self.node_id, self.wrote = node_id, []

    def describe(self):
        return Node(self.node_id, self.node_id, 1, "3.11", "0.1.0", "0.9.1")

    def on_node(self, method, *arguments):
        if method == "write":
            self.wrote.append(arguments[0])
        return super().on_node(method, *arguments)

    def ask(self, what, policy, *given):
        return next(self._path(one) for one in given if isinstance(one, Elsewhere))


class Group(ClusterProcess):
    async def _answers(self, references):
        return references

    async def _sent(self, *arguments):
        return [actor.ask.remote(*arguments) for actor in self._actors]


async def test_processes_on_one_node_share_what_is_sent_there(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    settings = [TrainerSettings("p", tmp_path / "model")]
    actors = [Actor(settings, rank, node) for rank, node in enumerate(("here", "x", "x", "y", "x"))]
    monkeypatch.setattr(cluster_process, "this_node", lambda pid: actors[0].describe())
    group = Group(settings, RaySession(), RayConfig(address="h:1"))
    called = {"describe", "on_node", "settle", "ask"}
    group._actors = [
        SimpleNamespace(**{name: SimpleNamespace(remote=getattr(actor, name)) for name in called}) for actor in actors
    ]
    await group._settle()
    assert [actor.wrote for actor in actors] == [[], ["model/config.json"], [], ["model/config.json"], []]
    folders = [actor._settings[0].model_dir for actor in actors]
    assert (folders[0], folders[1]) == (tmp_path / "model", folders[2])
    assert folders[1] == folders[4] != folders[3]
    assert all((folder / "config.json").read_text() == "{}" for folder in folders)

    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "trainer.json").write_text('{"format": 1, "policy": "p", "step": 1}')
    await group._asked("call", "p", "load", tmp_path / "step-1")
    manifest = ["checkpoints/p/step-1/trainer.json"]
    assert [actor.wrote[1:] for actor in actors] == [[], manifest, [], manifest, []]
    assert not (folders[1].parent / "checkpoints" / "p" / "step-1").exists()
    for rank in group._receivers:
        actors[rank].on_node("remove")
    assert not any(folder.exists() for folder in folders[1:])

"""A cluster of a head without processors and two nodes; a trainer of two processes in it, and one alone beside it."""

import asyncio
import pickle
import sys
from dataclasses import replace
from pathlib import Path

from lightning_trainer.training.on_ray.environ import set_ray_environment

set_ray_environment(cluster=True)

from ray.cluster_utils import Cluster  # noqa: E402

from lightning_trainer.config.sections import RayConfig  # noqa: E402
from lightning_trainer.training.remote import make_trainer, make_trainers  # noqa: E402


async def main(folder: Path, address: str) -> None:
    from safetensors.torch import load_file

    settings, (first, second) = pickle.loads((folder / "in").read_bytes())
    alone = make_trainer("inprocess", settings)
    await alone.start()
    expected = []
    for step, batch in enumerate((first, second), start=1):
        expected.append(await alone.step(batch))
        await alone.publish(folder / f"alone-{step}", step)
    await alone.close()

    spread = RayConfig(address=address, placement="spread")
    of_two = replace(settings, training=settings.training.model_copy(update={"world_size": 2}))
    (group,) = make_trainers("ray", [of_two], cluster=spread)
    await group.start()
    assert group.process._receivers == [0, 1]  # pyright: ignore[reportAttributeAccessIssue]
    reports = [await group.step(first)]
    await group.publish(folder / "together-1", 1)
    await group.save(folder / "step-1", 1)
    assert len(list((folder / "step-1").glob("model_world_size_2_rank_*.pt"))) == 2
    await group.restart()
    assert await group.load(folder / "step-1") == 1
    reports.append(await group.step(second))
    publication = await group.publish(folder / "together-2", 2)
    assert publication.path == str(folder / "together-2")
    await group.close()

    for ours, theirs in zip(reports, expected, strict=True):
        for name in ("loss", "grad_norm"):
            assert abs(ours.metrics[name] - theirs.metrics[name]) <= 1e-4 * abs(theirs.metrics[name])
    apart = []
    for step in (1, 2):
        ours, theirs = (load_file(folder / f"{who}-{step}") for who in ("together", "alone"))
        assert ours.keys() == theirs.keys()
        differences = [(ours[name] - theirs[name]).abs() for name in ours]
        apart.append(max(one.max().item() for one in differences))
    # A fiftieth of one update: AdamW divides by the gradient's own size, rounding included.
    assert max(apart) < settings.optimizer.lr / 50, (
        f"the weights of the two steps are {apart} apart, lr = {settings.optimizer.lr}"
    )
    print("as one would")


def started(tries: int = 8) -> Cluster:
    """Ray gives a node 30 s to start, which a busy machine does not always keep."""
    cluster = Cluster()
    try:
        for processors in (0, 1, 1):
            cluster.add_node(num_cpus=processors)
        cluster.wait_for_nodes()
        return cluster
    except Exception:
        cluster.shutdown()
        if tries == 1:
            raise
        return started(tries - 1)


if __name__ == "__main__":
    cluster = started()
    try:
        asyncio.run(main(Path(sys.argv[1]), str(cluster.address)))
    finally:
        cluster.shutdown()

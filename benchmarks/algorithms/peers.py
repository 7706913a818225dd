"""Requests to other libraries that have the same loss or estimator, and their answers.

The libraries run in an environment of their own, in one process (``peer_process.py``) that answers each line of JSON
with another.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import torch
from safetensors.torch import load_file

Gives: TypeAlias = Literal["everything", "loss and gradient", "advantages and gradient", "advantages", "gae"]


@dataclass(frozen=True, slots=True)
class Peer:
    library: str
    trainer: str
    arguments: Mapping[str, Any]
    gives: Gives
    """What is compared. With ``advantages``, loss and gradient are the paper's formula over the library's advantages;
    with ``gae``, they and the whitening are, over the library's estimation."""


def by_trl(trainer: str, gives: Gives | None = None, **arguments: Any) -> Peer:
    """Return a trainer of TRL with these arguments of its configuration, and with arguments of ours.

    Args:
        arguments: ``engine_weights`` (one of TRL's modes) and ``engine_weights_max`` have TRL take the behavior
            log-probabilities for its engine's; with ``on_policy`` it is given no old ones, so that it takes its own.
    """
    imitates = trainer in ("SFTTrainer", "DPOTrainer")
    return Peer("trl", trainer, arguments, gives or ("loss and gradient" if imitates else "everything"))


def by_torchrl() -> Peer:
    return Peer("torchrl", "generalized_advantage_estimate", {}, "gae")


@dataclass(frozen=True, slots=True)
class Answer:
    loss: float
    advantages: dict[str, float] | None
    """By sample id; one number per attempt, as TRL's estimators give them."""
    gradients: dict[str, torch.Tensor]


class PeerProcess:
    """The peers' process, which answers until the context manager is left."""

    def __init__(self, python: Path, models: Mapping[str, Path], folder: Path, horizon: int) -> None:
        """
        Args:
            models: folders of ``policy``, ``reference`` and ``tokenizer``.
            folder: where its log and its gradients are written.
        """
        self._folder, self._told = folder, {name: str(path) for name, path in models.items()}
        self._horizon = horizon
        script = Path(__file__).with_name("peer_process.py")
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
        with (folder / "peer.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(python), "-P", str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
            )
        self.versions: dict[str, str] = self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)

    def name_of(self, peer: Peer) -> str:
        return f"{peer.library} {self.versions[peer.library]} {peer.trainer}"

    def train(self, peer: Peer, samples: Sequence[Mapping[str, Any]]) -> Answer:
        """Return what a trainer of TRL computes from the samples.

        Args:
            samples: ``id``, ``group``, ``prompt``, ``completion``, ``mask`` and ``behavior`` over the completion, and
                ``reward``.
        """
        request = {"trainer": peer.trainer, "arguments": dict(peer.arguments), "samples": list(samples)}
        gradients = self._folder / "peer.safetensors"
        answer = self._ask({**request, **self._told, "horizon": self._horizon, "gradients": str(gradients)})
        return Answer(answer["loss"], answer["advantages"], load_file(gradients))

    def gae(self, rewards: torch.Tensor, values: torch.Tensor, gamma: float, lam: float) -> torch.Tensor:
        request = {"rewards": rewards.tolist(), "values": values.tolist(), "gamma": gamma, "lam": lam}
        return torch.tensor(self._ask({"trainer": "gae", **request})["advantages"])

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = (self._folder / "peer.log").read_text(errors="replace").strip()[-2000:]
            raise RuntimeError(f"the peers' process ended with {self._process.wait()}: {said}")
        return json.loads(line)

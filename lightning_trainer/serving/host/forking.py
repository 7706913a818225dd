"""vLLM's processes are forked from the host, which has imported everything already: half of the start-up time.

vLLM does so by itself on GPUs. On CPUs it starts each process anew, because OpenMP takes the number of its threads from
the environment once, and because OpenMP's threads do not survive a fork. Here no thread of it exists before the last
fork: host and engine core are given one thread (``environment``), and the worker gets its own number after its fork.
"""

import os
import sys

THREADS_VARIABLE = "LIGHTNING_ENGINE_THREADS"
_WORKER_DEPTH = 2
"""host -> engine core -> worker."""


class _Depth:
    forks = 0


def prefer_fork() -> None:
    """Fork from now on. To be called once the configuration is made: making it sets vLLM's own choice."""
    if sys.platform == "linux" and THREADS_VARIABLE in os.environ:
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    from lightning_trainer.serving.host.lifeline import follow_parent

    follow_parent(os.getppid())
    _Depth.forks += 1
    if _Depth.forks == _WORKER_DEPTH:
        import torch

        # vLLM sets the number again, from the environment.
        os.environ["OMP_NUM_THREADS"] = os.environ[THREADS_VARIABLE]
        torch.set_num_threads(int(os.environ[THREADS_VARIABLE]))

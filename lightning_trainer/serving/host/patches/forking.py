"""vLLM's processes are forked from the host, which has imported everything already: half of the start-up time.

vLLM does so by itself on GPUs. On CPUs it starts each process anew, because OpenMP takes the number of its threads from
the environment once, and because its threads do not survive a fork: a child of a process that has used them hangs.
Here no process has used them before its last fork: the host keeps to one thread (``environ.py``), and only a forked
child, which does the computing, gets the number that was asked for.

vLLM 0.31.0 (``CpuPlatform.check_and_update_config``). Upstream: the choice is deliberate; we know of no issue.
"""

import os
import sys

THREADS_VARIABLE = "LIGHTNING_ENGINE_THREADS"


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment for so many threads in the process that computes."""
    if sys.platform != "linux":
        return {"OMP_NUM_THREADS": str(threads)}
    return {"OMP_NUM_THREADS": "1", THREADS_VARIABLE: str(threads)}


def prefer_fork() -> None:
    """Fork from now on. To be called once the configuration is made: making it sets vLLM's own choice."""
    if THREADS_VARIABLE in os.environ:
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    import torch

    from lightning_trainer.serving.host.parent_watchdog import follow_parent

    follow_parent(os.getppid())
    # Both: vLLM reads the variable and sets the number again.
    os.environ["OMP_NUM_THREADS"] = os.environ[THREADS_VARIABLE]
    torch.set_num_threads(int(os.environ[THREADS_VARIABLE]))

"""vLLM's processes are forked from the host, which has imported everything already: this saves half the start-up time.

vLLM forks by itself on GPUs. On CPUs it spawns each process, because OpenMP reads the number of its threads from the
environment only once, and because its threads do not survive a fork: a child of a process that has used them hangs.
Here no process uses them before its last fork: the host keeps to one thread (``environ.py``), and only a forked child,
which does the computing, gets the configured number.

vLLM 0.31.0 (``CpuPlatform.check_and_update_config``). Upstream: the choice is deliberate; we know of no issue.
"""

import os
import sys

THREADS_VARIABLE = "LIGHTNING_ENGINE_THREADS"


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment variables that give the process that computes this many threads."""
    if sys.platform != "linux":
        return {"OMP_NUM_THREADS": str(threads)}
    return {"OMP_NUM_THREADS": "1", THREADS_VARIABLE: str(threads)}


def prefer_fork() -> None:
    """Make vLLM fork from now on; call this after its configuration is made, because that sets vLLM's own choice."""
    if THREADS_VARIABLE in os.environ:
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    import torch

    from lightning_trainer.serving.host.parent_watchdog import follow_parent

    follow_parent(os.getppid())
    # Set both: vLLM reads the variable, and sets the number again.
    os.environ["OMP_NUM_THREADS"] = os.environ[THREADS_VARIABLE]
    torch.set_num_threads(int(os.environ[THREADS_VARIABLE]))

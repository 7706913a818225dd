"""vLLM's plugin entry point, called once in each of its processes: host, engine core and worker."""

import multiprocessing
import os
import signal
import threading
import time

TRANSFER_BACKEND = "lightning_file"
_POLL_S = 1.0
_GRACE_S = 10.0


def load() -> None:
    """Register the weight transfer, and tie a child to its parent's life."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if TRANSFER_BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            TRANSFER_BACKEND, "lightning_trainer.serving.host.transfer", "FileTransfer"
        )
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        threading.Thread(target=_die_with, args=(parent.pid,), name="lightning-lifeline", daemon=True).start()


def _die_with(parent_pid: int) -> None:
    """End this process when its parent is gone, even by SIGKILL: vLLM's engine core would go on without one."""
    while os.getppid() == parent_pid:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os._exit(1)

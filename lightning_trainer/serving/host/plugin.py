"""vLLM's plugin entry point, called in each process that it starts anew."""

import multiprocessing

from lightning_trainer.serving.host.lifeline import follow_parent

TRANSFER_BACKEND = "lightning_file"


def load() -> None:
    """Register the weight transfer, and tie a child to its parent's life."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if TRANSFER_BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            TRANSFER_BACKEND, "lightning_trainer.serving.host.transfer", "FileTransfer"
        )
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        follow_parent(parent.pid)

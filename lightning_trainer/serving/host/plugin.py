"""vLLM's plugin entry point, which vLLM calls once in the host and in each process that it spawns."""

import multiprocessing

from lightning_trainer.models.images import use_pil
from lightning_trainer.serving.host.parent_watchdog import follow_parent

TRANSFER_BACKEND = "lightning_file"


def load() -> None:
    """Register the weight transfer and the image processors, record what tokens are drawn from, apply the changes that
    CPUs need, and end a child process with its parent.
    """
    import torch
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.platforms import current_platform

    from lightning_trainer.serving.host.patches import fused_norms, lora_experts, lora_matmul
    from lightning_trainer.serving.host.patches import inverse_sampling as sampling
    from lightning_trainer.serving.host.tokens import routed_experts, support

    if TRANSFER_BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            TRANSFER_BACKEND, "lightning_trainer.serving.host.weights.transfer", "FileTransfer"
        )
    support.use_for_vllm()
    use_pil()
    if current_platform.is_cpu():
        sampling.use_for_vllm()
        fused_norms.use_for_vllm()
        lora_matmul.use_for_vllm()
        lora_experts.use_for_vllm()
        routed_experts.use_for_vllm()
        # Asks the operating system for AMX tiles. vLLM's attention in bfloat16 (0.31.0) uses them without asking, which
        # works only after a matrix product of oneDNN's, which does ask; a model too small for one ended with SIGILL.
        torch.cpu._init_amx()
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        follow_parent(parent.pid)

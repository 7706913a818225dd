"""The settings of a model that fit on some hardware, and how fast they would be.

Trainer and engine get GPUs of their own if that fits; else they share GPUs and take turns. With several nodes, engines
run on the daemon's node and the trainer on the others (``[ray] address``); if that does not fit, only one node is used.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lightning_trainer.plan.footprint import (
    EngineMemory,
    TrainerMemory,
    cached_tokens,
    engine_memory,
    trainer_memory,
)
from lightning_trainer.plan.hardware import GIB, Hardware, card
from lightning_trainer.plan.shape import Shape

_MICRO_BATCHES = (32768, 16384, 8192, 4096, 2048)
_ENOUGH_TOKENS = 8192
"""Tokens of a micro-batch; below this, layers are recomputed instead."""
_USABLE = 0.92
"""Usable share of a GPU's memory: the rest is lost to fragmentation."""
_ASLEEP = 1.0 * GIB
"""Bytes of a GPU that a sleeping engine, or a waiting trainer, keeps."""
_SEQUENCES = 4
"""Least number of sequences of full length that an engine's cache must hold."""
_ALONE, _BESIDE = 0.9, 0.8
"""``gpu_memory_utilization`` as ``daemon.hardware.dealing`` sets it."""
_LADDER = ("1x24GB", "1x48GB", "1x80GB", "2x80GB", "4x80GB", "8x80GB", "2x8x80GB", "3x8x80GB", "5x8x80GB", "9x8x80GB")
_DECODE_EFFICIENCY, _TRAIN_EFFICIENCY = 0.5, 0.35
"""Usual shares of a card's peak rates; neither was measured with this project."""
_MAX_NUM_SEQS = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to train and serve a model."""

    shape: Shape
    hardware: Hardware
    lora_rank: int | None
    max_model_len: int
    trainers: int
    """Trainer processes, each with one GPU."""
    tensor_parallel: int
    replicas: int
    shared: bool
    """Whether trainer and engine take turns."""
    on_cluster: bool
    """Whether the trainer is on other nodes than the daemon and its engines."""
    checkpointing: bool
    tokens: int
    """Tokens of a micro-batch."""
    trainer: TrainerMemory
    engine: EngineMemory

    @property
    def cached_tokens(self) -> int:
        """Return how many tokens the cache of one replica holds."""
        return cached_tokens(self.shape, self.engine, self.tensor_parallel)

    @property
    def generated_per_s(self) -> float:
        """Return the tokens per second that all replicas generate together, with as many calls at once as they take."""
        half = self.max_model_len / 2
        calls = max(1.0, min(_MAX_NUM_SEQS, self.cached_tokens / half))
        gpu = self.hardware.gpu
        reads = 2 * self.shape.parameters + calls * half * self.shape.cache_bytes_per_token
        products = 2 * self.shape.computed_parameters * calls
        seconds = max(reads / gpu.bandwidth, products / gpu.flops) / self.tensor_parallel / _DECODE_EFFICIENCY
        return self.replicas * calls / seconds

    @property
    def trained_per_s(self) -> float:
        """Return the unique tokens trained per second, forward and backward: 2 FLOPs per parameter and pass."""
        passes = (2 if self.lora_rank is None else 1) + 1 + self.checkpointing
        products = 2 * passes * self.shape.computed_parameters
        return self.trainers * self.hardware.gpu.flops * _TRAIN_EFFICIENCY / products


def fit(shape: Shape, hardware: Hardware, *, lora_rank: int | None = None, max_model_len: int = 4096) -> Plan | None:
    """Return the first way that fits, None if none does: trainer on other nodes, on GPUs of its own, in turns.

    In each way the engine gets as few GPUs as fit, and then the trainer as many as fit.
    """
    length = min(max_model_len, shape.context)
    own = hardware.gpus_per_node
    away = own * (hardware.nodes - 1)
    ways = [
        (tensor_parallel, shared, on_cluster)
        for shared, on_cluster in ((False, True), (False, False), (True, False))
        for tensor_parallel in _divisions(shape, own)
        if away or not on_cluster
    ]
    for tensor_parallel, shared, on_cluster in ways:
        engine = engine_memory(
            shape,
            share=_BESIDE if shared else _ALONE,
            gpu_bytes=hardware.gpu.memory,
            tensor_parallel=tensor_parallel,
            max_num_seqs=_MAX_NUM_SEQS,
        )
        if cached_tokens(shape, engine, tensor_parallel) < _SEQUENCES * length:
            continue
        left = away if on_cluster else own - (0 if shared else tensor_parallel)
        for trainers in _powers_of_two(left):
            found = _trainer(shape, hardware, trainers, lora_rank, length, shared=shared)
            if found is None:
                continue
            checkpointing, tokens, trainer = found
            replicas = 1 if shared else (own if on_cluster else own - trainers) // tensor_parallel
            return Plan(
                shape,
                hardware,
                lora_rank,
                length,
                trainers,
                tensor_parallel,
                replicas,
                shared,
                on_cluster,
                checkpointing,
                tokens,
                trainer,
                engine,
            )
    return None


def least_hardware(shape: Shape, *, lora_rank: int | None, max_model_len: int) -> Hardware | None:
    """Return the smallest usual hardware (``_LADDER``) that fits; None if none does."""
    for words in _LADDER:
        hardware = _rung(words)
        if fit(shape, hardware, lora_rank=lora_rank, max_model_len=max_model_len) is not None:
            return hardware
    return None


def _trainer(
    shape: Shape, hardware: Hardware, trainers: int, lora_rank: int | None, length: int, *, shared: bool
) -> tuple[bool, int, TrainerMemory] | None:
    room = _USABLE * hardware.gpu.memory - (_ASLEEP if shared else 0.0)
    for checkpointing in (False, True):
        for tokens in _MICRO_BATCHES:
            if not checkpointing and tokens < _ENOUGH_TOKENS:
                break
            # A sample is never divided: one that is longer than a micro-batch is a micro-batch of its own.
            most = max(tokens, length)
            memory = trainer_memory(
                shape, tokens=most, processes=trainers, lora_rank=lora_rank, checkpointing=checkpointing
            )
            if memory.total <= room:
                return checkpointing, tokens, memory
    return None


def _divisions(shape: Shape, gpus: int) -> Iterator[int]:
    """Yield powers of two by which the heads can be divided, ascending."""
    size = 1
    while size <= gpus and shape.heads % size == 0:
        yield size
        size *= 2


def _powers_of_two(most: int) -> list[int]:
    return [1 << exponent for exponent in reversed(range(most.bit_length()))] if most > 0 else []


def _rung(words: str) -> Hardware:
    *nodes, gpus, memory = words.removesuffix("GB").split("x")
    return Hardware(int(nodes[0]) if nodes else 1, int(gpus), card(float(memory)))


# A plan as a part of ``lightning.toml``.

HEAD = "HEAD-NODE:6379"
"""A placeholder for the cluster's address."""


def fragment(plan: Plan, model: str) -> str:
    """Return TOML that is a valid configuration as it is; the user still has to name the policy's agents."""
    lines = ["[engine]", f"max_model_len = {plan.max_model_len}"]
    if plan.tensor_parallel > 1:
        lines.append(f"tensor_parallel_size = {plan.tensor_parallel}")
    if plan.replicas > 1:
        lines.append(f"replicas = {plan.replicas}")
    lines += ["", "[training]", 'device = "cuda"', f"max_tokens_per_micro_batch = {plan.tokens}"]
    if plan.trainers > 1:
        lines.append(f"world_size = {plan.trainers}")
    if plan.checkpointing:
        lines.append("gradient_checkpointing = true")
    if plan.on_cluster:
        lines += ["", "[ray]", f'address = "{HEAD}" # joined with --num-gpus=0: the GPUs here are the engines\'']
    lines += ["", "[[policy]]", 'name = "agent"', 'agents = ["*"]', f'model = "{_escaped(model)}"']
    lines.append(f"max_sample_tokens = {plan.max_model_len}")
    if plan.lora_rank is not None:
        lines.append(f"lora = {{ rank = {plan.lora_rank} }}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Escape the text for a basic string (TOML 1.0, section "String")."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in plain)

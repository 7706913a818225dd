"""Makes a mixture of experts use given experts, and weigh them as it would by itself.

Each block's router runs as it is written, except for its one choice that is not continuous: the ``torch.topk`` over the
experts. That call returns the recorded experts and their scores, so that gate weights, their normalization, and the
router's gradient are the model's own at these experts. Positions whose experts are not known keep the router's choice.
Source: Ma et al., Rollout Routing Replay, arXiv 2510.11370, section 4.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lightning_trainer.errors import TrainingError

_LAYER = re.compile(r"\blayers\.(\d+)\.")


class ExpertReplay:
    """The blocks of one model that have experts.

    Legend: ``N`` rows of the hidden states that go through the model, ``L`` layers of the model, ``K`` experts per
    token.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        """Wrap the model's blocks that have experts; what the model computes stays the same until ``use``.

        Raises:
            TrainingError: the model has no such block.
        """
        self._ids_NLK: torch.Tensor | None = None
        self._known_N = torch.empty(0, dtype=torch.bool)
        layers = getattr(module.config, "num_hidden_layers", 0)
        self.layers = int(layers)
        blocks = {
            int(found[1]): block
            for name, block in module.named_modules()
            if (found := _LAYER.search(f"{name}.")) and isinstance(getattr(block, "experts", None), torch.nn.Module)
        }
        if not blocks:
            raise TrainingError(
                f"{type(module).__name__} has no layer whose experts can be told; set routed_experts = false in "
                "[engine]"
            )
        for layer, block in blocks.items():
            block.forward = self._replaying(layer, block.forward, getattr(block.experts, "num_experts", None))

    def use(self, ids_NLK: torch.Tensor | None, known_N: torch.Tensor | None = None) -> None:
        """Replay these experts from now on; None: let the routers choose.

        Args:
            ids_NLK: integers, without meaning where ``known_N`` is false.

        Raises:
            TrainingError: the experts are of another model.
        """
        if ids_NLK is not None and ids_NLK.shape[1] != self.layers:
            raise TrainingError(
                f"the recorded experts are of {ids_NLK.shape[1]} layers and the model has {self.layers}: train the "
                "model that sampled the batch"
            )
        self._ids_NLK = ids_NLK
        if known_N is not None:
            self._known_N = known_N

    def _replaying(self, layer: int, forward: Callable[..., Any], experts: int | None) -> Callable[..., Any]:
        def replaying(*args: Any, **kwargs: Any) -> Any:
            if self._ids_NLK is None:
                return forward(*args, **kwargs)
            with _Choosing(self._ids_NLK[:, layer], self._known_N, experts) as choosing:
                output = forward(*args, **kwargs)
            if choosing.chosen != 1:
                raise TrainingError(
                    f"layer {layer} chose experts with torch.topk {choosing.chosen} times where it should once: the "
                    "experts that the engine took cannot be told to it; set routed_experts = false in [engine]"
                )
            return output

        return replaying


class _Choosing(TorchFunctionMode):
    """Replaces the result of the ``topk`` over all experts that asks for as many as were recorded.

    Some models choose groups of experts first, by another ``topk``.
    """

    def __init__(self, ids_NK: torch.Tensor, known_N: torch.Tensor, experts: int | None) -> None:
        super().__init__()
        self._experts = experts
        self._ids_NK = ids_NK
        self._known_N = known_N
        self.chosen = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if func not in (torch.topk, torch.Tensor.topk) or found.indices.shape != self._ids_NK.shape:
            return found
        scores: torch.Tensor = args[0] if args else kwargs["input"]
        if scores.shape[-1] != (self._experts or scores.shape[-1]):
            return found
        self.chosen += 1
        indices = torch.where(self._known_N[:, None], self._ids_NK, found.indices)
        if int(indices.max()) >= scores.shape[-1]:
            raise TrainingError(
                f"expert {int(indices.max())} was recorded and the model has {scores.shape[-1]} experts: train the "
                "model that sampled the batch"
            )
        return torch.return_types.topk((scores.gather(-1, indices), indices))

"""Vision models: the token that stands for an image in their prompts, and image processors that need only PIL.

transformers has two image processors per model: one on torchvision, and one on PIL. It takes a processor for one that
needs torchvision if the text of its file contains ``TorchvisionBackend``; in the PIL files of Idefics and SmolVLM that
name occurs in docstrings (5.10), so without torchvision it finds no processor. These files import what they need, so
naming their classes is enough.
"""

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

_FAMILIES = {"idefics2": "Idefics2", "idefics3": "Idefics3", "smolvlm": "SmolVLM"}


def image_token_of(folder: Path) -> int | None:
    """Return the token that stands for a piece of an image in the model's prompts; None: the model takes no images."""
    configuration = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not isinstance(configuration.get("vision_config"), dict):
        return None
    token = configuration.get("image_token_id", configuration.get("image_token_index"))
    return token if isinstance(token, int) else None


def use_pil() -> None:
    """Register the processors on PIL with transformers in this process; does nothing if torchvision is installed."""
    if find_spec("torchvision") is not None:
        return
    import transformers
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    for family, name in _FAMILIES.items():
        try:
            module = import_module(f"transformers.models.{family}.image_processing_pil_{family}")
        except ImportError:
            continue  # this version of transformers has it elsewhere, and finds it itself
        AutoImageProcessor.register(
            getattr(transformers, f"{name}Config"),
            image_processor_classes={"pil": getattr(module, f"{name}ImageProcessorPil")},
            exist_ok=True,
        )

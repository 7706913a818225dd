"""Models that see: what stands for images in their prompts, and image processors that need PIL alone.

transformers has two of each: one on torchvision, and one on PIL. Whether the second can be used it decides by looking
for the first one's name in the file, and in those of Idefics and SmolVLM that name stands in a comment (5.10): it finds
none then. These files import what they need, so naming their classes is enough.
"""

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

_FAMILIES = {"idefics2": "Idefics2", "idefics3": "Idefics3", "smolvlm": "SmolVLM"}


def image_token_of(folder: Path) -> int | None:
    """Return the token that stands for a piece of an image in the model's prompts; None: the model sees none."""
    configuration = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not isinstance(configuration.get("vision_config"), dict):
        return None
    token = configuration.get("image_token_id", configuration.get("image_token_index"))
    return token if isinstance(token, int) else None


def use_pil() -> None:
    """Make the processors on PIL known to transformers in this process; nothing where torchvision is installed."""
    if find_spec("torchvision") is not None:
        return
    import transformers
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    for family, name in _FAMILIES.items():
        try:
            module = import_module(f"transformers.models.{family}.image_processing_pil_{family}")
        except ImportError:
            continue  # a version of transformers that has it elsewhere: it finds its own
        AutoImageProcessor.register(
            getattr(transformers, f"{name}Config"),
            image_processor_classes={"pil": getattr(module, f"{name}ImageProcessorPil")},
            exist_ok=True,
        )

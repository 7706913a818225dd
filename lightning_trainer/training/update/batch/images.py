"""From images to what a vision-language model reads in addition to its token ids, made by the model's own processor.

The ids of a prompt come from the engine, with as many placeholders as its processor made of each image. The same
processor makes the pixels here, and the sample must have as many placeholders as it says: otherwise, the features would
silently be put in the wrong places. Source: verl's ``multi_modal_inputs``, transformers' processors.
"""

import contextlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from lightning_trainer.errors import TrainingError
from lightning_trainer.models.images import image_token_of, use_pil
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.types import Media, Sample

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

ImageTensors: TypeAlias = dict[str, torch.Tensor]
"""By the model's own names (``pixel_values`` ...); the first dimension counts images, or pieces of them."""
_OF_TEXT = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")


@dataclass(frozen=True, slots=True)
class _Seen:
    tensors: ImageTensors
    placeholders: int


class ImageInputs:
    """Prepares images for one model. Not thread-safe."""

    def __init__(self, folder: Path, placeholder: int) -> None:
        """Load the model's processor.

        Raises:
            TrainingError: there is none that runs here.
        """
        from transformers import AutoProcessor

        use_pil()
        try:
            self._processor: Any = AutoProcessor.from_pretrained(folder)
            self._token: str = self._processor.image_token
        except (OSError, ValueError, ImportError, AttributeError) as error:
            raise TrainingError(f"the processor of {folder} cannot prepare images here: {error}") from error
        self._folder = folder
        self._placeholder = placeholder
        self._bodies: Mapping[str, bytes] = {}
        self._seen: dict[str, _Seen] = {}

    def show(self, bodies: Mapping[str, bytes]) -> None:
        """Take the images of a step, by their address (``Media.uri``)."""
        self._bodies, self._seen = bodies, {}

    def of(self, sample: Sample) -> ImageTensors:
        """Return what the model reads of a sample's images; nothing for a sample without any.

        Raises:
            TrainingError: an image is missing or cannot be read, or the sample has another number of placeholders.
        """
        seen = [self._look(sample, media) for media in sample.media]
        wanted, found = sum(one.placeholders for one in seen), list(sample.token_ids).count(self._placeholder)
        if wanted != found:
            raise TrainingError(
                f"sample {sample.sample_id}: its tokens hold {found} placeholders, and its {len(seen)} images are "
                f"{wanted} for the processor of {self._folder}: the engine that sampled it has another one"
            )
        if not seen:
            return {}
        return {name: torch.cat([one.tensors[name] for one in seen]) for name in seen[0].tensors}

    def _look(self, sample: Sample, media: Media) -> _Seen:
        if media.uri not in self._seen:
            body = self._bodies.get(media.uri)
            if media.modality != "image" or body is None:
                raise TrainingError(
                    f"sample {sample.sample_id}: its prompt holds {media.modality} ({media.uri[:80]}), which is not in "
                    "the store; it was deleted since, or is not an image"
                )
            self._seen[media.uri] = self._prepared(sample, media, body)
        return self._seen[media.uri]

    def _prepared(self, sample: Sample, media: Media, body: bytes) -> _Seen:
        from PIL import Image, UnidentifiedImageError

        try:
            image = picture_of(body)
        except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
            raise TrainingError(f"sample {sample.sample_id}: {media.uri[:80]} is not an image: {error}") from error
        made = self._processor(text=self._token, images=[image], return_tensors="pt")
        placeholders = int((made["input_ids"] == self._placeholder).sum())
        tensors = {name: value for name, value in made.items() if name not in _OF_TEXT}
        return _Seen(_by_image(tensors), placeholders)


def picture_of(body: bytes) -> "Picture":
    """Return an image's pixels as the engine reads them: turned upright by its EXIF, on white where it is transparent.

    Source: vLLM's ``ImageMediaIO.load_bytes``, whose result its processor is given.

    Raises:
        OSError, ValueError, DecompressionBombError: it cannot be read.
    """
    from PIL import Image, ImageOps

    image = Image.open(io.BytesIO(body))
    with contextlib.suppress(Exception):  # EXIF that cannot be read
        image = ImageOps.exif_transpose(image)
    if image.mode == "RGB" or not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    on_white = Image.new("RGB", image.size, "white")
    on_white.paste(image, mask=image.getchannel("A"))
    return on_white


def image_inputs(folder: Path, settings: TrainerSettings) -> ImageInputs | None:
    """Return what prepares a model's images; None for a model that sees none.

    Raises:
        TrainingError: the model sees images, and cannot be trained as the settings say.
    """
    placeholder = image_token_of(folder)
    if placeholder is None:
        return None
    if "mrope_section" in (folder / "config.json").read_text(encoding="utf-8"):
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
        raise TrainingError(
            f"{folder} ({kind}) numbers the positions of images in three dimensions, which is not supported: take a "
            "model that numbers them like text (Idefics3, SmolVLM)"
        )
    if settings.lora is not None:
        raise TrainingError(f"{folder} sees images, and adapters of such models are not supported: leave lora out")
    if settings.training.world_size > 1:
        raise TrainingError(
            f"{folder} sees images, and only one process trains such a model: set world_size = 1 in [training]"
        )
    if settings.training.strategy != "fsdp2":
        raise TrainingError(
            f'{folder} sees images, which strategy = "{settings.training.strategy}" is not given: write "fsdp2" in '
            "[training]"
        )
    return ImageInputs(folder, placeholder)


def _by_image(tensors: ImageTensors) -> ImageTensors:
    """Make the first dimension count images: Idefics3's counts samples, which differ in how many images they have.

    ``[1, images, channels, height, width] -> [images, 1, channels, height, width]``, and likewise its masks, which have
    no channels; the model flattens both dimensions. Other models' tensors have no dimension of samples and stay as they
    are.
    """
    pixels = tensors.get("pixel_values")
    if pixels is None or pixels.dim() != 5:
        return tensors
    return {name: value.flatten(0, 1).unsqueeze(1) for name, value in tensors.items()}

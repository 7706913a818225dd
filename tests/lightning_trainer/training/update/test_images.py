"""On prompts with images the trainer's log-probabilities are plain transformers', and what is wrong is named."""

import io
from dataclasses import replace
from typing import Any

import pytest

from lightning_trainer.errors import TrainingError
from lightning_trainer.models.images import image_token_of, use_pil
from lightning_trainer.models.resolve import model_cache, resolve_model, vocabulary_of
from lightning_trainer.types import Media, TrainingBatch

pytestmark = pytest.mark.verl

_TOLERANCE = 1e-5
_SIGNS = {"red": (200, 10, 30), "green": (10, 200, 30), "wide": (9, 9, 240)}


@pytest.fixture(scope="module")
def folder():
    use_pil()
    return resolve_model("random:tiny-vision", model_cache())


@pytest.fixture(scope="module")
def trainer(folder, sections) -> Any:
    from lightning_trainer.training.settings import TrainerSettings
    from lightning_trainer.training.trainer import Trainer

    fields = {"policy": "tiny", "model_dir": folder, "lr": 1e-3, "max_tokens_per_micro_batch": 200}
    return Trainer(TrainerSettings(**sections(fields)))


def picture(name: str) -> bytes:
    """A small PNG; each has a shape of its own."""
    from PIL import Image

    image = Image.new("RGB", (40, 10) if name == "wide" else (30, 40), _SIGNS[name])
    image.putpixel((3, 3), (255, 255, 255))
    written = io.BytesIO()
    image.save(written, "PNG")
    return written.getvalue()


BODIES = {f"sha256:{name}": picture(name) for name in _SIGNS}


@pytest.fixture(scope="module")
def shown(folder) -> Any:
    """``shown(sample_id, *names)``: a sample whose prompt shows these images, each behind its placeholders."""
    from transformers import AutoProcessor

    from lightning_trainer.types import Sample, Segment

    processor = AutoProcessor.from_pretrained(folder)
    prompts = processor.tokenizer

    def make(name: str, *images: str) -> Any:
        from PIL import Image

        opened = [Image.open(io.BytesIO(BODIES[f"sha256:{one}"])).convert("RGB") for one in images]
        text = f"what{'<image> and ' * len(images)}then?"
        prompt = (
            processor(text=text, images=opened)["input_ids"][0]
            if images
            else prompts(text, add_special_tokens=False)["input_ids"]
        )
        response = prompts(f"I see {name}", add_special_tokens=False)["input_ids"]
        ids = tuple(map(int, (*prompt, *response)))
        start = len(prompt)
        return Sample(
            *(name, "tiny", "tester", "group", name, ids),
            loss_mask=(0,) * start + (1,) * len(response),
            behavior_logprobs=(0.0,) * start + (-5.0,) * len(response),
            segments=(Segment(start, len(ids), name, 0, float(len(images) % 2), name),),
            media=tuple(Media("image", f"sha256:{one}", "image/png") for one in images),
        )

    return make


def _plainly(folder, sample) -> list[float]:
    """One forward pass of transformers' own model and processor, without padding."""
    import torch
    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    images = [Image.open(io.BytesIO(BODIES[one.uri])).convert("RGB") for one in sample.media]
    seen = AutoProcessor.from_pretrained(folder).image_processor(images, return_tensors="pt") if images else {}
    ids = torch.tensor([sample.token_ids])
    with torch.no_grad():
        logprobs = model(input_ids=ids, **seen).logits[0].log_softmax(-1)
    return [
        logprobs[place - 1, sample.token_ids[place]].item() if bit else 0.0
        for place, bit in enumerate(sample.loss_mask)
    ]


def test_log_probabilities_are_those_of_plain_transformers_and_depend_on_the_image(trainer, folder, shown):
    policy = trainer._learner.policy
    policy.images.show(BODIES)
    samples = [shown("a", "red"), shown("b", "green", "red"), shown("c"), shown("d", "wide", "wide", "green")]
    found = policy.logprobs(samples)
    for sample, ours in zip(samples, found, strict=True):
        assert ours == pytest.approx(_plainly(folder, sample), abs=_TOLERANCE)
    (other,) = policy.logprobs([replace(samples[0], media=shown("a", "green").media)])
    assert max(abs(one - two) for one, two in zip(found[0], other, strict=True)) > 100 * _TOLERANCE


def test_a_step_moves_the_part_that_sees(trainer, shown):
    before = {name: value.detach().clone() for name, value in trainer.module.named_parameters()}
    samples = (shown("a", "red"), shown("b", "green", "red"), shown("c"))
    report = trainer.step(TrainingBatch("tiny", 1, samples, BODIES))
    assert report.tokens_trained > 0
    moved = {name for name, value in trainer.module.named_parameters() if not value.equal(before[name])}
    assert any("vision_model" in name for name in moved)
    assert any("text_model" in name for name in moved)


def test_what_is_published_has_the_names_of_the_model_folder(trainer, folder, tmp_path):
    from safetensors import safe_open

    publication = trainer.publish(tmp_path / "v1.safetensors", 1)
    with safe_open(folder / "model.safetensors", "pt") as of_folder, safe_open(publication.path, "pt") as published:
        assert set(published.keys()) == set(of_folder.keys())


@pytest.mark.parametrize(
    ("bodies", "said"),
    [({}, "not in the store"), ({"sha256:red": b"no image"}, "is not an image")],
    ids=["missing", "damaged"],
)
def test_an_image_that_is_not_there_is_named(trainer, shown, bodies, said):
    with pytest.raises(TrainingError, match=said):
        trainer.step(TrainingBatch("tiny", 7, (shown("a", "red"), shown("c")), bodies))


def _written(mode: str, kind: str = "PNG", **how: Any) -> bytes:
    """Three by two pixels of a kind of image, no two of them alike."""
    from PIL import Image

    image = Image.new("RGBA", (3, 2))
    pixels = [(200, 10, 30, 0), (10, 200, 30, 90), (9, 9, 240, 255), (80, 80, 9, 128), (0, 0, 0, 40), (7, 8, 9, 0)]
    image.putdata(pixels)
    written = io.BytesIO()
    image.convert(mode).save(written, kind, **how)
    return written.getvalue()


def _turned(orientation: int) -> Any:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.mark.parametrize(
    "body",
    [
        lambda: _written("RGB"),
        lambda: _written("RGBA"),
        lambda: _written("LA"),
        lambda: _written("L", transparency=9),
        lambda: _written("RGB", transparency=(9, 9, 240)),
        lambda: _written("P", transparency=1),
        lambda: _written("P"),
        lambda: _written("RGBA", "WEBP", lossless=True),
        lambda: _written("RGB", "JPEG", exif=_turned(6)),
        lambda: _written("RGBA", exif=_turned(8)),
    ],
    ids=["rgb", "rgba", "la", "l-trns", "rgb-trns", "p-trns", "p", "webp", "jpeg-turned", "rgba-turned"],
)
def test_the_trainer_reads_the_pixels_that_the_engine_reads(body):
    """Before: what is transparent was whatever color lay below it, and photographs lay on their side."""
    from vllm.multimodal.media.image import ImageMediaIO

    from lightning_trainer.training.update.batch.images import picture_of

    ours, theirs = picture_of(body()), ImageMediaIO().load_bytes(body()).media
    assert (ours.mode, ours.size) == (theirs.mode, theirs.size)
    assert ours.tobytes() == theirs.tobytes()


def test_placeholders_that_no_image_fills_are_refused_and_never_filled_with_another_ones(trainer, shown):
    sample = shown("b", "green", "red")
    with pytest.raises(TrainingError, match="8 placeholders, and its 1 images are 4"):
        trainer.step(TrainingBatch("tiny", 7, (shown("a", "red"), replace(sample, media=sample.media[:1])), BODIES))


def test_what_cannot_be_trained_yet_is_refused_with_a_sentence(folder, tmp_path):
    from lightning_trainer.config.policies.updates import LoraConfig
    from lightning_trainer.training.settings import TrainerSettings
    from lightning_trainer.training.update.batch.images import image_inputs

    settings = TrainerSettings(policy="tiny", model_dir=folder)
    with pytest.raises(TrainingError, match="adapters of such models"):
        image_inputs(folder, replace(settings, lora=LoraConfig(rank=4)))
    with pytest.raises(TrainingError, match="world_size = 1"):
        image_inputs(folder, replace(settings, training=settings.training.model_copy(update={"world_size": 2})))
    text = (
        '{"model_type": "qwen2_vl", "vision_config": {}, "image_token_id": 7, "rope_scaling": {"mrope_section": [1]}}'
    )
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(TrainingError, match=r"qwen2_vl.*three dimensions"):
        image_inputs(tmp_path, settings)


def test_a_folder_says_what_stands_for_images(folder):
    assert (image_token_of(folder), vocabulary_of(folder)) == (260, 320)

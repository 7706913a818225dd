"""A version's weights in a folder of their own: a model for transformers and vLLM, or an adapter for PEFT and vLLM.

Nothing in the folder refers to the state folder, so it can be copied to another machine or uploaded. Its file
``RECORD`` says which version of which policy it is.
"""

import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_trainer.config.engine import EngineConfig
from lightning_trainer.errors import ExportError
from lightning_trainer.models.resolve import ADAPTER_CONFIG, CHAT_TEMPLATE_FILE, is_hub_id
from lightning_trainer.serving.adapter import reserved_rank
from lightning_trainer.store.upkeep.files import PUBLICATION
from lightning_trainer.training.checkpoint_folder import whole_folder
from lightning_trainer.versions.archive import NAMED_TEMPLATES, copy_beside_weights

RECORD = "lightning_trainer.json"


def is_adapter(stored: Path) -> bool:
    """Whether a stored version is an adapter, not a whole model."""
    return (stored / ADAPTER_CONFIG).is_file()


def export_version(
    stored: Path,
    out: Path,
    *,
    model: str,
    folder: Path | None = None,
    record: Mapping[str, Any],
    chat_template: Path | None = None,
) -> None:
    """Copy a stored version.

    Args:
        stored: its folder in the archive.
        out: a folder that does not exist, or is empty.
        model: the model that the policy's configuration names; an adapter's configuration refers to it if it is on the
            Hugging Face Hub.
        folder: the model's folder on this machine, to which an adapter refers otherwise; None: it is not here.
        record: the content of ``RECORD``.
        chat_template: the template that the engine was given; it replaces a whole model's own.

    Raises:
        ExportError: ``out`` exists and is not an empty folder.
        CheckpointError: the disk could not be read or written.
    """
    _check_free(out)
    with whole_folder(out) as partial:
        for file in stored.rglob("*"):
            if file.is_file() and file.name != PUBLICATION:
                target = partial / file.relative_to(stored)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, target)
        base = model if is_hub_id(model) else folder
        if is_adapter(partial) and base is not None:
            path = partial / ADAPTER_CONFIG
            document = {**json.loads(path.read_text(encoding="utf-8")), "base_model_name_or_path": str(base)}
            path.write_text(json.dumps(document, indent=2), encoding="utf-8")
        elif not is_adapter(partial):
            _put_template(partial, chat_template)
        _write_record(partial, record)


def merge_version(
    stored: Path, out: Path, *, model_dir: Path, record: Mapping[str, Any], chat_template: Path | None = None
) -> None:
    """Write the model with the stored adapter added to its weights, in their precision (``W + alpha / r * B A``).

    Args:
        model_dir: the folder of the adapter's model, which is loaded into memory.
        stored: as in ``export_version``, like ``out``, ``record``, and ``chat_template``.

    Raises:
        ExportError: ``out`` exists and is not an empty folder, or transformers or PEFT cannot merge this model.
        CheckpointError: the disk could not be read or written.
        ModuleNotFoundError: torch, transformers or peft is not installed.
    """
    _check_free(out)
    import transformers
    from peft import PeftModel

    with whole_folder(out) as partial:
        try:
            named = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))["architectures"][0]
            model = getattr(transformers, named).from_pretrained(model_dir, dtype="auto", local_files_only=True)
            # transformers refuses to write contradictory sampling defaults, which many models have.
            model.generation_config = transformers.GenerationConfig()
            PeftModel.from_pretrained(model, str(stored)).merge_and_unload().save_pretrained(partial)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ExportError(
                f"the adapter cannot be added to the weights of {model_dir} ({error}); leave out --merge"
            ) from error
        # transformers writes a configuration with other keys than the model's own, whose keys other programs need.
        (partial / "generation_config.json").unlink(missing_ok=True)
        copy_beside_weights(model_dir, partial)
        _put_template(partial, chat_template)
        _write_record(partial, record)


def serve_command(out: Path, name: str, engine: EngineConfig) -> str:
    """Return the command that serves an exported version in the same way as the daemon's engine.

    Args:
        out: the exported folder.
        name: what clients call it.
    """
    if is_adapter(out):
        adapter = json.loads((out / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        words = [adapter["base_model_name_or_path"], "--enable-lora", "--lora-modules", f"{name}={out}"]
        words += ["--max-lora-rank", str(reserved_rank(adapter["r"]))]
        if engine.chat_template is not None:
            words += ["--chat-template", str(engine.chat_template)]
    else:
        words = [str(out), "--served-model-name", name]
    words += ["--dtype", engine.dtype, "--max-model-len", str(engine.max_model_len)]
    if engine.quantization is not None:
        words += ["--quantization", engine.quantization]
    if engine.tool_call_parser is not None:
        words += ["--enable-auto-tool-choice", "--tool-call-parser", engine.tool_call_parser]
    if engine.reasoning_parser is not None:
        words += ["--reasoning-parser", engine.reasoning_parser]
    return shlex.join(["vllm", "serve", *words, "--generation-config", "vllm"])


def _put_template(folder: Path, chat_template: Path | None) -> None:
    if chat_template is not None:
        shutil.rmtree(folder / NAMED_TEMPLATES, ignore_errors=True)  # one of these would be used instead
        shutil.copyfile(chat_template, folder / CHAT_TEMPLATE_FILE)


def _check_free(out: Path) -> None:
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ExportError(f"{out} is there already and is not an empty folder; choose another with --out")


def _write_record(folder: Path, record: Mapping[str, Any]) -> None:
    (folder / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")

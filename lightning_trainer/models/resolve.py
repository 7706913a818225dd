"""``resolve_model``: a folder, a Hugging Face id, or one of the models that need no download.

The latter are written once, in float32, into a cache folder. Writing happens in a process of its own, so that the
daemon never imports torch.
"""

import logging
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from lightning_trainer.errors import ModelError
from lightning_trainer.models.folder import check_folder
from lightning_trainer.models.hub import cached_folder, hub_folder

_log = logging.getLogger(__name__)

WRITERS = {
    "embedded:smollm2-135m-instruct": "lightning_trainer.models.smollm2",
    "random:tiny": "lightning_trainer.models.tiny",
    "random:tiny-moe": "lightning_trainer.models.tiny --experts",
    "random:tiny-vision": "lightning_trainer.models.tiny --vision",
}
"""Module that writes the model of that name, and its options: ``python -m MODULE FOLDER OPTIONS``."""
_FORMAT = 2
"""Part of the cache folder's name; raised when a writer changes what it writes."""
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")


def model_cache() -> Path:
    """Return the folder that models without a download are written into."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning-trainer" / "models"


def found_model(spec: str, cache_dir: Path) -> Path | None:
    """Return the folder of a model that is on this machine; None where it would have to be made or downloaded."""
    folder = _cache_folder(spec, cache_dir) if spec in WRITERS else Path(spec).expanduser()
    if folder.is_dir():
        return folder.absolute()
    return cached_folder(spec) if _HUB_ID.fullmatch(spec) else None


def resolve_model(spec: str, cache_dir: Path) -> Path:
    """Return the folder of a model; writes it into ``cache_dir`` first where that is how it comes.

    Raises:
        ModelError: there is no such model, or it cannot be read; the message says what to do.
    """
    if spec in WRITERS:
        folder = build_once(_cache_folder(spec, cache_dir), lambda aside: _write(spec, aside))
        put_chat_template(folder)
        return folder
    if spec.startswith(("embedded:", "random:")):
        raise ModelError(f"there is no model {spec!r}; models without a download are: {', '.join(WRITERS)}")
    if (folder := Path(spec).expanduser()).is_dir():
        return check_folder(folder.absolute())
    if _HUB_ID.fullmatch(spec):
        return check_folder(hub_folder(spec))
    raise ModelError(
        f"there is no model {spec!r}: no folder, no Hugging Face id (owner/name), none of {', '.join(WRITERS)}"
    )


def _cache_folder(spec: str, cache_dir: Path) -> Path:
    return cache_dir / f"{spec.replace(':', '-')}-{_FORMAT}"


def _write(spec: str, folder: Path) -> None:
    _log.info("writing the model %s (once)", spec)
    module, *options = WRITERS[spec].split()
    written = subprocess.run(
        [sys.executable, "-m", module, str(folder), *options],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    if written.returncode:
        last = (written.stderr.strip() or "it said nothing").splitlines()[-1]
        raise ModelError(f"the model {spec} could not be written: {last}")


CHAT_TEMPLATE_FILE = "chat_template.jinja"


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return ``target``, after ``build`` has filled it if it was not there. Two processes may do this at once."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    aside.mkdir()
    try:
        build(aside)
        aside.rename(target)
    except OSError:
        # Someone else was first: theirs is as good.
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def chat_template() -> str:
    """Return the template that SmolLM2 needs to be given tools: its own leaves them out."""
    return (resources.files("lightning_trainer.models") / "chat_templates" / "smollm2_tools.jinja").read_text("utf-8")


def put_chat_template(folder: Path) -> None:
    """Make the folder carry our chat template as it is now."""
    target = folder / CHAT_TEMPLATE_FILE
    text = chat_template()
    if target.is_file() and target.read_text(encoding="utf-8") == text:
        return
    aside = folder / f".{CHAT_TEMPLATE_FILE}.{os.getpid()}"
    aside.write_text(text, encoding="utf-8")
    aside.replace(target)

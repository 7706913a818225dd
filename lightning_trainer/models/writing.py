"""Making a model folder once: written aside, then renamed, so that a half-written one is never found."""

import os
import secrets
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path

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

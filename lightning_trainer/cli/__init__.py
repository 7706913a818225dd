"""The command line: ``lightning-trainer serve | run | versions | rollback | quickstart | doctor ...``."""

import sys
from io import TextIOWrapper


def main() -> None:
    """Entry point. The light client is installed without the command line's packages; then it says what to install."""
    if sys.argv[1:2] == ["run"]:
        # It starts other programs: nothing that they do not need is imported, and the light client suffices.
        from lightning_trainer.cli.run import main as run

        run(sys.argv[2:])
    _spell_everything()
    try:
        from lightning_trainer.cli.app import app
    except ImportError as error:
        from lightning_trainer.cli.light import main as light

        light(sys.argv[1:], missing=error.name or "a package")
    app()


def _spell_everything() -> None:
    """Have texts of agents printed where the encoding lacks their characters: on Windows, what goes into a file or
    another program is UTF-8; elsewhere, and on a terminal, they are question marks."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, TextIOWrapper) or stream.encoding.lower().startswith("utf"):
            continue
        if sys.platform == "win32" and not stream.isatty():
            stream.reconfigure(encoding="utf-8")
        else:
            stream.reconfigure(errors="replace")

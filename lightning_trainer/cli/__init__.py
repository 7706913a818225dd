"""The command line: ``lightning-trainer serve | run | versions | rollback | quickstart | doctor ...``."""

import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command line. The light client is installed without its packages; then say what to install."""
    if sys.argv[1:2] == ["run"]:
        # `run` starts other programs: it imports nothing that they do not need, and the light client suffices.
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
    """Make texts of agents printable even if the encoding lacks their characters: on Windows, output to a file or
    another program becomes UTF-8; elsewhere, and on a terminal, such characters become question marks."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, TextIOWrapper) or stream.encoding.lower().startswith("utf"):
            continue
        if sys.platform == "win32" and not stream.isatty():
            stream.reconfigure(encoding="utf-8")
        else:
            stream.reconfigure(errors="replace")

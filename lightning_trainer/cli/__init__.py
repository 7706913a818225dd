"""The command line: ``lightning-trainer serve | run | versions | rollback | quickstart | doctor ...``."""

import sys


def main() -> None:
    """Entry point. The light client is installed without the command line's packages; then it says what to install."""
    if sys.argv[1:2] == ["run"]:
        # It starts other programs: nothing that they do not need is imported, and the light client suffices.
        from lightning_trainer.cli.run import main as run

        run(sys.argv[2:])
    try:
        from lightning_trainer.cli.app import app
    except ImportError as error:
        from lightning_trainer.cli.light import main as light

        light(sys.argv[1:], missing=error.name or "a package")
    app()

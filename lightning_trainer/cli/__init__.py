"""The command line: ``lightning-trainer serve | quickstart | doctor``."""

import sys


def main() -> None:
    """Entry point. The light client is installed without the command line's packages; then it says what to install."""
    try:
        from lightning_trainer.cli.app import app
    except ImportError as error:
        sys.exit(f'error: {error.name} is not installed; run: pip install "lightning-trainer[daemon]"')
    app()

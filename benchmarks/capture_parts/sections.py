"""The sections of a benchmark that ``--only`` names."""

import argparse
from collections.abc import Callable, Collection


def among(sections: Collection[str]) -> Callable[[str], list[str]]:
    """Return what reads names separated by commas; argparse refuses a line with none or an unknown one."""

    def read(text: str) -> list[str]:
        wanted = [name.strip() for name in text.split(",") if name.strip()]
        if not wanted or set(wanted) - set(sections):
            raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(sections)}")
        return wanted

    return read

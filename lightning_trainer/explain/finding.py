"""One finding that explains an attempt's outcome."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of a diagnosis."""

    name: str
    """Two or three words: "no reward"."""
    sentence: str
    """The finding with its value, and what to do about it."""
    blocks: bool = True
    """Whether the cause keeps tokens from being trained; if not, the finding is only information."""
    whole: bool = True
    """Whether the finding applies to the attempt or all of its calls, not only to some calls."""


def counted(count: int, thing: str) -> str:
    """Return "1 call", "2 calls"."""
    return f"{count:,} {thing}{'s' * (count != 1)}"


def listed(names: Iterable[object], most: int = 4) -> str:
    """Return "a, b, c and 7 more"."""
    names = [str(name) for name in names]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def seconds(duration_ns: float) -> str:
    """Return a duration with a suitable unit."""
    duration_s = duration_ns / 1e9
    if duration_s < 1:
        return f"{1000 * duration_s:.0f} ms"
    return f"{duration_s:.1f} s" if duration_s < 120 else f"{duration_s / 60:.0f} min"

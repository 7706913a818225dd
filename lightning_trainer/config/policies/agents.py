"""Which agents a policy claims: patterns of names."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

ALL_AGENTS = "*"
"""The pattern of all agents, and of calls without an agent's name."""


def matches(agent: str | None, patterns: Iterable[str]) -> bool:
    """Whether an agent's name is one of the names, or fits one of the patterns; that there is none fits ``*`` alone."""
    if agent is None:
        return ALL_AGENTS in patterns
    return any(agent == pattern or fnmatchcase(agent, pattern) for pattern in patterns)

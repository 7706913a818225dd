"""Which examples are proofs, and how long each is trained."""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.processes import ROOT


@dataclass(frozen=True, slots=True)
class Example:
    """A folder of ``examples/`` with a configuration and a ``train.py`` that asks held-out tasks before and after."""

    what: str
    """One line for the page."""
    steps: int
    heldout: int
    environments: tuple[str, ...] = ()
    """Environments that it needs, which are installed first."""
    python: Path = Path(sys.executable)
    uses: tuple[str, ...] = ()
    """Other examples whose modules belong to this one; their own configuration and ``train.py`` do not."""


EXAMPLES: Mapping[str, Example] = {
    "calculator": Example("LangChain: an agent with a calculator (the quickstart)", 26, 96),
    "langgraph": Example("LangGraph: a planner and a worker, one policy", 12, 48, uses=("two_agents",)),
    "autogen": Example("AutoGen: two assistants that are shown examples, one policy", 12, 48, uses=("two_agents",)),
    "openai_agents": Example("OpenAI Agents: a planner and a worker, one policy", 12, 48, uses=("two_agents",)),
    "crewai": Example(
        "CrewAI: two agents, one policy", 12, 48, python=ROOT / ".venv-crewai" / "bin" / "python", uses=("two_agents",)
    ),
    "search": Example("Two searches before answering (Search-R1)", 32, 72),
    "code": Example("Code of one line with hidden tests in a sandbox (L0)", 24, 60),
    "game": Example("FrozenLake in text over many turns, GiGPO (RAGEN)", 40, 64, environments=("frozenlake",)),
    "tools": Example("Tools of an MCP server, with tasks made from their list (MCP·RL)", 24, 64),
    "web": Example("Web pages in a headless browser, one click each (MiniWoB++)", 12, 64, environments=("miniwob",)),
    "shop": Example(
        "A web shop in a headless browser, three clicks: a scripted customer's, then RL",
        24,
        64,
        environments=("web",),
        uses=("web",),
    ),
    "distil": Example("A scripted expert's traces, then RL (cold start)", 24, 72, uses=("search",)),
    "stages": Example("Format, then each action, then the whole task (Mobile-R1)", 24, 72, uses=("search", "distil")),
}


def digest_of(name: str) -> str:
    """Return a digest of an example's files: an outcome of other files says nothing about these."""
    found = hashlib.sha256()
    for folder in (name, *EXAMPLES[name].uses):
        for path in sorted((ROOT / "examples" / folder).glob("*.*")):
            own = folder == name or path.name not in ("lightning.toml", "train.py")
            if own and path.suffix in (".py", ".toml", ".jsonl"):
                found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]

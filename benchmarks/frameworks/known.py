"""The frameworks that are tried, with the interpreter and the packages of each."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
NODE_MODULES = ROOT / ".venv-frameworks-node" / "node_modules"
_CURRENT, _OLDER, _BESIDE = (ROOT / f".venv-frameworks{which}" for which in ("", "-older", "-beside"))


@dataclass(frozen=True, slots=True)
class Framework:
    """One row of the table."""

    name: str
    """The name of its program's file, in a folder of ``programs``."""
    title: str
    package: str
    venv: Path | None = _CURRENT
    """None: a Node package."""
    environment: Mapping[str, str] = field(default_factory=dict)
    elsewhere: str | None = None
    """Why its calls are not captured in its own process, so that it needs the gateway's URL; None: they are."""
    said: str = "is not a Python program"
    """What the terminal says in that case."""
    captured_in: frozenset[str] = frozenset({"url"})
    """Ways in which its calls are captured all the same."""

    @property
    def beside(self) -> bool:
        """Whether it is another instrumentation, whose own spans have to be the same with and without ours."""
        return self.program.startswith("instrumentations/")

    @property
    def program(self) -> str:
        """Return the path of its program below ``programs``, without the suffix."""
        (file,) = PROGRAMS.glob(f"[!_]*/{self.name}.*")
        return file.relative_to(PROGRAMS).with_suffix("").as_posix()

    @property
    def command(self) -> list[str]:
        if self.venv is None:
            return ["node", str(HERE / "program.cjs"), self.program]
        return [str(self.venv / "bin" / "python"), "-m", "benchmarks.frameworks.program", self.program]

    @property
    def version(self) -> str | None:
        """Return the installed version; None if it is not installed."""
        return _node_version(self.package) if self.venv is None else _version(self.venv, self.package)


@cache
def _version(venv: Path, package: str) -> str | None:
    folders = [str(folder) for folder in venv.glob("lib/python*/site-packages")]
    found = list(metadata.distributions(name=package, path=folders))
    return found[0].version if found else None


@cache
def _node_version(package: str) -> str | None:
    described = NODE_MODULES / package / "package.json"
    return json.loads(described.read_text(encoding="utf-8"))["version"] if described.is_file() else None


_QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DISABLE_TELEMETRY": "1", "ANONYMIZED_TELEMETRY": "False"}
KNOWN = (
    Framework("openai_client", "openai client", "openai"),
    Framework("pydantic_ai_agent", "Pydantic AI", "pydantic-ai-slim"),
    Framework("llama_index_agent", "LlamaIndex", "llama-index-core"),
    Framework("google_adk", "Google ADK over LiteLLM", "google-adk", environment=_QUIET),
    Framework("haystack_agent", "Haystack", "haystack-ai"),
    Framework("agno_agent", "Agno", "agno"),
    Framework("semantic_kernel_agent", "Semantic Kernel", "semantic-kernel", _OLDER),
    Framework("camel_agent", "CAMEL", "camel-ai", _OLDER),
    Framework("strands_agent", "Strands", "strands-agents"),
    Framework("litellm_call", "LiteLLM", "litellm", environment=_QUIET),
    Framework("smolagents_agent", "smolagents", "smolagents"),
    Framework("dspy_predict", "DSPy", "dspy", environment=_QUIET),
    Framework("instructor_answer", "instructor", "instructor"),
    Framework("ag2_agent", "AG2", "ag2"),
    Framework("agent_framework_agent", "Microsoft Agent Framework", "agent-framework-openai"),
    Framework(
        "claude_agent_sdk_query",
        "Claude Agent SDK",
        "claude-agent-sdk",
        elsewhere="a binary makes its calls",
        said="starts Claude Code, a program of its own",
        captured_in=frozenset({"routed", "url"}),
    ),
    Framework("claude_code", "Claude Code", "@anthropic-ai/claude-code", None, elsewhere="a binary makes its calls"),
    Framework("beside_logfire", "openai, watched by Logfire too", "logfire", _BESIDE),
    Framework("beside_langfuse", "openai, watched by Langfuse too", "langfuse", _BESIDE),
    Framework("beside_phoenix", "openai, watched by Phoenix too", "openinference-instrumentation-openai", _BESIDE),
    Framework("beside_mlflow", "openai, watched by MLflow too", "mlflow-tracing", _BESIDE),
    Framework("beside_traceloop", "openai, watched by Traceloop too", "traceloop-sdk", _BESIDE),
    Framework("node_openai", "Node: openai", "openai", None, elsewhere="not Python"),
    Framework("node_anthropic", "Node: @anthropic-ai/sdk", "@anthropic-ai/sdk", None, elsewhere="not Python"),
    Framework("node_ai_sdk", "Node: AI SDK", "ai", None, elsewhere="not Python"),
)

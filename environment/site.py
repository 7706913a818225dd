"""``make docs``: puts the pages where MkDocs finds them, adds the API reference, and builds ``build/site``.

The repository's own pages stay where readers of the repository look for them and link to each other as files; links to
files that are not pages become plain text on the site.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "site-pages"
CLIENT = {
    "init": "runtime",
    "agent": "agent",
    "tool": "tool",
    "rollout": "rollout",
    "Rollout": "rollout",
    "reward": "reward",
    "feedback": "feedback",
    "state": "block",
    "uncaptured": "block",
    "prompt": "prompts.prompt",
    "flush": "runtime",
    "shutdown": "runtime",
    "stats": "runtime",
    "Stats": "runtime",
    "InstrumentationError": "errors",
    "ConfigurationError": "errors",
}
"""The client's public names, each with its module. Read from the package alone, the reference would lack those that a
module of the same name hides, such as ``agent``, ``tool``, and ``rollout``."""
REFERENCE: dict[str, tuple[str, str, tuple[str, ...]]] = {  # by page: its title, a package, and names below that
    "rollouts": (
        "Rollouts",
        "lightning_trainer.rollouts",
        (
            *("runner.Runner", "step_runner.StepRunner", "command.Command", "curriculum.Curriculum", "on_ray.OnRay"),
            *("attempt.Task", "attempt.AttemptEnded", "attempt.StepEnded", "attempt.Event"),
            "prompts.optimizer.PromptOptimizer",
        ),
    ),
    "environments": (
        "Environments",
        "lightning_trainer.environments.protocol",
        ("Environment", "Task", "Observation", "Action", "Step", "Tool", "ToolCall", "ToolResult"),
    ),
    "configuration": (
        "Configuration",
        "lightning_trainer.config",
        (
            *("daemon", "sections", "engine", "store", "training", "policies.policy", "policies.updates"),
            *("algorithms.algorithm", "policies.credit", "policies.rewards", "policies.stages", "policies.versions"),
            *("policies.trusted", "judges", "model_endpoint", "prompts", "metrics"),
        ),
    ),
    "datasets": ("Datasets", "lightning_trainer.dataset", ("calls",)),
}


def main() -> int:
    shutil.rmtree(PAGES, ignore_errors=True)
    sources = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*"), ROOT / "examples" / "README.md"]
    pages = {path.resolve() for path in sources if path.is_file()}
    for page in sorted(pages):
        target = PAGES / page.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".md":
            target.write_text(_with_links_to(pages, page), encoding="utf-8")
        else:
            shutil.copy(page, target)
    (PAGES / "reference").mkdir()
    (PAGES / "reference" / "client.md").write_text(client_page())
    for name, (title, package, objects) in REFERENCE.items():
        parts = [f"# {title}\n", *(f"::: {package}.{one}\n" for one in objects)]
        (PAGES / "reference" / f"{name}.md").write_text("\n".join(parts))
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--config-file",
        str(ROOT / "environment/mkdocs.yml"),
    ]
    built = subprocess.run(command, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    if built.returncode == 0:
        print(f"documentation: {ROOT / 'build' / 'site' / 'README.html'}")
    return built.returncode


def client_page() -> str:
    """Return the source of the client's reference: every public name under the name that users import it by."""
    parts = ["# The client\n\n::: lightning_instrumentation\n    options:\n      members: false\n"]
    for name, module in CLIENT.items():
        heading = f"      heading: lightning_instrumentation.{name}\n      toc_label: {name}\n"
        parts.append(f"::: lightning_instrumentation.{module}.{name}\n    options:\n{heading}")
    return "\n".join(parts)


def _with_links_to(pages: set[Path], page: Path) -> str:
    def link(found: re.Match[str]) -> str:
        target = found[2].partition("#")[0]
        kept = not target or "://" in target or (page.parent / target).resolve() in pages
        return found[0] if kept else found[1]

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", link, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())

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
REFERENCE = {
    "client": ("The client", ["lightning_instrumentation"]),
    "rollouts": (
        "Rollouts",
        [
            f"lightning_trainer.rollouts.{name}"
            for name in ("runner.Runner", "step_runner.StepRunner", "command.Command")
        ],
    ),
    "configuration": (
        "Configuration",
        [f"lightning_trainer.config.{name}" for name in ("daemon", "engine", "store", "training", "sections")]
        + ["lightning_trainer.config.policies.policy", "lightning_trainer.config.policies.credit"],
    ),
    "datasets": ("Datasets", ["lightning_trainer.dataset.calls"]),
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
    for name, (title, objects) in REFERENCE.items():
        (PAGES / "reference" / f"{name}.md").write_text(f"# {title}\n\n" + "".join(f"::: {one}\n\n" for one in objects))
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


def _with_links_to(pages: set[Path], page: Path) -> str:
    def link(found: re.Match[str]) -> str:
        target = found[2].partition("#")[0]
        kept = not target or "://" in target or (page.parent / target).resolve() in pages
        return found[0] if kept else found[1]

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", link, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())

"""``docs/index.md`` leads to every page, and every link between pages leads somewhere; the site has them all."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])


def test_it_names_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor and file.suffix == ".md":
            read = file.read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.+)$", read, flags=re.MULTILINE)
            anchors = set(re.findall(r'<a id="([\w-]+)">', read)) | {
                re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
            }
            assert anchor in anchors, f"{page.name}: {target}#{anchor}"


def test_the_site_has_every_page() -> None:
    settings = yaml.safe_load((ROOT / "environment" / "mkdocs.yml").read_text(encoding="utf-8"))

    def pages(entry):
        if isinstance(entry, str):
            return [entry]
        return [page for inner in (entry.values() if isinstance(entry, dict) else entry) for page in pages(inner)]

    found = {page for page in pages(settings["nav"]) if not page.startswith("reference/")}
    assert found == {str(page.relative_to(ROOT)) for page in (*PAGES, ROOT / "examples" / "README.md")}

"""Pictures of every page at two widths, light and dark: ``make screenshots [ARGS="--out FOLDER"]``.

Without ``--out``, the pictures that the documentation shows are written to ``docs/images``.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmarks.dashboard.browser import browser
from benchmarks.dashboard.example_attempts import Encode, letters
from benchmarks.dashboard.example_run import config_text, fill
from benchmarks.dashboard.live_example import served
from lightning_trainer.models.resolve import found_model, model_cache

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PAGES = {
    "overview": "/",
    "rollouts": "/rollouts?agent=support",
    "rollout": "/rollout?id=r-006-0-1",
    "group": "/group?id=step-6/order-4742",
    "agents": "/agents",
    "prompts": "/agents/prompts?agent=support",
    "versions": "/versions",
    "compare": "/versions/compare?a=2&b=22",
    "rollback": "/versions/rollback?version=3",
    "promote": "/versions/promote?version=12",
    "picture": "/rollout?id=r-photo",
    "span": "/rollout?id=r-006-0-1",
    "tokens": "/rollout?id=r-006-0-1#tokens",
    "login": "/",
    "charts": "/charts",
    "costs": "/costs",
    "setup": "/setup",
    "empty": "/rollouts?text=nothing+has+this",
    "hostile": "/rollout?id=r-a%3Cb%3E%22'%26",
}
WIDTHS = {"wide": 1280, "narrow": 390}
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
SHOWN: tuple[tuple[str, str, Scheme], ...] = (
    *((name, "wide", "light") for name in ("overview", "rollouts", "rollout", "group", "agents")),
    *((name, "wide", "light") for name in ("versions", "compare", "charts", "costs", "setup")),
    *((name, "narrow", "dark") for name in ("overview", "rollout", "versions")),
    ("tokens", "wide", "dark"),
)
"""What the documentation shows: a page, a width and a scheme."""
TOKEN = "token-of-the-pictures"
MODEL = "embedded:smollm2-135m-instruct"


def tokens_of(model: str) -> Encode:
    """Return the encoding of the model's tokenizer; ``letters``, of no model, if the model is not on this machine."""
    folder = found_model(model, model_cache())
    if folder is None or not (folder / "tokenizer.json").is_file():
        return letters
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def make_earlier_run(folder: Path) -> None:
    """Make a second run next to the one that is shown, for the curves of the Metrics page."""
    earlier = folder / "temperature-0.7"
    earlier.mkdir()
    asyncio.run(fill(earlier, steps=18, now_ns=time.time_ns(), seed=3))
    beside = f'[metrics]\nbeside = ["{earlier.name}/.lightning"]\n'
    (folder / "lightning.toml").write_text(config_text(MODEL) + beside)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="a folder for every page, width and scheme")
    parser.add_argument("--only", nargs="*", choices=list(PAGES), help="these pages alone")
    given = parser.parse_args()
    root = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory() as folder:
        make_earlier_run(Path(folder))
        return _take(given, root, Path(folder))


def _take(given: argparse.Namespace, root: Path, folder: Path) -> int:
    shown = itertools.product(PAGES, WIDTHS, SCHEMES) if given.out else SHOWN
    out = given.out or root / "docs" / "images"
    out.mkdir(parents=True, exist_ok=True)
    with browser() as chromium:
        if chromium is None:
            print("there is no Chromium: apt-get install chromium, and pip install playwright", file=sys.stderr)
            return 1
        with served(folder, token=TOKEN, steps=24, encode=tokens_of(MODEL), model=MODEL) as site:
            for name, width, scheme in shown:
                if given.only and name not in given.only:
                    continue
                target = out / (f"{name}-{width}-{scheme}.png" if given.out else f"dashboard-{name}{_mark(width)}.png")
                with _page(chromium, name, width, scheme) as page:
                    page.goto(site.url + PAGES[name], wait_until="load")
                    if name == "span":
                        page.locator(".spans a:has-text('gateway chat')").first.click()
                        page.wait_for_selector(".attributes")
                    page.screenshot(path=str(target), full_page=given.out is not None)
                print(target)
    return 0


def _mark(width: str) -> str:
    return "" if width == "wide" else f"-{width}"


@contextmanager
def _page(chromium: "Browser", name: str, width: str, scheme: Scheme) -> Iterator["Page"]:
    context = chromium.new_context(
        viewport={"width": WIDTHS[width], "height": 820},
        color_scheme=scheme,
        locale="en-GB",
        extra_http_headers={} if name == "login" else {"authorization": f"Bearer {TOKEN}"},
    )
    try:
        yield context.new_page()
    finally:
        context.close()


if __name__ == "__main__":
    sys.exit(main())

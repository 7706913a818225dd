"""Pages of one's own in a real Chromium, in the interpreter that ``environments install web`` makes."""

import base64
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lightning_trainer.environments import Task
from lightning_trainer.environments.errors import EnvironmentRaisedError
from lightning_trainer.environments.protocol import HELD_OUT, TRAIN
from lightning_trainer.environments.session import Session
from lightning_trainer.environments.worker.process import EnvironmentProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="needs Chromium and its driver (Debian: apt install chromium chromium-driver)",
    ),
]

Start = Callable[[str], EnvironmentProcess]
SHOP = Path(__file__).parents[3] / "examples" / "shop" / "shop.py"
FORM = """
class Form:
    def open(self, task):
        return "Send the form.", '''<h1>A <a href="#">form</a></h1><p>Please write.</p>
            <label>Name <input id=name value=old></label>
            <label><input type=checkbox id=box> Agreed</label>
            <select aria-label=Size id=size><option>small<option>large</select>
            <button onclick="window.sent = [name_.value, box.checked, size.value]">Send</button>
            <button disabled>Later</button><button style="display: none">Hidden</button>
            <img alt="A map" src="data:image/gif;base64,R0lGODlhAQABAAAAACw="><script>
            const [name_, box, size] = ["name", "box", "size"].map(id => document.getElementById(id))</script>'''

    def reward(self, run):
        sent = run("return window.sent || null")
        return None if sent is None else float(sent == ["Ann", True, "large"])
"""


def session_of(process: EnvironmentProcess, seed: int = 0, split: str = TRAIN) -> Session:
    return Session(process, Task("web", process.version, split, seed))


def number_of(session: Session, what: str) -> int:
    _, page = session.observation.text.split("\n\n", 1)
    (number,) = re.findall(rf"^.*{re.escape(what)}.* \[(\d+)\]", page, flags=re.MULTILINE)
    return int(number)


def click(session: Session, what: str) -> str:
    return session.say(f"click({number_of(session, what)})")


@pytest.fixture
def form(tmp_path: Path) -> str:
    (tmp_path / "form.py").write_text(FORM)
    return f"web:{tmp_path / 'form.py'}"


def test_a_visit_of_the_shop_is_worth_what_was_ordered(started: Start) -> None:
    process = started(f"web:{SHOP}?screenshots=true")
    wanted_of: dict[str, set[str]] = {}
    for split in (TRAIN, HELD_OUT):
        for seed in range(3):
            session = session_of(process, seed, split)
            (wanted,) = re.findall('"(.+)"', session.observation.text.splitlines()[0])
            wanted_of.setdefault(split, set()).add(wanted)
            assert click(session, f"Add {wanted}").endswith('button "Cart: 1" [4]')
            assert click(session, "Cart").endswith(f'In the cart: {wanted}\nbutton "Order" [1]\nbutton "Back" [2]')
            assert click(session, "Order") == "Right."
            assert (session.reward, session.done) == (1.0, True)
            (picture,) = session.observation.images
            assert base64.b64decode(picture.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    assert wanted_of[TRAIN].isdisjoint(wanted_of[HELD_OUT])
    session = session_of(process)  # nothing of the last visit is left
    click(session, "Cart: 0")
    assert "In the cart: nothing" in session.observation.text
    assert click(session, "Order") == "Wrong."
    assert (session.reward, session.done) == (0.0, True)


def test_fields_boxes_and_lists_are_filled_by_the_browsers_own_input(started: Start, form: str) -> None:
    session = session_of(started(form))
    assert session.observation.text.splitlines() == [
        "Send the form.",
        "",
        "A",
        'link "form" [1]',
        "Please write.",
        "Name",
        'textbox "Name" "old" [2]',
        'checkbox "Agreed" [3]',
        'combobox "Size" "small" [4] of: small, large',
        'button "Send" [5]',
        'button "Later" disabled [6]',
        'image "A map"',
    ]
    session.say(f'type({number_of(session, "Name")}, "Ann")')
    assert 'textbox "Name" "Ann"' in session.observation.text
    click(session, "Agreed")
    assert 'checkbox "Agreed" checked' in session.observation.text
    assert session.say("type(4, huge)").startswith('The list 4 has no entry "huge".')
    session.say("type(4, large)")
    assert session.say("type(5, text)").startswith("The element 5 takes no text.")
    assert session.say("click(99)").startswith("There is no element 99.")
    assert click(session, "Send") == "Right."


def test_an_address_is_opened_and_links_are_followed_and_no_cookie_is_left(
    started: Start, tmp_path: Path, site
) -> None:
    (tmp_path / "site.py").write_text(
        "class Site:\n"
        f'    def open(self, task):\n        return "Go there.", "{site}"\n\n'
        '    def reward(self, run):\n        return 1.0 if run("return location.pathname") == "/there" else None\n'
    )
    process = started(f"web:{tmp_path / 'site.py'}")
    for _ in range(2):
        session = session_of(process)
        assert "Visit 1" in session.observation.text
        assert click(session, "Again").count("Visit 2") == 1
        assert click(session, "There") == "Right."


def test_questions_of_the_browser_and_new_windows_stop_nobody(started: Start, tmp_path: Path, site) -> None:
    ask = "<button onclick=\"document.title = confirm('Sure?')\">Ask</button>"
    page = f"{ask}<a href='{site}there' target=_blank>Open</a>"
    (tmp_path / "pages.py").write_text(
        f"class Pages:\n    def open(self, task): return 'Open it.', {page!r}\n\n"
        '    def reward(self, run): return 1.0 if run("return location.pathname") == "/there" else None\n'
    )
    process = started(f"web:{tmp_path / 'pages.py'}")
    for _ in range(2):
        session = session_of(process)
        assert session.observation.text.endswith('button "Ask" [1]\nlink "Open" [2]')
        click(session, "Ask")
        assert click(session, "Open") == "Right."


@pytest.fixture
def site() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/favicon.ico":
                return self.send_error(404)
            visits = int((re.findall(r"visits=(\d+)", self.headers.get("Cookie", "")) or [0])[0]) + 1
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Set-Cookie", f"visits={visits}")
            self.end_headers()
            self.wfile.write(f"<p>Visit {visits}</p><a href=/>Again</a> <a href=/there>There</a>".encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("class Pages:\n    pass\n", "must have one class with open and reward, and it has none"),
        (FORM + FORM.replace("Form", "Other"), "it has Form and Other; name one as web:FILE\\?pages=NAME"),
        ("class Pages(:", "SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_shown_is_one_sentence(code: str, sentence: str, started: Start, tmp_path: Path) -> None:
    (tmp_path / "pages.py").write_text(code)
    with pytest.raises(EnvironmentRaisedError, match=sentence):
        session_of(started(f"web:{tmp_path / 'pages.py'}"))


@pytest.mark.parametrize(
    ("opened", "rewarded", "sentence"),
    [
        ('"x"', "None", r"open\(\) returned 'x'; it must be two texts"),
        ('"x", "http://127.0.0.1:9/"', "None", "http://127.0.0.1:9/ cannot be opened: nothing answers there"),
        ('"x", "http://example.org/"', "None", "or its host is not among [?]hosts=127.0.0.1,localhost"),
        ('"x", "<a href=x>y</a>"', '"1"', r"reward\(\) returned '1'; it must be a number"),
        ('"x", "<a href=x>y</a>"', 'run("a b")', "'a b' fails in the page"),
    ],
)
def test_what_a_class_returns_wrongly_is_said(
    opened: str, rewarded: str, sentence: str, started: Start, tmp_path: Path
) -> None:
    (tmp_path / "pages.py").write_text(
        f"class Pages:\n    def open(self, task): return {opened}\n    def reward(self, run): return {rewarded}\n"
    )
    with pytest.raises(EnvironmentRaisedError, match=sentence):
        session_of(started(f"web:{tmp_path / 'pages.py'}")).say("click(1)")

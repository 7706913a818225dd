"""The pages in real Chromium: fresh while somebody looks, a rollback and a label end to end, hostile text harmless.

One browser and one server for all of it. Without Chromium this file is skipped, and the skip says how to get it.
"""

from typing import Any

import pytest

from lightning_trainer.daemon.watching.progress import Phase

pytestmark = pytest.mark.process

TOKEN = "token-of-the-dashboards-tests"
PATHS = (
    *("/", "/rollouts", "/group?id=step-3/order-4721", "/rollout?id=r-003-0-1", "/agents", "/versions", "/charts"),
    *("/agents/prompts?agent=support", "/rollout?id=r-photo", "/versions/promote?policy=support&version=3"),
    *("/versions/compare?policy=support&a=2&b=6", "/versions/rollback?policy=support&version=4", "/costs", "/setup"),
    "/prompts",
)


@pytest.fixture(scope="module")
def context(chromium, site) -> Any:
    context = chromium.new_context(viewport={"width": 1280, "height": 820})
    context.set_default_timeout(10_000)
    page = context.new_page()
    page.goto(site.url)
    page.fill("#token", TOKEN)
    follow(page, "button:has-text('Log in')")
    page.wait_for_selector("h1:has-text('Overview')")
    page.close()
    yield context
    context.close()


@pytest.fixture
def page(context) -> Any:
    """A page whose console and network complain about nothing."""
    said: list[str] = []
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(f"dialog {dialog.message}"), dialog.dismiss()))
    # A page that is left gives up what it still asks for: its events, a renewal.
    page.on(
        "requestfailed",
        lambda request: said.append(f"failed {request.url}") if request.failure != "net::ERR_ABORTED" else 0,
    )
    yield page
    page.close()
    refused = ("status of 409", "status of 422")  # pages that say why something was not done
    assert [text for text in said if not any(status in text for status in refused)] == []


@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_drawn_from_here_alone_fits_a_phone_and_axe_finds_nothing_serious(page, site, path):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(site.url + path)
    assert page.locator("h1").count() == 1
    assert page.evaluate("getComputedStyle(document.querySelector('.bar')).display") == "flex"
    assert all(url.startswith(site.url) for url in asked)
    assert serious(page) == []
    page.set_viewport_size({"width": 390, "height": 820})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("path", ["/", "/rollout?id=r-003-0-1", "/versions"])
def test_dark_is_dark_and_readable(page, site, path):
    page.emulate_media(color_scheme="dark")
    page.goto(site.url + path)
    rgb = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert max(rgb) < 60
    assert serious(page) == []


def follow(page: Any, selector: str) -> None:
    """Click what leads to another page, and wait until that one is there whole."""
    with page.expect_navigation(timeout=30_000):
        page.click(selector)


def serious(page: Any) -> list[tuple[str, str, str]]:
    """What axe-core finds that keeps somebody out."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        (one["id"], one["nodes"][0]["html"][:150], one["nodes"][0]["failureSummary"][:300])
        for one in Axe().run(page).response["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def test_the_keyboard_reaches_the_content_first(page, site):
    page.goto(site.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Overview"


def test_a_page_follows_the_daemon_without_being_loaded_again(page, site):
    page.goto(site.url)
    page.evaluate("window.same = true")
    page.wait_for_selector(".phase-collecting")
    site.loop.call_soon_threadsafe(site.policy.progress.enter, Phase.TRAINING, "step 7: 16 samples")
    page.wait_for_selector(".phase-training", timeout=10_000)
    assert "step 7: 16 samples" in page.inner_text(".policy .head")
    assert page.evaluate("window.same") is True
    site.loop.call_soon_threadsafe(site.policy.progress.enter, Phase.COLLECTING)
    page.wait_for_selector(".phase-collecting", timeout=10_000)


def test_a_page_that_heard_nothing_for_a_while_catches_up(page, site):
    page.add_init_script(
        "window.EventSource = class extends EventSource { constructor(url) { super(url); window.heard = this; } }"
    )
    page.goto(site.url)
    page.wait_for_selector("#live-state:text-is('live')")
    page.evaluate("heard.dispatchEvent(new Event('error'))")
    assert page.inner_text("#live-state") == "no answer"
    assert page.locator("main[data-renewed]").count() == 0
    page.evaluate("heard.dispatchEvent(new Event('open'))")
    page.wait_for_selector("main[data-renewed]")
    assert page.inner_text("#live-state") == "live"


def test_a_rollback_is_confirmed_recorded_and_said(page, site):
    page.goto(site.url + "/versions")
    follow(page, "tr:has-text('v4') >> text=Roll back")
    assert page.inner_text("h1") == "Roll support back to v4?"
    follow(page, "button:has-text('Roll back to v4')")
    assert "support serves version 4 and trains on from it" in page.inner_text(".said")
    rollbacks = site.wait(site.store.rollbacks("support"))
    assert rollbacks[-1].version == 4
    site.loop.call_soon_threadsafe(site.policy.progress.enter, Phase.TRAINING, "step 8: 16 samples")
    page.wait_for_selector("main[data-renewed]")
    assert page.locator(".said").count() == 1, "before, it went with the page's first renewal"
    site.loop.call_soon_threadsafe(site.policy.progress.enter, Phase.COLLECTING)
    page.goto(site.url + "/versions/rollback?policy=support&version=99")
    follow(page, "button:has-text('Roll back to v99')")
    assert "has no version 99" in page.inner_text("main")


def test_what_was_held_back_shows_its_canary_and_a_person_promotes_it(page, site):
    page.goto(site.url + "/versions")
    assert "its canary is worse: mean" in page.inner_text("main")
    assert page.locator("tr.under svg.interval .candidate").count() == 2
    follow(page, "tr:has-text('v3'):has-text('refused') >> text=Promote")
    assert page.inner_text("h1") == "Promote v3 of support?"
    follow(page, "button:has-text('Promote v3')")
    assert "support serves version 3 and trains on from it" in page.inner_text(".said")
    row = page.inner_text("tr:has(a:text-is('v3'))")
    assert "serving" in row
    assert "a person promoted it; it was refused before" in row
    page.goto(site.url + "/versions/promote?policy=support&version=1")
    assert "It was served before" in page.inner_text("main")
    assert page.locator("main form").count() == 0


def test_a_picture_is_drawn_and_what_only_says_that_it_is_one_is_not(page, site):
    page.goto(site.url + "/rollout?id=r-photo")
    pictures = page.locator("main img")
    assert pictures.count() == 1
    pictures.first.scroll_into_view_if_needed()
    page.wait_for_function("document.querySelector('main img').complete")
    assert pictures.first.evaluate("one => [one.naturalWidth, one.naturalHeight]") == [240, 150]
    assert serious(page) == []


def test_a_label_and_a_note_are_stored_and_shown_with_who_gave_them(page, site):
    page.goto(site.url + "/rollout?id=r-new-2")
    assert "no reward" in page.inner_text(".cause")
    page.fill("input[name=reward]", "0.75")
    page.fill("textarea[name=note]", "right order, <b>wrong</b> tone")
    follow(page, "button:has-text('Save')")
    page.wait_for_selector(".said")
    shown = page.inner_text("main")
    assert "0.75" in shown
    assert "a person" in shown
    assert page.inner_text("blockquote").startswith("right order, <b>wrong</b> tone")
    page.goto(site.url + "/rollouts?text=RIGHT+order,")
    assert page.locator("td >> text=r-new-2").count() == 1
    page.goto(site.url + "/rollout?id=r-new-2")
    page.fill("input[name=reward]", "high")
    follow(page, "button:has-text('Save')")
    assert "is not a number" in page.inner_text("main")


def test_a_rollout_is_taken_out_of_training(page, site):
    page.goto(site.url + "/rollout?id=r-new-1")
    page.fill("input[name=reason]", "the answer leaked")
    follow(page, "text=Take it out of training")
    assert "will not be trained" in page.inner_text(".said")
    assert "the answer leaked" in page.inner_text("main")


def test_training_is_paused_and_resumed(page, site):
    page.goto(site.url)
    page.click("text=Pause training")
    page.wait_for_selector("text=Training is paused: someone paused it")
    page.wait_for_selector(".phase-held", timeout=10_000)
    page.click("text=Resume training")
    page.wait_for_selector("text=training of support goes on")
    page.wait_for_selector(".phase-collecting", timeout=10_000)


def test_hostile_text_does_nothing_and_is_seen(page, site):
    page.goto(site.url + "/rollouts?agent=support&least=0.5&most=0.5")
    follow(page, "td >> text=r-a<b>")
    assert page.title() == "Rollout · lightning-trainer"
    shown = page.inner_text("main")
    assert "<script>document.title='owned'</script>" in shown
    assert "⟨U+202E⟩txt.exe" in shown
    assert "⟨U+0000⟩" in shown
    assert page.locator("main img, main script, main i:not([class])").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    follow(page, "text=the whole text")
    assert len(page.inner_text("body")) > 1_000_000


def test_a_token_says_what_it_is_when_it_is_tapped(page, site):
    page.goto(site.url + "/rollout?id=r-003-0-1")
    token = page.locator(".tokens .t.p5, .tokens .t.n5").first
    token.click()
    said = page.inner_text("#about")
    assert "logprob" in said
    assert "surprise" in said
    assert "advantage" in said


def test_steps_are_chosen_by_dragging_over_a_chart(page, site):
    page.goto(site.url + "/charts")
    hits = page.locator(".chart").first.locator(".hit")
    first, last = hits.nth(1).bounding_box(), hits.nth(3).bounding_box()
    page.mouse.move(first["x"] + 3, first["y"] + 20)
    page.mouse.down()
    page.mouse.move(last["x"] + 3, last["y"] + 20)
    page.mouse.up()
    page.wait_for_url("**/charts?first=2&last=4")
    assert page.input_value("input[name=first]") == "2"


def test_without_a_script_every_page_reads(chromium, site):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site.url)
    page.fill("#token", TOKEN)
    follow(page, "button:has-text('Log in')")
    for path in PATHS:
        page.goto(site.url + path)
        assert page.locator("h1").count() == 1
        assert len(page.inner_text("main")) > 80
    page.goto(site.url)
    assert "UTC" in page.inner_text("table")
    context.close()

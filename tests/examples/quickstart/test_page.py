"""report.html: self-contained, well formed, escaped, and it says what the report says."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from examples.calculator.quickstart.page import render_page
from examples.calculator.quickstart.report import HeldOut, HeldOutResult
from lightning_trainer.report import paired_difference

VOID = {"meta"}


class Document(HTMLParser):
    """Collects text and attributes; raises where tags do not close in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data

    def with_class(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.tags if name in (attributes.get("class") or "").split()]


@pytest.fixture
def page(report) -> str:
    return render_page(report)


def test_nothing_is_fetched(page):
    for _, attributes in Document(page).tags:
        assert not attributes.keys() & {"src", "href", "data", "srcset", "action"}
    assert not re.search(r"https?://|@import|url\(", page)


def test_nothing_of_the_run_becomes_markup(page):
    tags = [tag for tag, _ in Document(page).tags]
    assert "img" not in tags
    assert tags.count("script") == 1
    assert page.count("</script>") == 1
    assert "onerror=alert(1)" in Document(page).text


def test_the_headline_has_both_shares_and_the_evidence(page):
    text = Document(page).text.replace("\u202f", " ")
    assert "30 % → 90 %" in text
    assert "3 of 10 tasks before, 9 of 10 after." in text
    assert "6 tasks gained, 0 lost, exact McNemar p = 0.0312" in text
    assert "not evidence" not in text


def test_no_change_is_called_no_evidence(report):
    same = [True, False, True]
    held_out = HeldOut(HeldOutResult.of(same), HeldOutResult.of(same), paired_difference(same, same))
    assert "not evidence of a change" in render_page(replace(report, held_out=held_out))


def test_tokens_are_colored_by_mask_and_advantage(page):
    tokens = [a for a in Document(page).with_class("t") if a.get("title")]
    assert [a["class"] for a in tokens] == ["t m", "t m", "t p5", "t n1", "t z"]
    assert tokens[2]["title"] == "token 33 '7' · logprob -0.2500 · advantage +1.5000 · call 1 (9f/0) · version 4"
    assert "version 5" in (tokens[4]["title"] or "")


def test_long_prompts_are_folded(report):
    rollout = report.examples[0]
    long = replace(rollout, tokens=rollout.tokens[:1] * 500 + rollout.tokens[2:])
    assert "440 earlier prompt tokens" in Document(render_page(replace(report, examples=(long,)))).text


def test_the_ledger_is_summed_over_versions(report, page):
    text = Document(page).text
    assert "all 300 sampled tokens are accounted for" in text
    assert "220" in text
    assert "does not balance" in Document(render_page(replace(report, sampled_tokens=7))).text


def test_versions_show_their_proof(page):
    text = Document(page).text
    assert "1 of 2 published versions proven served, 1 refused" in text
    assert "The largest difference of a served version was 0.0125." in text


def test_charts_have_a_wide_and_a_narrow_drawing_with_words_for_those_who_cannot_see(page):
    drawings = [attributes for tag, attributes in Document(page).tags if tag == "svg"]
    assert len(drawings) == 6
    assert all(attributes.get("aria-label") for attributes in drawings)
    assert {attributes["width"] for attributes in drawings} == {"860", "340"}


def test_a_run_without_steps_versions_or_examples_still_has_a_page(report):
    bare = replace(report, steps=(), versions=(), ledger=(), examples=(), settings={}, software={}, ready_s=None)
    assert "No step was trained." in Document(render_page(bare)).text


def test_rewards_beyond_zero_and_one_are_a_table(report):
    steps = tuple(replace(step, reward_mean=-2.5) for step in report.steps)
    text = Document(render_page(replace(report, steps=steps))).text
    assert "-2.500" in text

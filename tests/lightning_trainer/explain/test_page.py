"""The page: every token of the tree once, colored by mask and advantage; nothing of the trace is markup."""

import re
from dataclasses import replace

import pytest

from lightning_trainer.explain.words import texts_of


@pytest.fixture
async def page(store, take_step, attempt, ask, finish, explain, folder) -> str:
    hostile = replace(finish, agent="solver<script>")
    again = replace(ask, prompt=(10, 11, 13), response=(60,), agent="solver")
    await store.append(
        [
            *attempt("a1", turns=(ask, finish, again, hostile)).spans,
            *attempt("b1", turns=(replace(ask, response=(50,)),), reward=0.0).spans,
        ]
    )
    await take_step(["a1", "b1"])
    lines = explain("r-a1", "--html", str(folder / "out" / "tree.html"))
    assert lines[-1] == f"drawn in {folder / 'out' / 'tree.html'}"
    return (folder / "out" / "tree.html").read_text(encoding="utf-8")


def tokens_of(page: str, call: int) -> list[tuple[str, str]]:
    (article,) = re.findall(rf"<article[^>]*><h3>Call {call}<.*?</article>", page, re.DOTALL)
    return re.findall(r'<span class="t (\w+)" title="token (\d+)', article)


def test_each_call_shows_what_it_adds(page):
    assert tokens_of(page, 1) == [*(("m", i) for i in ("10", "11", "12")), *(("p5", i) for i in ("20", "21", "22"))]
    assert tokens_of(page, 2) == [("m", "30"), ("m", "31"), ("p5", "40"), ("p5", "41")]


def test_a_call_that_parts_from_another_says_where(page):
    assert "begins with 2 tokens of call 1, then parts from it" in page
    assert tokens_of(page, 3) == [("m", "13"), ("p5", "60")]


def test_what_was_sampled_and_not_trained_is_neither_gray_nor_colored(page):
    assert tokens_of(page, 4)[-2:] == [("u", "40"), ("u", "41")]


def test_the_cause_the_ledger_and_the_balance_are_on_it(page):
    assert "Rollout r-a1" in page
    assert "is trained (step 1, 3 calls, 6 sampled tokens)" in page
    assert "it balances" in page
    assert "not_selected" in page


def test_nothing_of_the_trace_is_markup(page):
    assert "solver&lt;script&gt;" in page
    assert "solver<script>" not in page


def test_without_a_tokenizer_ids_are_shown_and_it_says_so(page):
    assert "tokenizer is not on this machine" in page
    assert ">20 </span>" in page


def test_ids_are_spelt_where_the_model_is_here(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    Tokenizer(WordLevel({"six": 0, "seven": 1}, unk_token="six")).save(str(tmp_path / "tokenizer.json"))
    text_of = texts_of(str(tmp_path))
    assert text_of is not None
    assert [text_of(1), text_of(0)] == ["seven", "six"]
    assert texts_of(str(tmp_path / "nowhere")) is None

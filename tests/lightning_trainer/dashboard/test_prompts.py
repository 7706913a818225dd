"""The page of named prompts: their versions, what each earned, and what it changes of its parent."""

import re

PAGE = "/prompts?prompt=support"


async def test_versions_are_shown_with_what_each_earned_and_what_it_changes(get) -> None:
    page = (await get(PAGE)).text
    rows = [re.sub(r"<[^>]+>|\s+", " ", row) for row in re.findall(r"<tr><td>.*?</tr>", page, flags=re.DOTALL)]
    assert [" ".join(row.split()[:5]) for row in rows] == [
        f"v2 v0 candidate person {rows[0].split()[4]}",
        "v1 v0 live reflect 0.710",
        "v0 retired code 0.480 of",
    ]
    assert "<ins>Name the order &amp; the day.</ins>" in page
    assert "<del>Answer the customer.</del>" in page
    assert "It never names the order." in page
    assert "lightning-trainer prompts use support@v2" in page
    assert "use support@v1" not in page, "it is served"


async def test_a_prompt_that_there_is_not_is_one_sentence(get, empty) -> None:
    answer = await get("/prompts?prompt=nobody")
    assert answer.status_code == 404
    assert "there is no prompt" in answer.text
    assert "No program has asked for a prompt yet." in (await empty("/prompts")).text

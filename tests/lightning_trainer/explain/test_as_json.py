"""``explain --json``: the whole explanation as one document."""

import json
from dataclasses import replace

from lightning_instrumentation import semconv

from lightning_trainer.sampling import support_of


async def _told(store, take_step, explain, attempt, ask, *arguments):
    guess = replace(ask, response=(50,), answer="7")
    await store.append([*attempt("a1").spans, *attempt("b1", turns=(guess,), reward=0.0, begins_s=60).spans])
    await take_step(["a1", "b1"])
    return json.loads("\n".join(explain(*arguments, "--json")))


async def test_everything_about_one_rollout(store, take_step, explain, attempt, ask):
    told = await _told(store, take_step, explain, attempt, ask, "r-a1")
    (rollout,) = told["rollouts"]
    assert rollout["headline"] == "rollout r-a1 is trained: step 1, 2 calls, 5 sampled tokens"
    (one,) = rollout["attempts"]
    known = ("attempt_id", "task_id", "group_id", "state", "mode", "step", "reward", "spans", "verdict", "balances")
    assert [one[name] for name in known] == ["a1", "2*3", "g", "succeeded", "train", 1, 1.0, 7, "is trained", True]
    assert one["group_members"] == ["a1", "b1"]
    first, second = one["calls"]
    assert (first["extends"], second["extends"], second["shared_tokens"]) == (None, 1, 6)
    assert (second["prompt_tokens"], second["sampled_tokens"]) == (8, 2)
    assert (second["outcome"], second["reason"], second["credit"]) == ("trained", "sampled", 1.0)
    # Credits are 1, 1 and 0; each of the two tokens has its credit less their mean.
    assert [round(value, 4) for value in second["advantages"]] == [0.3333, 0.3333]
    assert one["ledger"] == [
        {
            "agent": "solver",
            "policy": "math",
            "policy_version": 3,
            "outcome": "trained",
            "reason": "sampled",
            "tokens": 5,
            "calls": 2,
        }
    ]
    assert one["sampled_tokens"] == 5


async def test_several_rollouts_and_the_list(store, take_step, explain, attempt, ask):
    told = await _told(store, take_step, explain, attempt, ask, "r-*")
    assert [rollout["rollout_id"] for rollout in told["rollouts"]] == ["r-a1", "r-b1"]
    assert told["older_ones_left_out"] == 0
    listed = json.loads("\n".join(explain("--json")))
    assert [(row["rollout_id"], row["step"]) for row in listed["rollouts"]] == [("r-b1", 1), ("r-a1", 1)]


async def test_findings_say_whether_they_block(store, explain, attempt):
    await store.append(attempt("a1").spans)
    (rollout,) = json.loads("\n".join(explain("r-a1", "--json")))["rollouts"]
    (finding,) = rollout["attempts"][0]["findings"]
    assert (finding["name"], finding["blocks"]) == ("group of one", True)
    assert rollout["attempts"][0]["step"] is None


async def test_what_had_no_choice_and_what_was_cut_is_apart_in_the_ledger(
    store, take_step, explain, attempt, ask, finish, folder
):
    """Of the first call one token had a choice; of the second, none; of the third, what fits the limit is trained."""
    forced = replace(ask, support=support_of(99, [[20], None, [22]]))
    certain = replace(finish, support=support_of(99, [[40], [41]]))
    long = replace(finish, prompt=(*finish.prompt, 40, 41), response=(60, 61, 62))
    config = (folder / "lightning.toml").read_text().replace("= 64", '= 12\nover_length = "cut"')
    (folder / "lightning.toml").write_text(config)
    await store.append(
        [
            *attempt("a1", turns=(forced, certain, long)).spans,
            *attempt("b1", turns=(replace(ask, response=(50,)),), reward=0.0, begins_s=60).spans,
        ]
    )
    await take_step(["a1", "b1"])
    (rollout,) = json.loads("\n".join(explain("r-a1", "--json", "--html", str(folder / "page.html"))))["rollouts"]
    (told,) = rollout["attempts"]
    told_first = "rollout r-a1 is trained (step 1, 2 of 3 calls, 3 of 8 sampled tokens), but no choice: 1 call"
    assert rollout["headline"].startswith(told_first)
    assert [call["trained_tokens"] for call in told["calls"]] == [1, 0, 2]
    assert {(row["outcome"], row["reason"]): (row["tokens"], row["calls"]) for row in told["ledger"]} == {
        ("trained", "sampled"): (3, 2),
        ("masked", "no_choice"): (4, 2),
        ("dropped", "cut"): (1, 1),
    }
    assert told["balances"]
    page = (folder / "page.html").read_text()
    assert page.count("no_choice: nothing else was left to choose from") == 2
    assert "· cut" in page


async def test_the_state_that_a_call_was_made_in(store, explain, attempt):
    spans = [
        replace(span, attributes={**span.attributes, semconv.STATE: "hall"})
        if span.scope == semconv.GATEWAY_SCOPE
        else span
        for span in attempt("a1").spans
    ]
    await store.append(spans)
    (rollout,) = json.loads("\n".join(explain("r-a1", "--json")))["rollouts"]
    assert {call["state"] for call in rollout["attempts"][0]["calls"]} == {"hall"}
    shown = "\n".join(explain("r-a1"))
    assert "state" in shown
    assert shown.count("hall") == 2

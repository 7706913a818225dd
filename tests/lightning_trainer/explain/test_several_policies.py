"""A rollout of several policies' agents, explained for one of them: the others' part in it is nobody's mistake."""

import json
from dataclasses import replace

import pytest
from lightning_instrumentation import semconv

_OTHER = '\n[[policy]]\nname = "reviewer"\nagents = ["solver-b"]\nmodel = "random:nowhere"\n'


@pytest.fixture
def two(folder):
    """Policies math for solver-a, and reviewer for solver-b."""
    config = folder / "lightning.toml"
    config.write_text(config.read_text().replace('"solver", "checker*"', '"solver-a"') + _OTHER)


def answered_by(policy, spans, version=3):
    """What the gateway recorded of one version is another policy's."""
    return [
        replace(span, attributes={**span.attributes, semconv.POLICY: policy})
        if span.scope == semconv.GATEWAY_SCOPE and span.attributes[semconv.POLICY_VERSION] == version
        else span
        for span in spans
    ]


@pytest.fixture
def both(two, attempt, ask):
    """``both(name, ...)``: the spans of an attempt with a call of solver-a, then one of solver-b."""

    def spans(name, **options):
        reviewed = replace(ask, agent="solver-b", prompt=(1, 2), version=7)
        return answered_by("reviewer", attempt(name, (replace(ask, agent="solver-a"), reviewed), **options).spans, 7)

    return spans


async def test_the_agent_of_another_policy_is_no_misspelled_one(both, store, explain):
    await store.append(both("a1"))
    lines = explain("r-a1", "--policy", "math", columns=120)
    assert not any("agent name" in line for line in lines)


async def test_a_misspelled_agent_is_still_named(two, store, attempt, ask, explain):
    await store.append(attempt("a1", turns=(replace(ask, agent="solver-A"),)).spans)
    assert "its 1 call is by 'solver-A', and policy math claims 'solver-a'" in explain("r-a1", "--policy", "math")[0]


async def test_what_only_another_policy_answered_is_explained_by_its_name(two, store, attempt, ask, explain):
    await store.append(answered_by("reviewer", attempt("a1", turns=(replace(ask, agent="solver-b"),)).spans))
    first = explain("r-a1", "--policy", "math")[0]
    assert "other policy: all that answered here is reviewer, and policy math claims 'solver-a'; --policy rev" in first


async def test_versions_of_another_policy_are_not_mixed_with_ones_own(store, attempt, ask, finish, explain):
    await store.append(answered_by("reviewer", attempt("a1", (ask, replace(finish, version=9))).spans, 9))
    assert not any("mixed versions" in line for line in explain("r-a1"))


async def test_what_was_dropped_for_another_policy_is_still_trained_for_the_one_that_took_it(
    both, store, take_step, explain
):
    await store.enroll("reviewer")
    await store.append([*both("a1"), *both("b1", reward=0.0, begins_s=60)])
    await take_step(["a1", "b1"])
    await store.drop("r-a1", reason="the answer had leaked")
    lines = explain("r-a1", "--policy", "math", columns=120)
    assert lines[0] == "rollout r-a1 is trained: step 1, 1 call, 3 sampled tokens"
    assert "group g (2 attempts)" in lines[2]
    assert "problems" not in lines
    assert "not trained: dropped: attempt a1 was taken out" in explain("r-a1", "--policy", "reviewer")[0]


async def test_without_a_name_each_rollout_is_explained_for_its_own_policy(
    both, store, take_step, attempt, ask, explain
):
    await store.append([*both("a1"), *both("b1", reward=0.0, begins_s=60)])
    await take_step(["a1", "b1"])
    reviewed = attempt("c1", turns=(replace(ask, agent="solver-b"),), group="h", begins_s=90)
    await store.append(answered_by("reviewer", reviewed.spans))
    assert explain("r-a1")[0] == "rollout r-a1 is trained: step 1, 1 call, 3 sampled tokens"
    assert "policy reviewer, no step" in explain("--last", columns=200)[2]
    assert [line.split()[1] for line in explain("r-*")] == ["r-a1", "r-b1", "r-c1"]
    listed = " ".join(explain())
    assert all(name in listed for name in ("r-a1", "r-b1", "r-c1"))
    assert "policy reviewer, no step" in explain("r-a1", "--policy", "reviewer", columns=200)[2]


async def test_a_rollout_of_a_policy_that_was_renamed_does_not_keep_others_from_being_explained(
    folder, store, take_step, attempt, explain
):
    await store.append([*attempt("a1").spans, *attempt("b1", reward=0.0, begins_s=60).spans])
    await take_step(["a1", "b1"])
    await store.append(attempt("c1", group="h", begins_s=90).spans)
    config = folder / "lightning.toml"
    config.write_text(config.read_text().replace('name = "math"', 'name = "sums"'))
    first, _, last = explain("r-*")
    assert first.startswith("rollout r-a1 is not explained: a step of policy 'math' took this rollout, and the")
    assert last.startswith("rollout r-c1 is not trained")
    (told, *_, other) = json.loads("\n".join(explain("r-*", "--json")))["rollouts"]
    assert (told["headline"], told["verdict"], told["attempts"]) == (first, None, [])
    assert other["headline"] == last
    assert "a step of policy 'math' took this rollout" in " ".join(explain("r-a1", expect=2))

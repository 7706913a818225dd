"""Rows of a file as batches: every row once a pass, nothing of a prompt trained, every token accounted for."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.dataset.demonstration_batches import build_demonstrations, rows_of_step
from lightning_trainer.dataset.demonstrations import Demonstration
from lightning_trainer.samples.best_of_n import AVOIDED, IMITATED


def _row(name, prompt, *answers):
    return Demonstration(name, "solver", prompt, answers)


def _call_outcomes(build):
    tokens = Counter()
    for row in build.ledger:
        tokens[f"{row.outcome}/{row.reason}"] += row.tokens
    return dict(tokens)


def test_a_demonstration_token_by_token(make_policy):
    build = build_demonstrations([_row("r1", [1, 2], [3, 4, 5])], make_policy(algorithm="sft"), step=7)
    assert build.batch is not None
    (sample,) = build.batch.samples
    assert (build.batch.policy, build.batch.step) == ("math", 7)
    assert (sample.token_ids, sample.loss_mask) == ((1, 2, 3, 4, 5), (0, 0, 1, 1, 1))
    assert [segment.credit for segment in sample.segments] == [IMITATED]
    assert _call_outcomes(build) == {"trained/demonstrated": 3}


def test_a_pair_is_one_group(make_policy):
    build = build_demonstrations([_row("r1", [1, 2], [3], [4, 5])], make_policy(algorithm="dpo"), step=1)
    assert build.batch is not None
    chosen, rejected = build.batch.samples
    assert chosen.group_id == rejected.group_id == "r1"
    assert [sample.segments[0].credit for sample in (chosen, rejected)] == [IMITATED, AVOIDED]
    assert _call_outcomes(build) == {"trained/preference": 3}


def test_what_does_not_fit_is_left_out_with_its_other_side_or_cut(make_policy):
    rows = [_row("r1", [1] * 6, [3], [4] * 5)]
    dropped = build_demonstrations(rows, make_policy(algorithm="dpo", max_sample_tokens=8), step=1)
    assert dropped.batch is None
    assert _call_outcomes(dropped) == {"dropped/no_pair": 1, "dropped/over_length": 5}
    assert dropped.problems == (
        "1 answers of the stage's data are longer, with their prompts, than max_sample_tokens = 8, and are left out; "
        "raise it, or shorten them",
    )
    cut = build_demonstrations(rows, make_policy(algorithm="dpo", max_sample_tokens=8, over_length="cut"), step=1)
    assert _call_outcomes(cut) == {"trained/preference": 3, "dropped/cut": 3}
    assert cut.batch is not None
    assert [len(sample.token_ids) for sample in cut.batch.samples] == [7, 8]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5), st.integers(0, 3))
def test_every_pass_has_every_row_once(count, batch_size, seed, epoch):
    rows = [_row(f"r{number}", [1], [2]) for number in range(count)]
    per_pass = -(-count // batch_size)
    found = [rows_of_step(rows, epoch * per_pass + number, batch_size, seed) for number in range(per_pass)]
    assert {number for _, number in found} == {epoch}
    names = [row.name for shown, _ in found for row in shown]
    assert sorted(names) == sorted(row.name for row in rows)
    assert max(len(shown) for shown, _ in found) <= batch_size
    assert found[0] == rows_of_step(rows, epoch * per_pass, batch_size, seed), "decided by the step's number alone"


def test_passes_are_in_different_orders():
    rows = [_row(f"r{number}", [1], [2]) for number in range(40)]
    first, second = (rows_of_step(rows, number, 40, seed=0)[0] for number in (0, 1))
    assert first != second


@given(
    st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(1, 9), min_size=2, max_size=2)), min_size=1, max_size=6),
    st.sampled_from(["drop", "cut"]),
)
def test_every_token_is_accounted_for(make_policy, lengths, rule):
    rows = [_row(f"r{n}", [1] * prompt, *([2] * size for size in sizes)) for n, (prompt, sizes) in enumerate(lengths)]
    policy = make_policy(algorithm="dpo", max_sample_tokens=9, over_length=rule)
    build = build_demonstrations(rows, policy, step=1)
    assert sum(_call_outcomes(build).values()) == sum(sum(sizes) for _, sizes in lengths)
    samples = build.batch.samples if build.batch else ()
    assert all(len(sample.token_ids) <= 9 for sample in samples)
    assert Counter(sample.group_id for sample in samples) == {sample.group_id: 2 for sample in samples}

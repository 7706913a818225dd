"""A source's weight falls with its disagreement, by numbers worked out by hand, and a few who collude change little."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.samples.feedback.standing import MOST, Opinion, standings


def test_an_unknown_source_weighs_one():
    (one,) = standings([Opinion("new", "t", 1.0)], {}).values()
    assert (one.weight, one.reliability, one.compared) == (1.0, 0.75, 0.0)


def test_comparisons_with_verified_rewards_by_hand():
    # Right in 6 of 8: (6 + 3) / (8 + 4) = 0.75. Right in all 8: 11/12, log(11)/log(3).
    truth = {f"t{i}": 1.0 for i in range(8)}
    said = [Opinion("mixed", f"t{i}", float(i < 6)) for i in range(8)]
    said += [Opinion("right", f"t{i}", 1.0) for i in range(8)]
    found = standings(said, truth)
    assert found["mixed"].reliability == pytest.approx(9 / 12)
    assert found["mixed"].weight == pytest.approx(1.0)
    assert (found["mixed"].verified, found["mixed"].wrong_verified) == (8, 2)
    assert found["right"].weight == pytest.approx(min(MOST, math.log(11) / math.log(3)))


def test_a_source_that_is_mostly_wrong_weighs_nothing_and_is_never_turned_round():
    truth = {f"t{i}": 1.0 for i in range(10)}
    found = standings([Opinion("liar", f"t{i}", 0.0) for i in range(10)], truth)
    assert found["liar"].weight == 0.0
    assert found["liar"].suspicious


@pytest.mark.long
def test_an_honest_source_is_not_named_in_the_first_minutes_and_attackers_are_soon():
    """40 users of a service, 4 of whom always say the opposite; the others err in a tenth, and are looked at often."""
    attackers = {f"u{number}" for number in range(4)}
    found_late = 0
    for seed in range(10):
        chance, said, verified, named = random.Random(seed), [], {}, set()
        for number in range(240):
            target, right = f"t{number}", float(chance.random() < 0.1)
            if chance.random() < 0.1:
                verified[target] = right
            for source in chance.sample([f"u{user}" for user in range(40)], 3):
                wrong = source in attackers or chance.random() < 0.1
                said.append(Opinion(source, target, 1 - right if wrong else right))
            if number % 8 == 7:
                named |= {one.source for one in standings(said, verified).values() if one.suspicious}
        assert named <= attackers, f"seed {seed}: honest users were named"
        found_late += len(attackers - named)
    assert found_late <= 4, "of 40 attackers, after 240 answers"


def test_a_trusted_source_weighs_one_whatever_it_says():
    truth = {f"t{i}": 1.0 for i in range(10)}
    found = standings([Opinion("crm", f"t{i}", 0.0) for i in range(10)], truth, trusted={"crm"})
    assert (found["crm"].weight, found["crm"].suspicious) == (1.0, False)


def test_without_verified_rewards_the_odd_one_out_loses_weight():
    said = [Opinion(who, f"t{i}", 0.0 if who == "odd" else 1.0) for i in range(20) for who in ("a", "b", "c", "odd")]
    found = standings(said, {})
    assert found["odd"].weight < 0.25 < 1.0 < found["a"].weight


@given(
    st.lists(
        st.builds(
            Opinion, st.sampled_from("abc"), st.sampled_from(["t", "u", "v"]), st.floats(0, 1, allow_subnormal=False)
        ),
        unique_by=lambda one: (one.source, one.target),
    ),
    st.dictionaries(st.sampled_from(["t", "u"]), st.floats(0, 1, allow_subnormal=False)),
)
def test_weights_are_bounded_and_do_not_depend_on_order(opinions, verified):
    found = standings(opinions, verified)
    again = standings(list(reversed(opinions)), verified)
    for source, one in found.items():
        assert 0.0 <= one.weight <= MOST
        assert one.weight == pytest.approx(again[source].weight, abs=1e-6)


def test_a_tenth_of_the_sources_that_collude_move_the_sum_little_and_are_named():
    """200 sources, 20 of which praise one wrong kind of answer and are honest about the others."""
    random.seed(3)
    colluding = {f"s{i}" for i in range(20)}
    said, truth, verified = [], {}, {}
    for t in range(400):
        target, wrong_kind = f"t{t}", t % 4 == 0
        truth[target] = 0.0 if wrong_kind else float(random.random() < 0.6)
        if t % 10 == 0:
            verified[target] = truth[target]
        for i in random.sample(range(200), 5):
            source = f"s{i}"
            honest = truth[target] if random.random() < 0.85 else 1 - truth[target]
            said.append(Opinion(source, target, 1.0 if source in colluding and wrong_kind else honest))
    found = standings(said, verified)

    def error(weight):
        total = 0.0
        for target, right in truth.items():
            of = [(one.value, weight(one.source)) for one in said if one.target == target]
            total += abs(sum(v * w for v, w in of) / sum(w for _, w in of) - right)
        return total / len(truth)

    plain, weighed = error(lambda _: 1.0), error(lambda source: found[source].weight + 1e-9)
    assert weighed < plain
    worst = sorted(found, key=lambda source: found[source].weight)[:20]
    assert len(colluding & set(worst)) >= 10

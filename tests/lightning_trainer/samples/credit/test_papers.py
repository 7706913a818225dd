"""GiGPO and bi-level GAE are their papers' definitions also where states come back, at once or later.

The agents keep no history: the prompt is what the environment shows, one of three states, and an action may leave it as
it was. 200 random inputs each.
"""

import random

import pytest

from lightning_trainer.samples.batches import build_batch


def play(seed, make_call, make_attempt, make_evaluation):
    """Attempts of 1 to 6 steps: by attempt the states and the rewards, the latter with the outcome on the last."""
    draw = random.Random(seed)
    calls, evaluations, tasks = [], [], {}
    for number in range(draw.randint(2, 4)):
        attempt_id = f"a{number}"
        states = [draw.randint(1, 3) for _ in range(draw.randint(1, 6))]
        rewards = [draw.choice((0.0, 0.5, -0.25)) for _ in states]
        outcome = draw.choice((0.0, 1.0))
        for t, (state, reward) in enumerate(zip(states, rewards, strict=True)):
            name, response = f"{attempt_id}.{t}", draw.choices((7, 8, 9), k=draw.randint(1, 3))
            calls.append(make_call(name, (0, state), response, start=10 * t, attempt_id=attempt_id))
            evaluations.append(make_evaluation(reward, None, span_id=name))
        evaluations.append(make_evaluation(outcome, attempt_id))
        rewards[-1] += outcome
        tasks[attempt_id] = (states, rewards)
    return calls, [make_attempt(name) for name in tasks], evaluations, tasks


@pytest.fixture
def built(make_call, make_attempt, make_evaluation, make_policy):
    def built(seed, credit, samples="merged"):
        calls, attempts, evaluations, tasks = play(seed, make_call, make_attempt, make_evaluation)
        policy = make_policy(credit=credit, samples=samples, algorithm={"drop_zero_variance_groups": False})
        return build_batch(calls, attempts, evaluations, policy, 1).batch, tasks

    return built


def f_norm(values, by_std):
    if not by_std or len(values) < 2:
        return 1.0
    mean = sum(values) / len(values)
    return (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5 + 1e-6


def gigpo(tasks, gamma, omega, by_std):
    """Feng et al., arXiv 2505.10978. R_i is the total return, G_t the discounted return of step t (5); the step-level
    group of an anchor state holds every step of every trajectory that was in it (6), repeats within one included."""
    totals = [sum(rewards) for _, rewards in tasks.values()]
    found, groups = {}, {}
    for name, (states, rewards) in tasks.items():
        for t, state in enumerate(states):
            value = sum(gamma ** (k - t) * rewards[k] for k in range(t, len(rewards)))
            groups.setdefault(state, []).append((f"{name}.{t}/0", value))
    for name, (states, rewards) in tasks.items():
        episode = (sum(rewards) - sum(totals) / len(totals)) / f_norm(totals, by_std)  # (3)
        for t, state in enumerate(states):
            values = [value for _, value in groups[state]]
            own = dict(groups[state])[f"{name}.{t}/0"]
            step = (own - sum(values) / len(values)) / f_norm(values, by_std)  # (7)
            found[f"{name}.{t}/0"] = episode + omega * step  # (8)
    return found


@pytest.mark.parametrize("by_std", [True, False])
@pytest.mark.parametrize("samples", ["merged", "tree"])
def test_gigpo_is_the_papers_where_states_come_back(samples, by_std, built):
    for seed in range(200):
        credit = {"scheme": "gigpo", "gamma": 0.9, "omega": 0.5, "normalize_by_std": by_std}
        batch, tasks = built(seed, credit, samples)
        expected = gigpo(tasks, 0.9, 0.5, by_std)
        found = {s.transition_id: s.credit for sample in batch.samples for s in sample.segments}
        assert found == pytest.approx(expected, abs=1e-9, rel=0), seed


def bilevel(rewards, values, gamma_turn, lam_turn, gamma_token, lam_token):
    """VAGEN, arXiv 2510.16907; RAGEN's code, arXiv 2504.20073, with one lambda for both: all tokens of a trajectory in
    a row, first the last ones of the turns from the end, then each turn's tokens from its last one."""
    ends, flat = [], []
    for own in values:
        flat += own
        ends.append(len(flat) - 1)
    advantages = [0.0] * len(flat)
    last = 0.0
    for turn in reversed(range(len(ends))):
        following = flat[ends[turn + 1]] if turn + 1 < len(ends) else 0.0
        last = rewards[turn] + gamma_turn * following - flat[ends[turn]] + gamma_turn * lam_turn * last
        advantages[ends[turn]] = last
    for place in reversed(range(len(flat))):
        if place not in ends:
            delta = gamma_token * flat[place + 1] - flat[place]
            advantages[place] = delta + gamma_token * lam_token * advantages[place + 1]
    return advantages


@pytest.mark.verl
@pytest.mark.parametrize("samples", ["merged", "tree"])
def test_bilevel_gae_is_the_papers_where_states_come_back(samples, built):
    from lightning_trainer.config.policies.credit import GaeBilevelCredit
    from lightning_trainer.training.update.estimation.critic_schemes import value_estimate

    scheme = GaeBilevelCredit(gamma_turn=0.9, lam_turn=0.8, gamma_token=0.95, lam_token=0.7)
    for seed in range(200):
        batch, tasks = built(seed, scheme.model_dump(), samples)
        draw = random.Random(seed)
        critic = {s.sample_id: [draw.uniform(-1, 1) for _ in s.token_ids] for s in batch.samples}
        estimate = value_estimate(batch.samples, critic, None, scheme)
        place = {s.transition_id: (one.sample_id, slice(s.start, s.end)) for one in batch.samples for s in one.segments}
        for name, (states, rewards) in tasks.items():
            turns = [place[f"{name}.{t}/0"] for t in range(len(states))]
            values = [critic[sample][run] for sample, run in turns]
            found = [one for sample, run in turns for one in estimate.advantages[sample][run]]
            assert found == pytest.approx(bilevel(rewards, values, 0.9, 0.8, 0.95, 0.7), abs=1e-9, rel=0), seed

"""Every scheme over random span graphs, against a slow and obvious implementation of its formula.

Drops of every kind, forks, retries, states that come back, side calls, parallel calls, several agents, rewards of
calls, agents and attempts, ``merged`` and ``tree``. 60 graphs a scheme and form; 1,000 with ``-m slow``.
"""

import importlib.util
import random
from pathlib import Path

import pytest

from lightning_trainer.config.policies.credit import CREDIT_SETTINGS
from lightning_trainer.samples.batches import build_batch
from lightning_trainer.types import Fidelity

_spec = importlib.util.spec_from_file_location("slow_credit", Path(__file__).parents[1] / "slow_credit.py")
assert _spec is not None
assert _spec.loader is not None
slow = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(slow)

FORMS = ("merged", "tree")
MAX_TOKENS = 60
FEW, MANY = 60, 1000
DROPS = (
    {"behavior_logprobs": None},
    {"complete": False},
    {"policy_version": None},
    {"policy": "another"},
    {"policy_version": -1},
    {"response_ids": (9,) * 70, "behavior_logprobs": (-1.0,) * 70},
    {"prompt_ids": (), "response_ids": (), "behavior_logprobs": None, "fidelity": Fidelity.TEXT_ONLY},
)
VALUE_SCHEMES = [name for name, settings in CREDIT_SETTINGS.items() if settings.needs_values]


class World:
    """One group: calls with their place in the span tree, and the rewards, all drawn from one number."""

    def __init__(self, seed, scheme, make_call, make_attempt):
        self.random = random.Random(seed)
        draw = self.random
        # Drawn apart, so that another scheme's settings do not change this one's graphs.
        self.settings = {"scheme": scheme, **_settings(scheme, random.Random(f"settings {seed}"))}
        self.agents = ["solver", "critic", "scout"][: draw.randint(1, 3)]
        self.attempts = [make_attempt(f"a{number}") for number in range(draw.randint(2, 4))]
        self.calls, self.parents = [], {}
        self.rewards, self.own, self.outcome = {}, {}, {}
        kinds = draw.choice([("steps",), ("own",), ("outcome",), ("steps", "outcome"), ("steps", "own", "outcome")])
        unused = CREDIT_SETTINGS[scheme].model_validate(self.settings).unused
        if "calls" in unused and "outcome" not in kinds and "own" not in kinds:
            kinds = ("outcome", *kinds)
        if scheme == "steps":
            kinds = ("steps", *kinds)
        self.kinds = set(kinds)
        for attempt in self.attempts:
            self._play(attempt.attempt_id, make_call)
        for call in self.calls:
            gap = bool(self._reason(call))
            if "steps" in kinds and not (gap and draw.random() < 0.5) and draw.random() < 0.97:
                self.rewards[call.call_id] = draw.choice((0.0, 0.25, 1.0, -0.5))
        for attempt in self.attempts:
            if "outcome" in kinds and draw.random() < 0.95:
                self.outcome[attempt.attempt_id] = draw.choice((0.0, 1.0, 0.5))
            if "own" in kinds:
                self.own |= {(attempt.attempt_id, agent): draw.choice((0.0, 2.0, -1.0)) for agent in self.agents}

    def _play(self, attempt_id, make_call):
        draw, now, paths = self.random, 0, []
        serial, nested, keeps_history = draw.random() < 0.7, draw.random() < 0.5, draw.random() < 0.6
        for number in range(draw.randint(1, 8)):
            agent, name = draw.choice(self.agents), f"{attempt_id}.{number}"
            move = draw.random()
            own = [path for who, path in paths if who == agent]
            if keeps_history and paths and move < 0.5:
                prompt = (
                    *draw.choice(own or [path for _, path in paths]),
                    *draw.choices((50, 51), k=draw.randint(0, 2)),
                )
            elif self.calls and move < 0.65:
                prompt = self.calls[-1].prompt_ids or (1,)  # again, at once
            else:
                prompt = (1, draw.randint(2, 4))  # one of three states
            response = tuple(draw.choices(range(10, 13), k=draw.randint(1, 3)))
            begins = now if serial else max(0, now - draw.randint(0, 6))
            now = max(now, begins + draw.randint(1, 4))
            changes = {
                "end_ns": max(now, begins + 1),
                "agent": agent,
                "attempt_id": attempt_id,
                "behavior_logprobs": (-0.5,) * len(response),
                "parent_span_id": f"{attempt_id}/{agent}" if nested else None,
                "state": draw.choice((None, None, "hall", "kitchen")),
            }
            if draw.random() < 0.2:
                changes |= draw.choice(DROPS)
            fields = {"prompt_ids": prompt, "response_ids": response, **changes}
            call = make_call(name, start=begins, **fields)
            self.calls.append(call)
            if nested:
                self.parents[name] = f"{attempt_id}/{agent}"
            if call.prompt_ids:
                paths.append((agent, slow.path(call)[:40]))
            now += draw.choice((0, 1))

    def _reason(self, call):
        """Whether it cannot be trained, whatever it earned; that it is too long is judged later."""
        return (
            call.behavior_logprobs is None
            or not call.complete
            or call.policy_version in (None, -1)
            or call.policy == "another"
        )

    def build(self, form, make_evaluation, make_policy):
        evaluations = [make_evaluation(value, None, span_id=name) for name, value in self.rewards.items()]
        evaluations += [make_evaluation(value, name) for name, value in self.outcome.items()]
        evaluations += [make_evaluation(value, name, agent=agent) for (name, agent), value in self.own.items()]
        policy = make_policy(
            agents=tuple(self.agents),
            credit=self.settings,
            samples=form,
            max_sample_tokens=MAX_TOKENS,
            algorithm={"drop_zero_variance_groups": False},
        )
        return build_batch(self.calls, self.attempts, evaluations, policy, 1, self.parents)

    # -- the graph, by the slow rules ----------------------------------------------------------------------------------

    def graphs(self):
        """By attempt and agent."""
        found = {}
        for attempt in self.attempts:
            for agent in self.agents:
                calls = [c for c in self.calls if (c.attempt_id, c.agent) == (attempt.attempt_id, agent)]
                own = slow.steps(calls)
                if not own:
                    continue
                trainable = {call.call_id for call in own if not self._reason(call)}
                above = slow.parents(own, trainable)
                names = slow.order(own, above)
                found[attempt.attempt_id, agent] = slow.Graph(names, above, {}, None)
        for (attempt_id, agent), graph in found.items():
            graph.rewards = {name: self._step(name, self._kinds(agent, found)) for name in graph.names}
            graph.end = self._end(attempt_id, agent, self._kinds(agent, found))
        return found

    def _kinds(self, agent, graphs):
        names = [name for (_, who), graph in graphs.items() if who == agent for name in graph.names]
        attempts = [attempt_id for attempt_id, who in graphs if who == agent]
        return {
            *(["steps"] if any(name in self.rewards for name in names) else []),
            *(["own"] if any((attempt_id, agent) in self.own for attempt_id in attempts) else []),
            *(["outcome"] if any(attempt_id in self.outcome for attempt_id in attempts) else []),
        }

    def _step(self, name, kinds):
        if "steps" not in kinds:
            return 0.0
        gap = self._reason(self.call(name))
        return self.rewards.get(name, 0.0 if gap else None)

    def outcome_of(self, attempt_id, kinds):
        return self.outcome.get(attempt_id) if "outcome" in kinds else 0.0

    def own_of(self, attempt_id, agent, kinds):
        return self.own.get((attempt_id, agent)) if "own" in kinds else 0.0

    def _end(self, attempt_id, agent, kinds):
        return slow.add(self.outcome_of(attempt_id, kinds), self.own_of(attempt_id, agent, kinds))

    def call(self, name):
        return next(call for call in self.calls if call.call_id == name)


def _settings(scheme, draw):
    gamma = draw.choice((0.5, 0.9, 1.0))
    return {
        "discounted": {"gamma": gamma},
        "agent_return": {"gamma": gamma, "team_weight": draw.choice((0.0, 0.5))},
        "hierarchical": {"agent_weights": {"crit*": 3.0}},
        "causal": {"gamma": gamma},
        "gigpo": {
            "gamma": gamma,
            "omega": draw.choice((0.5, 1.0)),
            "normalize_by_std": draw.random() < 0.5,
            "state": draw.choice(("prompt", "observation")),
        },
        "gae_turns": {"gamma": gamma, "lam": draw.choice((0.5, 1.0))},
        "gae_tokens": {"gamma": gamma, "lam": draw.choice((0.5, 1.0))},
        "gae_bilevel": {
            "gamma_turn": gamma,
            "lam_turn": 0.9,
            "gamma_token": 0.95,
            "lam_token": draw.choice((0.5, 1.0)),
        },
    }.get(scheme, {})


def expected_credits(world):
    """By name; None where a reward that is needed is missing."""
    scheme, graphs = world.settings["scheme"], world.graphs()
    found = {}
    for (attempt_id, agent), graph in graphs.items():
        kinds = world._kinds(agent, graphs)
        team = [own for (other, _), own in graphs.items() if other == attempt_id]
        outcome, own = world.outcome_of(attempt_id, kinds), world.own_of(attempt_id, agent, kinds)
        end = bool(kinds & {"own", "outcome"})
        count, total = len(graph.names), sum(len(one.names) for one in team)
        for name in graph.names:
            reward = graph.rewards[name]
            match scheme:
                case "terminal":
                    found[name] = slow.add(outcome, own) if end else None
                case "equal_shares":
                    parts = [None if v is None else v / n for v, n in ((outcome, total), (own, count))]
                    found[name] = slow.add(*parts) if end else None
                case "steps":
                    found[name] = reward if "steps" in kinds else None
                case "hierarchical":
                    weights = {one: 3.0 if one == "critic" else 1.0 for other, one in graphs if other == attempt_id}
                    part = None if outcome is None else outcome * weights[agent] / sum(weights.values())
                    whole = slow.add(part, own)
                    found[name] = slow.add(None if whole is None else whole / count, reward) if kinds else None
        if scheme == "discounted":
            found |= slow.returns(graph, world.settings["gamma"]) if kinds else dict.fromkeys(graph.names)
        if scheme == "agent_return":
            weight = world.settings["team_weight"]
            team_part = 0.0 if weight == 0 else None if outcome is None else weight * outcome
            graph.end = slow.add(own, team_part)
            given = "steps" in kinds or "own" in kinds or ("outcome" in kinds and weight > 0)
            found |= slow.returns(graph, world.settings["gamma"]) if given else dict.fromkeys(graph.names)
    if scheme == "causal":
        found = _expected_causal(world, graphs)
    if scheme == "magrpo":
        found = _expected_joint(world, graphs)
    if scheme == "gigpo":
        found = _expected_gigpo(world, graphs)
    return found


def _expected_causal(world, graphs):
    found = {}
    any_reward = any(world._kinds(agent, graphs) for _, agent in graphs)
    for attempt in world.attempts:
        own = {agent: graph for (attempt_id, agent), graph in graphs.items() if attempt_id == attempt.attempt_id}
        if not own:
            continue
        calls = [call for call in world.calls if call.attempt_id == attempt.attempt_id]
        inside, spans = {"": []}, {}
        for call in calls:
            top = world.parents.get(call.span_id)
            if top is not None and top not in spans:
                spans[top] = top
                inside[top] = []
                inside[""].append(top)
            spans[f"span {call.span_id}"] = call.span_id
            inside[f"span {call.span_id}"] = [call.call_id]
            inside[top or ""].append(f"span {call.span_id}")
        above = {name: graph.above[name] for graph in own.values() for name in graph.names}
        starts = {call.call_id: call.start_ns for call in calls}
        ends = {call.call_id: call.end_ns for call in calls}
        causes = slow.what_led_to_what(inside, spans, starts, ends, above)
        rewards = {name: graph.rewards[name] for graph in own.values() for name in graph.names}
        led = {cause for some in causes.values() for cause in some}
        last = [name for name in rewards if name not in led]
        first = min(own)
        outcome = world.outcome_of(attempt.attempt_id, world._kinds(first, graphs))
        for name in last:
            rewards[name] = slow.add(rewards[name], None if outcome is None else outcome / len(last))
        for agent, graph in own.items():
            leaves = [name for name in graph.names if not graph.after(name)]
            part = world.own_of(attempt.attempt_id, agent, world._kinds(agent, graphs))
            for name in leaves:
                rewards[name] = slow.add(rewards[name], None if part is None else part / len(leaves))
        values = slow.causal(list(rewards), causes, rewards, world.settings["gamma"])
        found |= values if any_reward else dict.fromkeys(values)
    return found


def _expected_joint(world, graphs):
    found = {}
    outcomes = any("outcome" in world._kinds(agent, graphs) for _, agent in graphs)
    any_reward = any(world._kinds(agent, graphs) for _, agent in graphs)
    for attempt_id, agent in graphs:
        team = {who: graph for (other, who), graph in graphs.items() if other == attempt_id}
        joint = [world.outcome.get(attempt_id) if outcomes else 0.0]
        joint += [world.own_of(attempt_id, who, world._kinds(who, graphs)) for who in team]
        graph = team[agent]
        for name in graph.names:
            later = [
                one.rewards[other]
                for one in team.values()
                for other in one.names
                if one.depth(other) >= graph.depth(name)
            ]
            found[name] = slow.add(*joint, *later) if any_reward else None
    return found


def _expected_gigpo(world, graphs):
    found = {}
    for agent in world.agents:
        episodes, steps = {}, []
        own = {attempt_id: graph for (attempt_id, who), graph in graphs.items() if who == agent}
        kinds = world._kinds(agent, graphs)
        for attempt_id, graph in own.items():
            found |= dict.fromkeys(graph.names)
            episode = slow.add(*graph.rewards.values(), graph.end)
            if episode is None or not kinds:
                continue
            episodes[attempt_id] = episode
            values = slow.returns(graph, world.settings["gamma"])
            for name in graph.names:
                call, parent = world.call(name), graph.above[name]
                anchor = tuple(call.prompt_ids)
                if world.settings["state"] == "observation" and parent is not None:
                    before = slow.path(world.call(parent))
                    anchor = anchor[len(before) :] if anchor[: len(before)] == before else anchor
                anchor = ("named", call.state) if call.state else anchor if call.prompt_ids else ("unknown", name)
                steps.append((attempt_id, name, anchor, values[name]))
        found |= slow.gigpo(episodes, steps, world.settings["omega"], world.settings["normalize_by_std"])
    return found


def _trainable(world, expected):
    return {
        name
        for name, value in expected.items()
        if value is not None and not world._reason(world.call(name)) and len(slow.path(world.call(name))) <= MAX_TOKENS
    }


def check_credits(seeds, scheme, form, factories):
    make_call, make_attempt, make_evaluation, make_policy = factories
    compared = 0
    for seed in seeds:
        world = World(seed, scheme, make_call, make_attempt)
        batch = world.build(form, make_evaluation, make_policy).batch
        expected = expected_credits(world)
        assert expected, f"{scheme!r} has no slow version of its formula: write one in expected_credits"
        for sample in batch.samples if batch else ():
            for segment in sample.segments:
                assert segment.credit == pytest.approx(expected[segment.transition_id], abs=1e-9, rel=0), seed
                assert segment.transition_id in _trainable(world, expected), seed
                compared += 1
    assert compared > 3 * len(seeds)


@pytest.fixture
def factories(make_call, make_attempt, make_evaluation, make_policy):
    return make_call, make_attempt, make_evaluation, make_policy


SCHEMES = [name for name in CREDIT_SETTINGS if name not in VALUE_SCHEMES]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_is_its_formula(scheme, form, factories):
    check_credits(range(FEW), scheme, form, factories)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_is_its_formula_a_thousand_times(scheme, form, factories):
    check_credits(range(MANY), scheme, form, factories)


def check_values(seeds, scheme, form, factories):
    """With the values of a critic that are drawn at random, one for every sampled token."""
    from lightning_trainer.training.update.estimation.critic_schemes import value_estimate

    make_call, make_attempt, make_evaluation, make_policy = factories
    compared = 0
    for seed in seeds:
        world = World(seed, scheme, make_call, make_attempt)
        build = world.build(form, make_evaluation, make_policy)
        if build.batch is None:
            continue
        samples = build.batch.samples
        values, of_tokens = _critic(world, samples)
        settings = CREDIT_SETTINGS[scheme](**world.settings)
        found = value_estimate(samples, values, None, settings)
        expected = {}
        for graph in world.graphs().values():
            # Where something is missing nothing before it is trained; what comes after is not touched.
            graph.rewards = {n: 0.0 if graph.earned(n) is None else r for n, r in graph.rewards.items()}
            graph.end = graph.end or 0.0
            own = {name: of_tokens.get(name, []) for name in graph.names}
            given = {key: value for key, value in world.settings.items() if key != "scheme"}
            if scheme == "gae_turns":
                first = {name: row[0] if row else None for name, row in own.items()}
                turns = slow.turn_gae(graph, first, **given)
                expected |= {name: [turns[name][1]] * len(row) for name, row in own.items()}
            else:
                expected |= (slow.token_gae if scheme == "gae_tokens" else slow.bilevel_gae)(graph, own, **given)
        for sample in samples:
            for segment in sample.segments:
                row = found.advantages[sample.sample_id][segment.start : segment.end]
                assert row == pytest.approx(expected[segment.transition_id], abs=1e-9, rel=0), seed
                compared += 1
    assert compared > 2 * len(seeds)


def _critic(world, samples):
    values = {sample.sample_id: [9.0] * len(sample.token_ids) for sample in samples}
    of_tokens = {}
    for sample in samples:
        for segment in sample.segments:
            draw = random.Random(segment.transition_id)
            row = [draw.uniform(-1.0, 1.0) for _ in range(segment.end - segment.start)]
            values[sample.sample_id][segment.start : segment.end] = of_tokens[segment.transition_id] = row
    return values, of_tokens


@pytest.mark.verl
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scheme", VALUE_SCHEMES)
def test_a_scheme_with_a_critic_is_its_formula(scheme, form, factories):
    check_values(range(FEW), scheme, form, factories)


@pytest.mark.slow
@pytest.mark.verl
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scheme", VALUE_SCHEMES)
def test_a_scheme_with_a_critic_is_its_formula_a_thousand_times(scheme, form, factories):
    check_values(range(MANY), scheme, form, factories)


def check_estimator(seeds, form, factories):
    """``gae``: the tokens of an agent in an attempt, in the order of sampling, whitened over the batch as verl does."""
    from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
    from lightning_trainer.training.update.estimation.advantages import estimate

    make_call, make_attempt, make_evaluation, make_policy = factories
    compared = 0
    for seed in seeds:
        world = World(seed, "terminal", make_call, make_attempt)
        batch = world.build(form, make_evaluation, make_policy).batch
        if batch is None or sum(sum(sample.loss_mask) for sample in batch.samples) < 3:
            continue
        values, of_tokens = _critic(world, batch.samples)
        algorithm = AlgorithmConfig(gamma=0.9, lam=0.8)
        found = estimate(batch.samples, "gae", algorithm, measured={"values": values})
        expected, credits = {}, expected_credits(world)
        for graph in world.graphs().values():
            row = [(name, value) for name in graph.names for value in of_tokens.get(name, [])]
            advantage = next_value = 0.0
            reward = credits[row[-1][0]] if row else 0.0
            for name, value in reversed(row):
                advantage = reward + 0.9 * next_value - value + 0.9 * 0.8 * advantage
                next_value, reward = value, 0.0
                expected.setdefault(name, []).insert(0, advantage)
        every = [advantage for row in expected.values() for advantage in row]
        mean = sum(every) / (len(every) + 1e-8)
        variance = sum((one - mean) ** 2 for one in every) / (len(every) + 1e-8) * len(every) / (len(every) - 1)
        for sample in batch.samples:
            for segment in sample.segments:
                row = found.advantages[sample.sample_id][segment.start : segment.end]
                whitened = [(one - mean) / (variance + 1e-8) ** 0.5 for one in expected[segment.transition_id]]
                assert row == pytest.approx(whitened, abs=1e-9, rel=0), seed
                compared += 1
    assert compared > 2 * len(seeds)


@pytest.mark.verl
@pytest.mark.parametrize("form", FORMS)
def test_the_estimator_gae_goes_through_a_row_in_the_order_of_sampling(form, factories):
    check_estimator(range(FEW), form, factories)


@pytest.mark.slow
@pytest.mark.verl
@pytest.mark.parametrize("form", FORMS)
def test_the_estimator_gae_a_thousand_times(form, factories):
    check_estimator(range(MANY), form, factories)

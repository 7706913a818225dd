"""What follows what and what it earns, written down slowly: by recursion and comparison of everything with everything.

Nothing of the project is imported. Calls are whatever has the fields of one; the rules are those of docs/credit.md.
"""

from functools import cache
from itertools import pairwise


def path(call):
    return tuple(call.prompt_ids) + tuple(call.response_ids)


def known(call):
    return len(call.prompt_ids) > 0 and len(call.response_ids) > 0


def same(one, other):
    return len(one.prompt_ids) > 0 and (tuple(one.prompt_ids), one.media) == (tuple(other.prompt_ids), other.media)


def steps(calls):
    """Those of one agent in one attempt that count, by time."""
    calls = sorted(calls, key=lambda call: (call.start_ns, call.call_id))
    found = []
    for place, call in enumerate(calls):
        later = calls[place + 1 :]
        between = [other for other in later if not same(call, other) and other.start_ns >= call.end_ns]
        until = calls.index(between[0]) if between else len(calls)
        again = any(same(call, other) for other in calls[place + 1 : until])
        if not call.complete and (again or not call.response_ids):
            continue
        if not known(call) and any(
            known(other) and other.start_ns < call.end_ns and call.start_ns < other.end_ns for other in calls
        ):
            continue
        found.append(call)
    return found


def parents(calls, trainable):
    """What each call follows, by id; ``calls`` are the steps of one agent in one attempt, by time."""
    found = {}
    for call in calls:
        prefixes = [
            other
            for other in calls
            if known(call) and known(other) and path(other) == tuple(call.prompt_ids)[: len(path(other))]
        ]
        alike = call.call_id in trainable
        longest = max(prefixes, key=lambda o: (len(path(o)), (o.call_id in trainable) == alike), default=None)
        if longest is not None and longest.media != call.media[: len(longest.media)]:
            longest = None
        found[call.call_id] = longest
    at_once = len({call.span_id for call in calls}) < len(calls) or any(
        b.start_ns < a.end_ns for a, b in pairwise(calls)
    )
    wrong = any(found[call.call_id] in calls[place:] for place, call in enumerate(calls) if found[call.call_id])
    extended = {call.call_id for call in found.values() if call is not None}
    if not (at_once or wrong):
        for place, call in enumerate(calls[1:], 1):
            begins = place
            while begins > 0 and same(calls[begins - 1], call):
                begins -= 1
            ends = place
            while ends + 1 < len(calls) and same(calls[ends + 1], call):
                ends += 1
            tries = calls[begins : ends + 1]
            if found[call.call_id] is not None:
                unknown = [n for n in range(place) if not known(calls[n])]
                found[call.call_id] = calls[max([calls.index(found[call.call_id]), *unknown])]
            elif begins < place and any(one.call_id in extended for one in tries):
                found[call.call_id] = found[tries[0].call_id]
            else:
                found[call.call_id] = calls[place - 1]
    return {name: None if call is None else call.call_id for name, call in found.items()}


def order(calls, above):
    """Ids by time, but none before the one that it follows."""
    placed = []

    def place(name):
        if name not in placed:
            if above[name] is not None:
                place(above[name])
            placed.append(name)

    for call in calls:
        place(call.call_id)
    return placed


class Graph:
    """One agent in one attempt: names in order, what each follows, what each earned, what is met at the end."""

    def __init__(self, names, above, rewards, end):
        self.names, self.above, self.rewards, self.end = names, above, rewards, end

    def after(self, name):
        return [other for other in self.names if self.above[other] == name]

    def earned(self, name):
        """With the end, where it is met; None where something of it is missing."""
        return self.rewards[name] if self.after(name) else add(self.rewards[name], self.end)

    def depth(self, name):
        return 0 if self.above[name] is None else 1 + self.depth(self.above[name])


def add(*parts):
    return None if any(part is None for part in parts) else sum(parts)


def returns(graph, gamma):
    """G_t = r_t + gamma * mean(G_c), by name."""

    @cache
    def of(name):
        after = [of(other) for other in graph.after(name)]
        if not after:
            return graph.earned(name)
        mean = add(*after)
        return None if mean is None else add(graph.rewards[name], gamma * mean / len(after))

    return {name: of(name) for name in graph.names}


def causal(nodes, causes, rewards, gamma):
    """G_n = r_n + gamma * sum over the e that n led to of G_e / causes(e)."""

    @cache
    def of(name):
        parts = [rewards[name]]
        for other in nodes:
            if name in causes[other]:
                share = of(other)
                parts.append(None if share is None else gamma * share / len(causes[other]))
        return add(*parts)

    return {name: of(name) for name in nodes}


def what_led_to_what(inside, spans, starts, ends, above):
    """The edges of causal credit: ``inside[span]`` holds names of calls and of spans; "" is the attempt."""
    causes, followed = {}, set()

    def hull(item):
        if item not in spans:
            return starts[item], ends[item]
        inner = [hull(one) for one in inside[item]]
        return min(start for start, _ in inner), max(end for _, end in inner)

    def walk(span, before):
        stages, until, last = [], 0, None
        for item in sorted(inside[span], key=lambda one: (*hull(one), spans.get(one, one))):
            if stages and (hull(item)[0] < until or hull(item) == last):
                stages[-1].append(item)
            else:
                stages.append([item])
            until, last = max(until, hull(item)[1]), hull(item)
        for stage in stages:
            new = []
            for item in stage:
                end = walk(item, before) if item in spans else meet(item, before)
                if end is not before:
                    new.append(end)
            if len(new) == 1:
                before = new[0]
            elif new:
                names = [name for one in new for name in one if name not in followed]
                before = sorted(set(names))
        return before

    def meet(name, before):
        if name not in above:
            return before
        parent, done = above[name], max((ends[one] for one in before), default=0)
        own = parent in causes and (parent in before or starts[parent] >= done)
        causes[name] = [parent] if own else list(before)
        followed.update(causes[name])
        return [name]

    walk("", [])
    return causes


def spread(values):
    mean = sum(values) / len(values)
    return (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5


def better_than(value, peers, by_std):
    """(x - mean) / F_norm, 0 for one alone."""
    if len(peers) < 2:
        return 0.0
    lead = value - sum(peers) / len(peers)
    return lead / (spread(peers) + 1e-6) if by_std else lead


def gigpo(episodes, steps_of, omega, by_std):
    """arXiv 2505.10978, equations 3 and 6 to 8. ``episodes``: by attempt; ``steps_of``: (attempt, name, state, G)."""
    found = {}
    for attempt, name, state, value in steps_of:
        group = [other for _, _, anchor, other in steps_of if anchor == state]  # (6): all steps of all trajectories
        episode = better_than(episodes[attempt], list(episodes.values()), by_std)
        found[name] = episode + omega * better_than(value, group, by_std)
    return found


def turn_gae(graph, values, gamma, lam):
    """A_t = delta_t + gamma * lam * mean(A_c); ``values``: None of a turn that no critic saw. By name (V, A)."""

    @cache
    def of(name):
        after = [of(other) for other in graph.after(name)]
        next_value = sum(value for value, _ in after) / len(after) if after else 0.0
        next_advantage = sum(advantage for _, advantage in after) / len(after) if after else 0.0
        target = graph.earned(name) + gamma * next_value
        value = target if values[name] is None else values[name]
        return value, target - value + gamma * lam * next_advantage

    return {name: of(name) for name in graph.names}


def token_gae(graph, values, gamma, lam):
    """Every trained token a time step; by name the advantages. A turn without values is none."""

    @cache
    def of(name):
        """(V of its first token or of what stands for it, A likewise, advantages)."""
        after = [of(other) for other in graph.after(name)]
        value = sum(one[0] for one in after) / len(after) if after else 0.0
        advantage = sum(one[1] for one in after) / len(after) if after else 0.0
        if not values[name]:
            return graph.earned(name) + value, advantage, []
        found = []
        for place in reversed(range(len(values[name]))):
            reward = graph.earned(name) if place == len(values[name]) - 1 else 0.0
            delta = reward + gamma * value - values[name][place]
            value, advantage = values[name][place], delta + gamma * lam * advantage
            found.insert(0, advantage)
        return value, advantage, found

    return {name: of(name)[2] for name in graph.names}


def bilevel_gae(graph, values, gamma_turn, lam_turn, gamma_token, lam_token):
    """VAGEN's and RAGEN's: turns by the value before their last token, then the tokens of each."""
    last = {name: own[-1] if own else None for name, own in values.items()}
    turns = turn_gae(graph, last, gamma_turn, lam_turn)
    found = {}
    for name, own in values.items():
        advantages = [turns[name][1]] * len(own)
        for place in reversed(range(len(own) - 1)):
            delta = gamma_token * own[place + 1] - own[place]
            advantages[place] = delta + gamma_token * lam_token * advantages[place + 1]
        found[name] = advantages
    return found

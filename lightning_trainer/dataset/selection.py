"""Which examples are imitated (supervised fine-tuning) and which are compared (preference learning, DPO).

An edited answer, what someone wanted an agent to say, is a demonstration and the better answer of a pair. It is text,
so it has no token ids, and neither has its pair, even if those of the answer that it replaces are known.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from lightning_trainer.config import PolicyConfig
from lightning_trainer.dataset.examples import Example, ExampleLedger, Needs, candidates
from lightning_trainer.dataset.reading import Recording
from lightning_trainer.samples.feedback.entries import Entry
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Call, Fidelity, LedgerRow


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Examples to imitate, oldest first."""

    examples: tuple[Example, ...]
    ledger: tuple[LedgerRow, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers of one agent to the same prompt; the chosen one is better."""

    chosen: Example
    rejected: Example


@dataclass(frozen=True, slots=True)
class Preferences:
    """Preference pairs, one per prompt."""

    pairs: tuple[Pair, ...]
    ledger: tuple[LedgerRow, ...]
    problems: tuple[str, ...]


def demonstrations(
    recording: Recording, policy: PolicyConfig, needs: Needs = Needs.EITHER, *, min_reward: float | None = None
) -> Demonstrations:
    """Return the calls of the policy's agents that are worth imitating, with edited answers in place of the originals.

    Args:
        recording: read with its words.
        needs: what the output format requires of a call.
        min_reward: the least reward; None: rewards are ignored.
    """
    ledger = ExampleLedger()
    found, problems = candidates(recording, policy, ledger, needs, failed_too=False)
    kept: list[Example] = []
    edits = _edits(recording, policy, needs, [call for call, _ in found])
    without_words = 0
    for call, example in found:
        if call.call_id in edits.of_calls:
            better = edited(example, edits.of_calls[call.call_id])
            if better is not None:
                ledger.drop(call, Reason.EDITED)
                kept.append(better)
                continue
            without_words += 1
        if min_reward is not None and (example.reward is None or example.reward < min_reward):
            # A missing reward is missing: whether the call is good enough is not known.
            ledger.drop(call, Reason.NO_REWARD if example.reward is None else Reason.LOW_REWARD)
        else:
            ledger.keep(call, example, Reason.DEMONSTRATED)
            kept.append(example)
    said = edits.problems(without_words)
    return Demonstrations(tuple(kept), ledger.rows(), (*recording.problems, *problems, *said))


def preferences(recording: Recording, policy: PolicyConfig, needs: Needs = Needs.EITHER) -> Preferences:
    """Return the best and the worst answer to every prompt that was answered more than once, if they and their rewards
    differ; and every edited answer with its edit.

    Prompts are the same if they are equal to the last token, in attempts of one group: for an agent of several turns,
    these are usually the first ones.

    Args:
        recording: read with its words.
        needs: what the output format requires of a call.
    """
    ledger = ExampleLedger()
    found, problems = candidates(recording, policy, ledger, needs, failed_too=True)
    answers: dict[tuple[str | None, str, Hashable], list[tuple[float, Call, Example]]] = {}
    pairs: list[Pair] = []
    edits = _edits(recording, policy, needs, [call for call, _ in found])
    without_words = 0
    for call, example in found:
        if call.call_id in edits.of_calls:
            better = edited(example, edits.of_calls[call.call_id]) if example.answer is not None else None
            if better is not None:
                pairs.append(Pair(chosen=better, rejected=in_words(example)))
                ledger.keep(call, example, Reason.PREFERENCE)
                continue
            without_words += 1
        if example.reward is None:
            ledger.drop(call, Reason.NO_REWARD)
        else:
            key = (example.group_id, example.agent, example.prompt_key)
            answers.setdefault(key, []).append((example.reward, call, example))
    for of_prompt in answers.values():
        best = max(of_prompt, key=lambda scored: scored[0])
        worst = min(of_prompt, key=lambda scored: scored[0])
        # Where every attempt began alike and ended differently, there is nothing to prefer here.
        differ = best[0] > worst[0] and not best[2].says_the_same(worst[2])
        if differ:
            pairs.append(Pair(chosen=best[2], rejected=worst[2]))
        for scored in of_prompt:
            if differ and (scored is best or scored is worst):
                ledger.keep(scored[1], scored[2], Reason.PREFERENCE)
            else:
                ledger.drop(scored[1], Reason.NO_PAIR)
    said = edits.problems(without_words)
    return Preferences(tuple(pairs), ledger.rows(), (*recording.problems, *problems, *said))


@dataclass(frozen=True, slots=True)
class _Edits:
    of_calls: Mapping[str, str]
    """Edits that can be used, by call id."""
    left_out: int
    """How many were left out because they have no ids."""

    def problems(self, without_words: int) -> tuple[str, ...]:
        """Say what became of edited answers that are not examples."""
        said = []
        if self.left_out:
            said.append(f"{self.left_out} edited answers have no token ids and are left out; leave --tokens out")
        if without_words:
            said.append(f"{without_words} edited answers are left out: the words of what they answer were not recorded")
        return tuple(said)


def _edits(recording: Recording, policy: PolicyConfig, needs: Needs, calls: Sequence[Call]) -> _Edits:
    found = by_call(recording.edits, calls, policy)
    return _Edits({}, len(found)) if needs is Needs.TOKENS else _Edits(found, 0)


EDITED = "edit"
"""Takes the place of the name of the model that answered."""


def by_call(edits: Sequence[Entry], calls: Sequence[Call], policy: PolicyConfig) -> Mapping[str, str]:
    """Return the newest edit of each call's answer, by call id.

    An edit that does not name a response replaces the last answer that the policy's agents gave in the attempt.
    """
    own = [call for call in sorted(calls, key=attrgetter("start_ns", "call_id")) if policy.claims(call.agent)]
    last: dict[tuple[str, str], Call] = {}
    for call in own:
        for kind, name in (
            ("response", call.response_id),
            ("attempt", call.attempt_id),
            ("trace", call.trace_id),
            ("rollout", call.rollout_id),
        ):
            if name is not None:
                last[kind, name] = call
    found: dict[str, str] = {}
    for entry in edits:
        subject = entry.subject
        named = (
            ("response", subject.response_id),
            ("attempt", subject.attempt_id),
            ("trace", subject.trace_id),
            ("rollout", subject.rollout_id),
        )
        kind, name = next(((kind, name) for kind, name in named if name is not None), ("", ""))
        if (call := last.get((kind, name))) is not None and entry.correction is not None:
            found[call.call_id] = entry.correction
    return found


def edited(example: Example, correction: str) -> Example | None:
    """Return the example with the corrected answer; None if the words of its prompt are not known."""
    if example.prompt is None:
        return None
    return replace(
        in_words(example),
        call_id=f"{example.call_id}#{EDITED}",
        model=EDITED,
        reward=None,
        answer={"role": "assistant", "content": correction},
    )


def in_words(example: Example) -> Example:
    """Return the example without token ids."""
    return replace(example, fidelity=Fidelity.TEXT_ONLY, prompt_ids=(), response_ids=())

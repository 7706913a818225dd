"""The choice of examples to imitate (supervised fine-tuning) and to compare (preference learning, DPO).

An edited answer, which is what someone wanted an agent to say, is a demonstration and the better answer of a pair. It
is text, so neither it nor its pair has token ids, even if those of the answer that it replaces are known.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from lightning_trainer.config import PolicyConfig
from lightning_trainer.dataset.examples import Example, ExampleLedger, Needs, candidates
from lightning_trainer.dataset.reading import Recording
from lightning_trainer.samples.feedback.entries import Entry, Subject
from lightning_trainer.samples.problems import unscored_examples
from lightning_trainer.samples.rewards.reliability import Correction
from lightning_trainer.samples.transitions.deduplication import deduplicate
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
    recording: Recording,
    policy: PolicyConfig,
    needs: Needs = Needs.EITHER,
    *,
    min_reward: float | None = None,
    corrections: Mapping[str, Correction] | None = None,
) -> Demonstrations:
    """Return the calls of the policy's agents that are worth imitating, with edited answers in place of the originals.

    Args:
        recording: read with its words.
        needs: what the output format requires of a call.
        min_reward: the least reward; None: rewards are ignored.
        corrections: corrections for the errors of judges, by the name of the reward.
    """
    ledger = ExampleLedger()
    found, problems = candidates(recording, policy, ledger, needs, failed_too=False, corrections=corrections)
    kept: list[Example] = []
    edits = _edits(recording, policy, needs, [call for call, _ in found])
    without_words = without_reward = 0
    for call, example in found:
        if call.call_id in edits.of_calls:
            better = edited(example, edits.of_calls[call.call_id])
            if better is not None:
                ledger.drop(call, Reason.EDITED)
                kept.append(better)
                continue
            without_words += 1
        if _cut_off(example, needs):
            ledger.drop(call, Reason.TRUNCATED)
        elif min_reward is not None and (example.reward is None or example.reward < min_reward):
            # A missing reward is not a low one: whether the call is good enough is not known.
            without_reward += example.reward is None
            ledger.drop(call, Reason.NO_REWARD if example.reward is None else Reason.LOW_REWARD)
        else:
            ledger.keep(call, example, Reason.DEMONSTRATED)
            kept.append(example)
    said = (*unscored_examples(without_reward, recording.evaluations, policy), *edits.problems(without_words))
    return Demonstrations(tuple(kept), ledger.rows(), (*recording.problems, *problems, *said))


def preferences(
    recording: Recording,
    policy: PolicyConfig,
    needs: Needs = Needs.EITHER,
    *,
    corrections: Mapping[str, Correction] | None = None,
) -> Preferences:
    """Return the best and the worst answer to every prompt that was answered more than once, if they and their rewards
    differ; and every answer that was edited, with its edit.

    Prompts are the same if they are equal to the last token, in attempts of one group: for an agent with several turns,
    these are usually the prompts of the first turns.

    Args:
        recording: read with its words.
        needs: what the output format requires of a call.
        corrections: as for ``demonstrations``.
    """
    ledger = ExampleLedger()
    found, problems = candidates(recording, policy, ledger, needs, failed_too=True, corrections=corrections)
    answers: dict[tuple[str | None, str, Hashable], list[tuple[float, Call, Example]]] = {}
    pairs: list[Pair] = []
    edits = _edits(recording, policy, needs, [call for call, _ in found])
    without_words = without_reward = 0
    for call, example in found:
        if call.call_id in edits.of_calls:
            better = edited(example, edits.of_calls[call.call_id]) if example.answer is not None else None
            if better is not None:
                pairs.append(Pair(chosen=better, rejected=in_words(example)))
                ledger.keep(call, example, Reason.PREFERENCE)
                continue
            without_words += 1
        if example.reward is None:
            without_reward += 1
            ledger.drop(call, Reason.NO_REWARD)
        else:
            key = (example.group_id, example.agent, example.prompt_key)
            answers.setdefault(key, []).append((example.reward, call, example))
    for of_prompt in answers.values():
        worst = min(of_prompt, key=lambda scored: scored[0])
        whole = (scored for scored in of_prompt if not _cut_off(scored[2], needs))
        best = max(whole, key=lambda scored: scored[0], default=worst)
        # If the attempts gave the same answer here and only later ended differently, there is nothing to prefer.
        differ = best[0] > worst[0] and not best[2].says_the_same(worst[2], needs)
        if differ:
            pairs.append(Pair(chosen=best[2], rejected=worst[2]))
        for scored in of_prompt:
            if differ and (scored is best or scored is worst):
                ledger.keep(scored[1], scored[2], Reason.PREFERENCE)
            else:
                cut = _cut_off(scored[2], needs)
                ledger.drop(scored[1], Reason.TRUNCATED if cut else Reason.NO_PAIR)
    said = (*unscored_examples(without_reward, recording.evaluations, policy), *edits.problems(without_words))
    return Preferences(tuple(pairs), ledger.rows(), (*recording.problems, *problems, *said))


def _cut_off(example: Example, needs: Needs) -> bool:
    """Whether a token limit ended an answer that is written in words alone: readers close such answers with the end
    token, so a policy that imitates them would learn to stop in the middle of a sentence."""
    return example.truncated and (needs is Needs.WORDS or example.fidelity is Fidelity.TEXT_ONLY)


@dataclass(frozen=True, slots=True)
class _Edits:
    of_calls: Mapping[str, str]
    """Edits that can be used, by call id."""
    without_ids: int
    """How many were left out because they have no ids."""
    without_example: int
    """How many were left out because the answer that they edit is left out."""
    of_others: int
    """How many were left out because another agent gave the answer."""
    of_nothing: int
    """How many were left out because they match no answer, or more than one."""

    def problems(self, without_words: int) -> tuple[str, ...]:
        """Return sentences about the edited answers that are not examples."""
        said = []
        if self.without_ids:
            said.append(f"{self.without_ids} edited answers have no token ids and are left out; leave --tokens out")
        if self.without_example:
            said.append(
                f"{self.without_example} edited answers are left out: what they edit is left out itself, as the ledger "
                "says"
            )
        if self.of_others:
            said.append(f"{self.of_others} edited answers are of other agents and are left out")
        if self.of_nothing:
            said.append(
                f"{self.of_nothing} edited answers are left out: they match no recorded answer, or more than one"
            )
        if without_words:
            said.append(f"{without_words} edited answers are left out: the words of what they answer were not recorded")
        return tuple(said)


def _edits(recording: Recording, policy: PolicyConfig, needs: Needs, calls: Sequence[Call]) -> _Edits:
    """Return the edits.

    Args:
        calls: the calls that can be examples.
    """
    kept = deduplicate(recording.calls).kept
    found, of_nothing = by_call(recording.edits, kept, recording.outer_traces)
    usable = {call.call_id: found[call.call_id] for call in calls if call.call_id in found}
    of_others = sum(call.call_id in found for call in kept if not policy.claims(call.agent))
    without_example = len(found) - len(usable) - of_others
    if needs is Needs.TOKENS:
        return _Edits({}, len(usable), without_example, of_others, of_nothing)
    return _Edits(usable, 0, without_example, of_others, of_nothing)


EDITED = "edit"
"""Replaces the name of the model that answered."""


def by_call(
    edits: Iterable[Entry], calls: Iterable[Call], outer_traces: Mapping[str, Collection[str]]
) -> tuple[Mapping[str, str], int]:
    """Return the newest edit of each call's answer, by call id, and how many edits match no call, or more than one.

    An edit that does not name a response replaces the attempt's last answer, whichever agent gave it. If several calls
    have the response id that an edit names, it replaces the answer in the attempt or rollout that it names; if that
    does not tell which, it replaces none.

    Args:
        edits: oldest first, including entries that take feedback back. Such an entry takes back the score with its
            trace id, source and name, if there is one (a score of Langfuse's); otherwise what its source said under its
            name about the response that it names, or about the whole attempt if it names none.
        calls: all recorded calls of all agents, whether or not they can be examples.
        outer_traces: the attempts that were made in a trace of the program's own, by trace id.
    """
    about: dict[tuple[str, str], list[Call]] = {}
    for call in sorted(calls, key=attrgetter("start_ns", "call_id")):
        for kind in _KINDS:
            if (name := getattr(call, kind)) is not None:
                about.setdefault((kind, name), []).append(call)
    for trace_id, attempts in outer_traces.items():
        within = [call for attempt_id in attempts for call in about.get(("attempt_id", attempt_id), ())]
        about.setdefault(("trace_id", trace_id), within)
    edits = tuple(edits)
    scores = {(entry.trace_id, entry.source, entry.name) for entry in edits if not entry.taken_back}
    said: dict[str, dict[tuple[str, str], Entry]] = {}
    of_nothing: dict[Subject, dict[tuple[str, str], Entry]] = {}
    for entry in edits:
        named, who = _named(entry.subject, about), (entry.source, entry.name)
        if entry.taken_back:
            of_score = (entry.trace_id, *who) in scores
            for of_call in (*(said.get(call.call_id, {}) for call in named), of_nothing.get(entry.subject, {})):
                if who in of_call and (not of_score or of_call[who].trace_id == entry.trace_id):
                    del of_call[who]
        if entry.correction is not None:
            of_call = said.setdefault(named[-1].call_id, {}) if named else of_nothing.setdefault(entry.subject, {})
            of_call.pop(who, None)  # what is said last stands last
            of_call[who] = entry
    newest = {call_id: [*of_call.values()][-1].correction or "" for call_id, of_call in said.items() if of_call}
    return newest, sum(map(len, of_nothing.values()))


_KINDS = ("response_id", "attempt_id", "trace_id", "rollout_id")
"""The kinds of names that feedback can give, the most exact first."""


def _named(subject: Subject, about: Mapping[tuple[str, str], list[Call]]) -> list[Call]:
    """Return the calls of the subject's most exact name, oldest first; none if that is a response id of several calls.

    A trace is passed over, as in the store, if it has calls of several attempts, or no call of the rollout that is
    named together with it.
    """
    for kind in _KINDS:
        if (name := getattr(subject, kind)) is None:
            continue
        found = about.get((kind, name), [])
        if kind == "response_id":
            return _of_one_response(subject, found)
        if kind == "trace_id":
            if subject.rollout_id is not None:
                found = [call for call in found if call.rollout_id in (None, subject.rollout_id)]
            if not found or len({call.attempt_id for call in found} - {None}) > 1:
                continue
        return found
    return []


def _of_one_response(subject: Subject, found: list[Call]) -> list[Call]:
    for other in ("attempt_id", "rollout_id"):
        wanted = getattr(subject, other)
        if wanted is not None and len(found) > 1:
            found = [call for call in found if getattr(call, other) in (None, wanted)]
    return found if len({(call.trace_id, call.span_id) for call in found}) == 1 else []


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
        truncated=False,
    )


def in_words(example: Example) -> Example:
    """Return the example without token ids."""
    return replace(example, fidelity=Fidelity.TEXT_ONLY, prompt_ids=(), response_ids=())

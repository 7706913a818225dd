"""The purposes of a dataset, the forms in which it can be written, and which of these go together."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.policies import estimators
from lightning_trainer.dataset.examples import Needs
from lightning_trainer.dataset.formats import conversations as chats
from lightning_trainer.dataset.formats import trl
from lightning_trainer.dataset.formats.json_lines import write_json_lines
from lightning_trainer.dataset.rows import EXAMPLES, PAIRS, SAMPLES, Advantages, Row, example_row, pair_row, sample_row
from lightning_trainer.dataset.selection import Demonstrations, Preferences
from lightning_trainer.errors import DatasetError, MissingExtraError
from lightning_trainer.samples.batches import Build
from lightning_trainer.types import LedgerRow, Sample


class Purpose(StrEnum):
    """The kind of training that the file is for."""

    RL = "rl"
    SFT = "sft"
    DPO = "dpo"


class Form(StrEnum):
    """How the file is written."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    TRL = "trl"
    VERL = "verl"
    MESSAGES = "messages"
    OPENAI = "openai"


_CONVERSATIONS = frozenset({Form.MESSAGES, Form.OPENAI})
_BY_SUFFIX = {".parquet": Form.PARQUET, ".jsonl": Form.JSONL}
_WRITTEN_AS = {
    ".parquet": {Form.PARQUET, Form.MESSAGES},
    ".jsonl": {Form.JSONL, Form.TRL, Form.MESSAGES, Form.OPENAI},
}


def form_of(path: Path, form: Form | None, purpose: Purpose) -> Form:
    """Return the form that was asked for, else the one that the file's name indicates.

    Raises:
        DatasetError: neither gives a form, this purpose does not have the form, or the name is that of another form.
    """
    chosen = form or _BY_SUFFIX.get(path.suffix)
    if chosen is None:
        raise DatasetError(
            f"{path.name} does not say how to write it: name it *.parquet or *.jsonl, or give --format {'|'.join(Form)}"
        )
    if chosen is Form.VERL and purpose is not Purpose.RL:
        raise DatasetError(f"verl's DataProto is a form for --for rl, not for {purpose}: use parquet, jsonl or trl")
    if chosen in _CONVERSATIONS and purpose is Purpose.RL:
        raise DatasetError(f"--format {chosen} is what was said, for --for sft and dpo: write samples in another form")
    if chosen not in _WRITTEN_AS.get(path.suffix, {chosen}):
        raise DatasetError(
            f"--format {chosen} does not write what {path.name} is named as: give it another ending than {path.suffix}"
        )
    return chosen


def needs_of(form: Form, purpose: Purpose, *, tokens: bool) -> Needs:
    """Return what an example must have to be written in a form.

    Raises:
        DatasetError: ids were asked for, and the form has none.
    """
    if form in _CONVERSATIONS:
        if tokens:
            raise DatasetError(f"--format {form} has no ids: leave --tokens out, or write parquet or jsonl")
        return Needs.WORDS
    if form is not Form.TRL:
        return Needs.TOKENS if tokens else Needs.EITHER
    if tokens and purpose is Purpose.DPO:
        raise DatasetError("TRL's preference form has no ids: leave --tokens out, or write parquet or jsonl")
    return Needs.TOKENS if tokens else Needs.WORDS


def advantages_of(samples: Sequence[Sample], policy: PolicyConfig) -> Advantages:
    """Return the advantages that training would use, computed by verl's code for the policy's estimator (imports verl).

    Raises:
        DatasetError: the advantages need more than rewards.
        MissingExtraError: verl is not installed.
        TrainingError: the estimator cannot be used.
    """
    if needed := _needed_beyond_rewards(policy):
        raise DatasetError(
            f"the advantages of policy {policy.name!r} need {needed}, which only its trainer has; write parquet, jsonl "
            "or trl, without --advantages"
        )
    try:
        from lightning_trainer.training.update.estimation.advantages import token_advantages
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"advantages are worked out by verl, and {error.name} is not installed; run: "
            'pip install "lightning-trainer[train]"'
        ) from error
    return token_advantages(samples, policy.estimator, policy.algorithm)


def _needed_beyond_rewards(policy: PolicyConfig) -> str | None:
    """Return which measurement of a model the policy's advantages need besides rewards; None if they need none."""
    algorithm = policy.algorithm
    if policy.credit.needs_values:
        return f"a critic's values (credit scheme {policy.credit.scheme!r})"
    if estimators.needs_values(policy.estimator):
        return f"a critic's values (advantage = {policy.estimator!r})"
    if estimators.needs_distribution(policy.estimator):
        return f"the policy's probabilities (advantage = {policy.estimator!r})"
    if algorithm.kl_reward_coef:
        return f"the divergence from a reference model (kl_reward_coef = {algorithm.kl_reward_coef:g})"
    return None


def write_samples(build: Build, path: Path, form: Form, policy: PolicyConfig, *, with_advantages: bool) -> int:
    """Write samples for reinforcement learning and return how many rows; without any, nothing is written."""
    samples = () if build.batch is None else build.batch.samples
    if not samples:
        return 0
    if form in (Form.VERL, Form.TRL):
        _require_plain(samples, form)
    advantages = advantages_of(samples, policy) if with_advantages or form is Form.VERL else None
    if form is Form.VERL:
        from lightning_trainer.dataset.formats.dataproto import to_dataproto, write_dataproto

        assert advantages is not None
        write_dataproto(to_dataproto(samples, advantages), path)
    elif form is Form.TRL:
        _require_one_temperature(samples)
        write_json_lines((trl.rollout_row(sample, advantages) for sample in samples), path)
    else:
        _write([sample_row(sample, advantages) for sample in samples], path, form, SAMPLES, build.ledger)
    return len(samples)


def _require_plain(samples: Sequence[Sample], form: Form) -> None:
    """Refuse samples that another trainer would wrongly take for draws from the plain softmax after text alone.

    Raises:
        DatasetError: a sample was drawn from something else, or after an image.
    """
    for sample in samples:
        if sample.media:
            raise DatasetError(
                f"sample {sample.sample_id} has images or other media, which --format {form} has no place for, so "
                "tokens that stand for them would be taken for text: write parquet or jsonl"
            )
        if any(segment.support is not None or segment.shaping is not None for segment in sample.segments):
            raise DatasetError(
                f"sample {sample.sample_id} was sampled under a grammar, top_p, a penalty or the like, which --format "
                f"{form} has no place for, so its probabilities would be taken for others: write parquet or jsonl, or "
                "sample without"
            )


def _require_one_temperature(samples: Sequence[Sample]) -> None:
    """Refuse samples whose log-probabilities TRL's trainer would compare with its own at another temperature.

    Raises:
        DatasetError: the samples have several temperatures.
    """
    temperatures = sorted({sample.temperature for sample in samples})
    if len(temperatures) > 1:
        raise DatasetError(
            f"the samples have the temperatures {', '.join(map(str, temperatures))}, and TRL's trainer has one: write "
            "them as parquet or jsonl, or sample at one temperature"
        )


def write_demonstrations(found: Demonstrations, path: Path, form: Form, *, tokens: bool) -> int:
    """Write examples for supervised fine-tuning and return how many; without any, nothing is written."""
    if not found.examples:
        return 0
    if form in _CONVERSATIONS:
        row_of = chats.openai_row if form is Form.OPENAI else chats.messages_row
        _write_conversations([row_of(one) for one in chats.conversations(found.examples)], path, form)
    elif form is Form.TRL:
        row_of = trl.tokenized_row if tokens else trl.conversational_row
        write_json_lines(map(row_of, found.examples), path)
    else:
        _write([example_row(example) for example in found.examples], path, form, EXAMPLES, found.ledger)
    return len(found.examples)


def weights_of(found: Demonstrations, form: Form) -> tuple[str, ...]:
    """Return what a reader must know about answers that must not be imitated; empty if conversations have none."""
    if form is not Form.MESSAGES:
        return ()
    made = chats.conversations(found.examples)
    only_read = sum(one.only_read for one in made)
    if not only_read:
        return ()
    return (
        f"answers of the assistant that are not to be imitated: {only_read:,}, in {len(made):,} conversations; they "
        'have "weight": 0, which TRL, verl and LLaMA-Factory do not read: --format trl has each demonstration alone',
    )


def write_preferences(found: Preferences, path: Path, form: Form) -> int:
    """Write preference pairs and return how many; without any, nothing is written."""
    if not found.pairs:
        return 0
    if form in _CONVERSATIONS:
        row_of = chats.openai_preference_row if form is Form.OPENAI else chats.preference_row
        _write_conversations([row_of(one) for one in found.pairs], path, form)
    elif form is Form.TRL:
        write_json_lines(map(trl.preference_row, found.pairs), path)
    else:
        _write([pair_row(pair) for pair in found.pairs], path, form, PAIRS, found.ledger)
    return len(found.pairs)


def _write_conversations(rows: Sequence[Row], path: Path, form: Form) -> None:
    if form is Form.MESSAGES and path.suffix == ".parquet":
        from lightning_trainer.dataset.formats.parquet import write_conversations_parquet

        write_conversations_parquet(rows, path)
    else:
        write_json_lines(rows, path)


def _write(rows: Sequence[Row], path: Path, form: Form, schema: str, ledger: Sequence[LedgerRow]) -> None:
    if form is Form.PARQUET:
        from lightning_trainer.dataset.formats.parquet import write_parquet

        write_parquet(rows, path, schema, ledger)
    else:
        write_json_lines(rows, path, schema)

"""``lightning-trainer build``: turn recorded spans, or plain records of calls, into a file of samples; no daemon."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.config import Config, PolicyConfig, any_agent
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.dataset.calls import build_calls
from lightning_trainer.dataset.formats.json_lines import read_placed_json_lines
from lightning_trainer.dataset.forms import (
    Form,
    Purpose,
    form_of,
    needs_of,
    weights_of,
    write_demonstrations,
    write_preferences,
    write_samples,
)
from lightning_trainer.dataset.images import Images
from lightning_trainer.dataset.reading import Recording, read_recording, retokenize
from lightning_trainer.dataset.selection import demonstrations, preferences
from lightning_trainer.dataset.sources import STORE_FILE, is_store, read_source
from lightning_trainer.errors import ConfigError, DatasetError
from lightning_trainer.explain.console import ledger_table
from lightning_trainer.ingest.redacting import SpanRedactor
from lightning_trainer.judges.reliability.report import corrections, unknown_corrections
from lightning_trainer.retokenize.grading import EngineScorer
from lightning_trainer.retokenize.tokenizer import PolicyTokenizer
from lightning_trainer.samples.batches import Build, build_batch
from lightning_trainer.samples.rewards.reliability import Correction
from lightning_trainer.samples.transitions.eligibility import KeptImages
from lightning_trainer.store.media.exchange import exchange
from lightning_trainer.store.places import StorePlace, place_of, reading
from lightning_trainer.store.scan import traces
from lightning_trainer.store.worklist import drops
from lightning_trainer.store.worklist.settling import not_released
from lightning_trainer.types import Attempt, LedgerRow, RolloutMode, Span

NOTHING_TO_WRITE = 1
"""Exit code: nothing failed, but there is nothing to train on."""
IMAGES = ".media"
"""Suffix of the folder of images; the rest of its name is that of the file of samples."""
_SHOW_PROGRESS_FROM_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked on the command line."""

    config: Path | None
    out: Path
    policy: str | None = None
    spans: tuple[Path, ...] = ()
    calls: tuple[Path, ...] = ()
    agents: tuple[str, ...] = ()
    """Names or patterns; empty: all that the policy claims."""
    rewards: tuple[str, ...] = ()
    """``NAME`` or ``NAME=WEIGHT``; empty: the policy's own."""
    purpose: Purpose = Purpose.RL
    form: Form | None = None
    tokens: bool = False
    advantages: bool = False
    min_reward: float | None = None
    retokenize: bool = False
    engine: str | None = None
    engine_model: str | None = None


def build(options: Options) -> int:
    """Write the file, print the account of it, and return the exit code.

    Raises:
        LightningError: something that was named cannot be read, used or written.
    """
    _check(options)
    config = load_usual_config(options.config)
    policy = _policy(config, options.policy)
    if options.agents:
        try:
            policy = policy.only(options.agents)
        except ValueError as error:
            raise ConfigError(f"--agent: {error}") from error
    if options.rewards:
        try:
            policy = policy.rewarded_by(dict(map(_weighed, options.rewards)))
        except ValueError as error:
            raise ConfigError(f"--reward: {error}") from error
    form = form_of(options.out, options.form, options.purpose)
    console, errors = TerminalConsole(), TerminalConsole(stderr=True)
    if options.purpose is Purpose.RL:
        made, images = _build(options, config, policy, errors)
        written = write_samples(made, options.out, form, policy, with_advantages=options.advantages)
        said = _write_images(made, images, options.out.with_suffix(IMAGES))
        return _report(console, written, "samples", options, made.ledger, (*made.problems, *said))
    needs = needs_of(form, options.purpose, tokens=options.tokens)
    recording, corrected = _recording(options, config, policy, errors), _corrections(options, config, policy)
    if options.purpose is Purpose.SFT:
        shown = demonstrations(recording, policy, needs, min_reward=options.min_reward, corrections=corrected)
        written = write_demonstrations(shown, options.out, form, tokens=options.tokens)
        said = (*shown.problems, *weights_of(shown, form))
        return _report(console, written, "demonstrations", options, shown.ledger, said)
    compared = preferences(recording, policy, needs, corrections=corrected)
    written = write_preferences(compared, options.out, form)
    return _report(console, written, "preference pairs", options, compared.ledger, compared.problems)


def _check(options: Options) -> None:
    if options.calls and (options.spans or options.purpose is not Purpose.RL or options.retokenize or options.engine):
        raise DatasetError("--calls holds ids and no words: use it alone, with --for rl")
    if options.min_reward is not None and options.purpose is not Purpose.SFT:
        raise DatasetError("--min-reward says which calls are demonstrations: it goes with --for sft")
    if options.tokens and options.purpose is Purpose.RL:
        raise DatasetError("--tokens is for --for sft and dpo: samples of reinforcement learning are ids anyway")
    if options.advantages and options.purpose is not Purpose.RL:
        raise DatasetError("--advantages is for --for rl: demonstrations and pairs have none")
    if (options.engine is None) != (options.engine_model is None):
        raise DatasetError("--engine and --engine-model go together: where the engine is, and the model it serves")


def _policy(config: Config, name: str | None) -> PolicyConfig:
    found = [policy for policy in config.policy if name in (None, policy.name)]
    if len(found) == 1:
        return found[0]
    if not config.policy and name is None:
        return any_agent()
    known = ", ".join(policy.name for policy in config.policy) or "none is there"
    said = f"there is no policy {name!r}" if name else "there are several policies"
    raise ConfigError(f"{said} in the configuration; name one with --policy: {known}")


def _weighed(reward: str) -> tuple[str, float]:
    """Return the name and the weight of ``NAME=WEIGHT``. Raises ValueError: the weight is not a number."""
    name, given, weight = reward.rpartition("=")
    if not given:
        return reward, 1.0
    try:
        return name, float(weight)
    except ValueError:
        raise ValueError(f"the weight of {name!r} is {weight!r}; write NAME or NAME=0.5") from None


def _build(options: Options, config: Config, policy: PolicyConfig, errors: Console) -> tuple[Build, Images]:
    if options.calls:
        rows = (row for path in options.calls for row in read_placed_json_lines(path))
        return build_calls(rows, policy), Images({}, ())
    recording = _recording(options, config, policy, errors)
    images = Images(recording.embedded, _stores(options, config))
    made = build_batch(
        recording.calls,
        recording.attempts,
        recording.evaluations,
        policy,
        step=1,
        span_parents=recording.span_parents,
        corrections=_corrections(options, config, policy),
        images=KeptImages(None, images.kept(one for call in recording.calls for one in call.media)),
    )
    return replace(made, problems=(*recording.problems, *made.problems)), images


def _write_images(made: Build, images: Images, folder: Path) -> tuple[str, ...]:
    samples = () if made.batch is None else made.batch.samples
    number = images.write((one for sample in samples for one in sample.media), folder)
    return (f"{number:,} images written to {folder}",) if number else ()


def _recording(options: Options, config: Config, policy: PolicyConfig, errors: Console) -> Recording:
    problems: list[str] = []
    spans: list[Span] = []
    embedded: dict[str, bytes] = {}
    redacted = SpanRedactor.of(config.daemon)
    usual = place_of(config)
    if not options.spans and usual.path is not None and not usual.path.exists():
        raise DatasetError(f"there is no store {usual}: start `lightning-trainer serve`, or name files with --spans")
    for source in _sources(options, config):
        if isinstance(source, StorePlace):
            with reading(source) as connection:
                spans += [span for trace in traces(connection) for span in trace]
            continue
        with _progress(source, errors) as watch:
            # Spans of a store were already redacted, and separated from their images.
            exchanged = exchange(list(redacted(read_source(source, problems, watch))))
        spans += exchanged.spans
        for found in exchanged.media.values():
            embedded |= {digest: one.body for digest, one in found.items()}
    again = options.retokenize or options.engine is not None
    recording = read_recording(spans, with_words=again or options.purpose is not Purpose.RL)
    recording = _with_modes(_without_unreleased(recording, options, config), options, config)
    recording = replace(recording, problems=(*problems, *recording.problems), embedded=embedded)
    if not again:
        return recording
    with ExitStack() as stack:
        scorer = None
        if options.engine is not None and options.engine_model is not None:
            key = os.environ.get("OPENAI_API_KEY")
            scorer = stack.enter_context(EngineScorer(options.engine, options.engine_model, api_key=key))
        return retokenize(recording, policy, _tokenizer(config, policy), scorer)


def _sources(options: Options, config: Config) -> Sequence[Path | StorePlace]:
    """Return the named sources; else the configuration's own store, which is read like any other file if it is one."""
    usual = place_of(config)
    return options.spans or [usual if usual.path is None else config.daemon.state_dir]


def _stores(options: Options, config: Config) -> list[StorePlace]:
    """Return the sources that are stores: only these know what was dropped, and what judges and feedback are worth.

    All sources have been read by then.
    """
    files = [
        source if isinstance(source, StorePlace) else StorePlace(source / STORE_FILE if source.is_dir() else source)
        for source in _sources(options, config)
    ]
    return [one for one in files if one.path is None or is_store(one.path)]


def _corrections(options: Options, config: Config, policy: PolicyConfig) -> dict[str, Correction]:
    """Return how judges are corrected, by what stores know about them; files of spans say nothing about them."""
    found: dict[str, Correction] = {}
    for store in _stores(options, config) if policy.corrected_rewards else ():
        with reading(store) as connection:
            found |= corrections(connection, policy.corrected_rewards, config.judge)
    return {**found, **unknown_corrections(policy.corrected_rewards - found.keys())}


def _without_unreleased(recording: Recording, options: Options, config: Config) -> Recording:
    """Leave out edited answers that do not count, says a store: quarantined, capped, or of a source mostly wrong."""
    if not recording.edits:
        return recording
    held: set[tuple[str, str]] = set()
    for store in _stores(options, config):
        with reading(store) as connection:
            held |= not_released(connection, config.feedback, time.time_ns())
    edits = tuple(edit for edit in recording.edits if edit.key not in held)
    left_out = len(recording.edits) - len(edits)
    said = (f"{left_out} edited answers do not count (yet): `lightning-trainer feedback` says why",) if left_out else ()
    return replace(recording, edits=edits, problems=(*recording.problems, *said))


def _with_modes(recording: Recording, options: Options, config: Config) -> Recording:
    """Treat attempts recorded for a dataset as if a step trained them, and mark those that a user took out of training,
    which spans do not say."""
    dropped: set[str] = set()
    for store in _stores(options, config):
        with reading(store) as connection:
            dropped |= drops.attempt_ids(connection)

    def mode(one: Attempt) -> RolloutMode:
        if one.attempt_id in dropped:
            return RolloutMode.DROPPED
        return RolloutMode.TRAIN if one.mode is RolloutMode.RECORD else one.mode

    return replace(recording, attempts=tuple(replace(one, mode=mode(one)) for one in recording.attempts))


def _tokenizer(config: Config, policy: PolicyConfig) -> PolicyTokenizer:
    from lightning_trainer.models.resolve import model_cache, resolve_model

    if not config.policy:
        raise ConfigError(
            "--retokenize makes ids with the tokenizer of a policy's model, and there is no [[policy]]; add one to the "
            "configuration"
        )
    template = config.engine_of(policy).chat_template
    return PolicyTokenizer(
        resolve_model(policy.model, model_cache()), None if template is None else template.read_text(encoding="utf-8")
    )


@contextmanager
def _progress(path: Path, console: Console) -> Iterator:
    """Yield a wrapper that shows how far a file is read, if it is long and a person at a terminal waits."""
    size = path.stat().st_size if path.is_file() else 0
    if not console.is_terminal or size < _SHOW_PROGRESS_FROM_BYTES:
        yield lambda file: file
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:

        def watch(file: BinaryIO) -> BinaryIO:
            return progress.wrap_file(file, total=size, description=f"reading {path.name}")

        yield watch


def _report(
    console: Console,
    written: int,
    what: str,
    options: Options,
    ledger: Sequence[LedgerRow],
    problems: Sequence[str],
) -> int:
    if ledger:
        console.print(ledger_table(ledger, in_words=True))
    for problem in dict.fromkeys(problems):
        console.print(f"- {escape(problem)}", highlight=False, soft_wrap=True)
    if written:
        console.print(f"{written:,} {what} written to {escape(str(options.out))}", highlight=False, soft_wrap=True)
        return 0
    kept = f"; {options.out} is of an earlier run" if options.out.exists() else ""
    console.print(f"nothing to write: there are no {what} in what was recorded{escape(kept)}", highlight=False)
    return NOTHING_TO_WRITE

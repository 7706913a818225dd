"""``prompts optimize``: run a program over tasks, with one text of a prompt after another."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from lightning_instrumentation.settings import checked_endpoint
from rich.console import Console

from lightning_trainer.cli.daemon.named_daemon import option_of
from lightning_trainer.cli.rollouts import Options, Show, at_daemon, ends_at_signals, shown
from lightning_trainer.cli.terminal.console import TerminalConsole, visible_json
from lightning_trainer.config.file import USUAL_CONFIG
from lightning_trainer.errors import ConfigError
from lightning_trainer.report import MeanDifference, PairedDifference, mean_difference, paired_difference
from lightning_trainer.rollouts import Command, Event
from lightning_trainer.rollouts.prompts.candidates import Candidate, CandidateTried, Optimized
from lightning_trainer.rollouts.prompts.client import Spent
from lightning_trainer.rollouts.prompts.journal import OtherSearchError
from lightning_trainer.rollouts.prompts.optimizer import PromptOptimizer
from lightning_trainer.rollouts.run_name import command_label
from lightning_trainer.rollouts.task_file import read_tasks

_GRACE_S = 30.0
"""Seconds after the command's own time limit at which its thread is given up."""


@dataclass(frozen=True, slots=True)
class Search:
    """The tasks that candidates are tried at, and the settings of the search."""

    tasks: Path
    attempts: int
    validation: Path | None
    held_out: Path | None
    use: bool
    minibatch: int
    perfect: float
    seed: int
    journal: Path | None


def optimize_prompts(
    names: Sequence[str],
    command: Sequence[str],
    search: Search,
    *,
    config: Path | None,
    endpoint: str | None,
    agent: str | None,
    concurrency: int,
    timeout_s: float,
    retries: int = 0,
    as_json: bool = False,
) -> None:
    """Search, and say what was found and how it is served.

    Args:
        names: of the prompts.
        command: the program and its arguments.
        as_json: print what was found as a document, and everything else on standard error.

    Raises:
        ConfigError: the program does not exist, or ``--use`` is given without held-out tasks.
        LightningError: as ``PromptOptimizer.optimize``.
    """
    if shutil.which(command[0]) is None:
        raise ConfigError(f"there is no command {command[0]!r} on PATH; check its spelling, or give its path")
    if search.use and search.held_out is None:
        raise ConfigError("--use goes by tasks that no text was chosen by: name them with --held-out FILE")
    options = Options(
        command=tuple(command),
        tasks=search.tasks,
        policy=None,
        steps=None,
        evaluate=None,
        endpoint=endpoint,
        agent=agent,
        concurrency=concurrency,
        timeout_s=timeout_s,
        retries=retries,
        seed=search.seed,
        config=config,
    )
    usual = endpoint is None and USUAL_CONFIG.exists()  # a given endpoint may be another daemon's
    if (path := config or (USUAL_CONFIG if usual else None)) is not None:
        options, _ = at_daemon(options, path)
    program = Command(command, endpoint=checked_endpoint(options.endpoint), agent=agent, timeout_s=timeout_s)
    with ends_at_signals():
        _search(names, program, search, options, option_of(endpoint, config), as_json=as_json)


def _search(
    names: Sequence[str], program: Command, search: Search, options: Options, option: str, *, as_json: bool
) -> None:
    console = TerminalConsole(stderr=as_json)
    tasks = read_tasks(search.tasks)
    validation = None if search.validation is None else read_tasks(search.validation).tasks
    held_out = () if search.held_out is None else read_tasks(search.held_out).tasks
    program.run_label = command_label(options.command, tasks.label, search.seed)
    with shown(console, 1, search.attempts + 2 * len(held_out)) as show:
        narration = _Narration(console, show, search.journal, option)
        optimizer = PromptOptimizer(
            names,
            program,
            endpoint=checked_endpoint(options.endpoint),
            concurrency=options.concurrency,
            timeout_s=options.timeout_s + _GRACE_S,
            retries=options.retries,
            seed=search.seed,
            on_event=narration,
        )
        with narration.of_an_end(optimizer):
            found = optimizer.optimize(
                tasks.tasks,
                attempts=search.attempts,
                validation=validation,
                held_out=held_out,
                minibatch=search.minibatch,
                perfect=search.perfect,
                journal=search.journal,
            )
        served = _conclude(console, optimizer, found, use=search.use, option=option)
    if as_json:
        print(visible_json(_document(found, served=served)))


class _Narration:
    """Prints a line for each text that was tried, and the best so far if the search is cut short."""

    def __init__(self, console: Console, show: Show, journal: Path | None, option: str = "") -> None:
        """Begin to narrate; ``option`` is how ``prompts use`` has to name the daemon."""
        self._option = option
        self._console = console
        self._show = show
        self._journal = journal
        self._best: CandidateTried | None = None
        self._anything = False
        """Whether an attempt has ended, or was found in the journal."""

    def __call__(self, event: Event | CandidateTried) -> None:
        self._anything = True
        if not isinstance(event, CandidateTried):
            self._show(event)
            return
        failed = f", {event.failed} failed or without a reward" if event.failed else ""
        if event.parent is None:
            said = (
                f"{event.candidate}, which the program has: {event.mean:.3f} at {event.tasks} validation tasks{failed}"
            )
        else:
            where = "validation tasks, kept" if event.kept else "tasks, not better there"
            said = (
                f"{event.candidate} by {event.made_by} from {event.parent}: {event.mean:.3f} at {event.tasks} {where}"
                f"{failed}; {event.attempts_left} attempts left"
            )
        _say(self._console, said)
        if event.kept and (self._best is None or event.mean > self._best.mean):
            self._best = event

    @contextmanager
    def of_an_end(self, optimizer: PromptOptimizer) -> Iterator[None]:
        """Say what is best so far, and what it cost, if something ends the block: Ctrl-C, a signal, or an error."""
        try:
            yield
        except BaseException as error:
            best = self._best
            if best is not None and best.parent is not None:
                commands = ", ".join(
                    f"lightning-trainer prompts use {one}{self._option}" for one in best.candidate.split(", ")
                )
                said = f"best so far: {best.candidate}, {best.mean:.3f} at {best.tasks} validation tasks"
                _say(self._console, f"{said}; to serve it: {commands}")
            _say_spent(self._console, optimizer.spent)
            goes_on = self._anything and not isinstance(error, OtherSearchError)
            if self._journal is not None and goes_on and self._journal.stat().st_size:
                _say(self._console, f"the same command goes on with the search from {self._journal}")
            raise


def _conclude(console: Console, optimizer: PromptOptimizer, found: Optimized, *, use: bool, option: str) -> bool:
    """Say what was found; return whether it is served from now on."""
    tried = f"{len(found.candidates)} kept candidates, {found.attempts} attempts"
    if found.best is found.base:
        _say(console, f"nothing better than {found.base.name} was found ({tried}); try more attempts or other tasks")
        if found.held_out is not None:
            _say(console, f"at {len(found.held_out[0])} held-out tasks: {fmean(found.held_out[0].values()):.3f}")
        _say_spent(console, found.spent)
        return False
    _say(
        console,
        f"best: {found.best.name}, {found.best.mean:.3f} at the validation tasks that it was chosen by, where "
        f"{found.base.name} has {found.base.mean:.3f} ({tried})",
    )
    better = _held_out(console, found)
    _say_spent(console, found.spent)
    if use and better:
        optimizer.use(found.best)
        _say(console, "it is served from now on")
        return True
    if use:
        _say(console, "it is not served: the held-out tasks do not show beyond doubt that it is better")
    for name in _serve(found.best):
        _say(console, f"to serve it: lightning-trainer prompts use {name}{option}")
    return False


def _say_spent(console: Console, spent: Spent) -> None:
    if spent.calls:
        _say(
            console,
            f"the texts took {spent.calls:,} calls of the model that writes them: {spent.input_tokens:,} tokens in, "
            f"{spent.output_tokens:,} out",
        )


def _held_out(console: Console, found: Optimized) -> bool:
    """Say how both did at tasks that neither was chosen by; return whether the best is better beyond doubt."""
    if found.held_out is None:
        return False
    before, after = found.held_out
    difference = _difference(before, after)
    means = [fmean(scores.values()) for scores in (before, after)]
    sentence = f"at {len(before)} held-out tasks: {means[0]:.3f} before, {means[1]:.3f} now"
    if difference is None:
        _say(console, f"{sentence}; too few tasks, or all alike, to say how sure that is")
        return False
    low, high = difference.interval
    _say(console, f"{sentence}, {difference.difference:+.3f} (95 %: {low:+.3f} to {high:+.3f})")
    return low > 0


def _difference(
    before_by_task: Mapping[str, float], after_by_task: Mapping[str, float]
) -> PairedDifference | MeanDifference | None:
    before, after = list(before_by_task.values()), [after_by_task[task] for task in before_by_task]
    if {*before, *after} <= {0.0, 1.0}:
        return paired_difference([value == 1.0 for value in before], [value == 1.0 for value in after])
    return mean_difference(before, after)


def _document(found: Optimized, *, served: bool) -> dict[str, Any]:
    """Return what was found, as JSON has it."""
    held_out = None
    if found.held_out is not None:
        before, after = found.held_out
        means = [fmean(scores.values()) for scores in (before, after)]
        difference = _difference(before, after)
        held_out = {
            "tasks": len(before),
            "before": means[0],
            "now": means[1],
            "difference": means[1] - means[0],
            "interval": None if difference is None else difference.interval,
        }
    return {
        "base": found.base.name,
        "best": found.best.name,
        "candidates": [
            {
                "name": one.name,
                "versions": {name: version.version for name, version in one.versions.items()},
                "parent": None if one.parent is None else found.candidates[one.parent].name,
                "mean": one.mean,
            }
            for one in found.candidates
        ],
        "attempts": found.attempts,
        "held_out": held_out,
        "served": served,
        "spent": asdict(found.spent),
    }


def _serve(candidate: Candidate) -> list[str]:
    return [f"{name}@v{version.version}" for name, version in candidate.versions.items()]


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)

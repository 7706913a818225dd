"""Every example that is a proof is there and configured by itself; the page has the figures that were kept."""

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.proof.__main__ import _kept, _outcome
from benchmarks.proof.examples import EXAMPLES, Example, digest_of
from benchmarks.proof.one_run import configured
from benchmarks.proof.outcome import Asked, Outcome, asked, evaluation, last_question, shown_task
from benchmarks.proof.page import curve, page, row
from lightning_trainer.config.file import load_config
from lightning_trainer.types import Attempt, RolloutMode

ROOT = Path(__file__).parents[2]
OUTCOME = Outcome(
    example="search",
    seed=1,
    steps=3,
    minutes=12.4,
    machine="2 cores",
    made="2026-01-02",
    digest=digest_of("search"),
    before={"heldout-0": False, "heldout-1": False, "heldout-2": True, "heldout-3": False},
    after={"heldout-0": False, "heldout-1": True, "heldout-2": True, "heldout-3": True},
    rewards=(0.0, None, 0.5),
    task="heldout-1",
    question="Who?\nAna | Kelberg",
    said_before=("answer: Ana",),
    said_after=("search: Ana", "answer: Examplia"),
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_configured_for_a_run_of_its_own(tmp_path: Path, name: str) -> None:
    source = ROOT / "examples" / name
    assert (source / "train.py").is_file()
    (tmp_path / "lightning.toml").write_text(configured(name, seed=7, steps=5))
    config = load_config(tmp_path / "lightning.toml")
    assert (config.daemon.port, config.daemon.state_dir, config.training.seed) == (0, tmp_path / "state", 7)
    assert config.policy[0].optimizer.total_steps in (None, 5)
    own = load_config(source / "lightning.toml").policy[0].stage
    assert [stage.data and stage.data.resolve() for stage in own] == [stage.data for stage in config.policy[0].stage]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_takes_the_options_of_a_run(name: str) -> None:
    # Read and not run: the frameworks take seconds to import, and one of them is installed elsewhere.
    program = ROOT / "examples" / name / "train.py"
    shared = re.findall(r"^from (\w+) import (?:\([^)]*|.*)\bmain\b", program.read_text(), flags=re.MULTILINE)
    found = [program, *(path for module in shared for path in (ROOT / "examples").glob(f"*/{module}.py"))]
    (parser,) = [text for path in found if "ArgumentParser(" in (text := path.read_text())]
    assert {"--seed", "--steps", "--heldout"} <= set(re.findall(r'add_argument\("(--\w+)"', parser))


def test_an_outcome_is_read_as_it_was_written(tmp_path: Path) -> None:
    OUTCOME.write(tmp_path / "outcome.json")
    assert Outcome.read(tmp_path / "outcome.json") == OUTCOME


def test_an_outcome_from_before_attempts_without_a_reward_were_counted_is_read(tmp_path: Path) -> None:
    OUTCOME.write(tmp_path / "outcome.json")
    fields = json.loads((tmp_path / "outcome.json").read_text())
    assert fields.pop("unscored") is None
    (tmp_path / "outcome.json").write_text(json.dumps(fields))
    assert Outcome.read(tmp_path / "outcome.json") == OUTCOME


def test_outcomes_of_several_days_come_together_and_those_of_changed_examples_do_not(tmp_path: Path, capsys) -> None:
    runs, folder = tmp_path / "runs", tmp_path / "proof"
    (runs / "search-seed-1").mkdir(parents=True)
    OUTCOME.write(runs / "search-seed-1" / "outcome.json")
    folder.mkdir()
    earlier = replace(OUTCOME, example="code", seed=0, digest=digest_of("code"), made="2025-12-31")
    earlier.write(folder / "code-seed-0.json")
    replace(OUTCOME, example="stages", digest="0" * 12).write(folder / "stages-seed-1.json")
    assert _kept(runs, folder) == [OUTCOME, earlier]
    assert "left out: stages-seed-1.json, whose example has changed since" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["code-seed-0.json", "search-seed-1.json"]


def test_a_run_that_is_done_is_not_made_again_and_leaves_no_checkpoints(tmp_path: Path, monkeypatch) -> None:
    def train(name: str, example: Example, folder: Path, *, seed: int, steps: int) -> float:
        (folder / "state" / "checkpoints" / "step-20").mkdir(parents=True)  # a second call would fail
        (folder / "state" / "lightning.sqlite").touch()
        return 1.0

    async def outcome_of(folder: Path, name: str, **about: object) -> Outcome:
        assert (folder / "state" / "lightning.sqlite").exists()
        return OUTCOME

    monkeypatch.setattr("benchmarks.proof.__main__.train", train)
    monkeypatch.setattr("benchmarks.proof.__main__.outcome_of", outcome_of)
    assert [_outcome("search", 1, None, tmp_path) for _ in range(2)] == [OUTCOME, OUTCOME]
    assert [path.name for path in (tmp_path / "search-seed-1" / "state").iterdir()] == ["lightning.sqlite"]


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("changed", ["example", "steps"])
def test_a_run_of_an_example_that_has_changed_is_put_aside_and_made_anew(
    done: bool, changed: str, tmp_path: Path, monkeypatch
) -> None:
    # Before: its row was printed as today's, and an interrupted one went on and was said to be of today's files.
    begun: list[int] = []

    def train(name: str, example: Example, folder: Path, *, seed: int, steps: int) -> float:
        begun.append(len([*folder.glob("state")]))
        (folder / "state").mkdir()
        if not done and len(begun) == 1:
            raise RuntimeError("interrupted")
        return 1.0

    async def outcome_of(folder: Path, name: str, *, digest: str, **about: object) -> Outcome:
        return replace(OUTCOME, digest=digest)

    monkeypatch.setattr("benchmarks.proof.__main__.train", train)
    monkeypatch.setattr("benchmarks.proof.__main__.outcome_of", outcome_of)
    with contextlib.nullcontext() if done else pytest.raises(RuntimeError):
        _outcome("search", 1, 3, tmp_path)
    if changed == "example":
        monkeypatch.setattr("benchmarks.proof.__main__.digest_of", lambda name: "of today")
    assert _outcome("search", 1, 4 if changed == "steps" else 3, tmp_path).digest == (
        "of today" if changed == "example" else digest_of("search")
    )
    assert begun == [0, 0]
    assert (tmp_path / "earlier" / "search-seed-1.1" / "state").exists()


def test_a_run_from_before_runs_wrote_down_what_they_are_of_is_known_by_its_outcome(tmp_path: Path) -> None:
    (tmp_path / "search-seed-1").mkdir()
    OUTCOME.write(tmp_path / "search-seed-1" / "outcome.json")
    assert _outcome("search", 1, OUTCOME.steps, tmp_path) == OUTCOME


def test_a_digest_is_of_all_files_that_an_example_uses() -> None:
    assert len({digest_of(name) for name in EXAMPLES}) == len(EXAMPLES)
    for name, example in EXAMPLES.items():
        program = (ROOT / "examples" / name / "train.py").read_text()
        assert set(re.findall(r'parents\[1\] / "(\w+)"', program)) <= set(example.uses), name


def test_a_row_has_the_paired_difference() -> None:
    # Two of four gained, none lost: (3 - 1) / 6 +- 1.96 sqrt((4/6 - (2/6)^2) / 6) by Bonett and Price
    cells = ["[search](#search)", "1", "1 of 4", "3 of 4", "+50 (-26 to +93)", "3", "12", "▁·▅", "2 cores, 2026-01-02"]
    assert row(OUTCOME) == f"| {' | '.join(cells)} |"


def test_a_row_and_the_page_say_how_many_attempts_were_not_scored_where_that_was_counted() -> None:
    """Before: an attempt that never reached the model was a wrong answer, and nothing said so."""
    counted = replace(OUTCOME, seed=2, unscored={"before": 2, "after": 0})
    assert "| 1 of 4, 2 unscored | 3 of 4, 0 unscored |" in row(counted)
    assert "Unscored are attempts" in page([OUTCOME, counted])
    assert "nscored" not in page([OUTCOME])


def test_an_attempt_without_a_reward_is_none_and_no_success() -> None:
    attempts = [
        Attempt(name, f"r-{name}", name, f"run/before/{name}", mode=RolloutMode.EVALUATE) for name in ("a", "b", "c")
    ]
    found = asked("before", attempts, {"a": 1.0, "b": 0.0}, {"a": ("yes",), "b": ("no",)})
    assert found == {"a": Asked(1.0, ("yes",)), "b": Asked(0.0, ("no",)), "c": Asked(None, ())}
    assert [one.success for one in found.values()] == [True, False, False]


def test_the_task_that_is_shown_was_answered_in_both_and_learned_where_there_is_one() -> None:
    """Before: one that the first evaluation never asked the model could be shown, since it counts as wrong."""
    silent, wrong, right = Asked(None, ()), Asked(0.0, ("x",)), Asked(1.0, ("y",))
    assert shown_task({"a": silent, "b": right, "c": wrong}, {"a": right, "b": right, "c": right}) == "c"
    assert shown_task({"a": silent, "b": right}, {"a": right, "b": right}) == "b"
    assert shown_task({"a": silent}, {"a": right}) == "a"


def test_a_rollout_is_shown_of_a_run_that_has_both() -> None:
    silent = replace(OUTCOME, seed=0, task="heldout-9", question="", said_before=())
    assert "Held-out task `heldout-1`" in page([silent, OUTCOME])
    assert "Held-out task `" not in page([silent])


def test_the_page_shows_both_rollouts_and_says_what_was_not_run() -> None:
    text = page([OUTCOME], "Nothing else ran.")
    assert "Nothing else ran." in text
    assert "Held-out task `heldout-1`: `Who? ⏎ Ana | Kelberg`" in text
    assert "Before: `answer: Ana`" in text
    assert "After: `search: Ana` then `answer: Examplia`" in text
    not_run = text.partition("## Not run")[2]
    assert "calculator" in not_run
    assert "search" not in not_run


def test_of_a_run_that_was_interrupted_the_first_answer_before_and_the_last_one_after_count() -> None:
    rewards = {"b2": 0.0, "b3": 1.0, "a1": 0.0, "a2": 1.0}
    names = {"before": ("b1", "b2", "b3"), "after": ("a1", "a2", "a3")}
    attempts = [
        Attempt(name, f"r-{name}", "t", f"run/{stage}/t", mode=RolloutMode.EVALUATE)
        for stage, some in names.items()
        for name in some
    ]
    # b1 and a3 were cut off before they had a reward.
    assert [one.attempt_id for stage in ("before", "after") for one in evaluation(stage, attempts, rewards)] == [
        "b2",
        "a2",
    ]


def test_a_curve_has_a_bar_a_step() -> None:
    assert curve([0.0, 0.5, 1.0, None, 1.2, -1.0]) == "▁▅█·█▁"


def test_the_question_is_the_last_message_of_the_prompt() -> None:
    prompt = "<|im_start|>user\nshown<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
    assert last_question(prompt) == "Who?"

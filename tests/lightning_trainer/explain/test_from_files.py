"""``explain --spans``: the same answers from a collector's file, with no daemon and no store.

Each of the ten ways in which a trace is broken is named in the first line, with what ``build`` would make of it.
"""

import gzip
import json
from dataclasses import replace

import pytest
from lightning_instrumentation import semconv
from typer.testing import CliRunner

from lightning_trainer.cli.app import app

SECOND_NS = 1_000_000_000
WOULD = "rollout r-a1 would be trained (2 calls, 5 sampled tokens), but "


@pytest.fixture
def recorded(folder, otlp_line, attempt, ask):
    """Write an attempt beside a healthy one of its group that earned nothing, a line a span; return the options."""

    def record(spans, *, alone: bool = False):
        other = attempt("other", turns=(replace(ask, response=(50,), answer="7"),), reward=0.0)
        path = folder / "spans.jsonl"
        path.write_text("".join(otlp_line([span]) + "\n" for span in [*spans, *(() if alone else other.spans)]))
        return "--spans", str(path)

    return record


def _gateway_earlier(span):
    earlier = {"start_ns": span.start_ns - 5 * SECOND_NS, "end_ns": span.end_ns - 5 * SECOND_NS}
    return replace(span, **earlier) if span.scope == semconv.GATEWAY_SCOPE else span


def _broken(name, attempt, ask, finish):
    """Return the spans of an attempt a1 that is broken in one way."""
    a1 = attempt("a1")
    match name:
        case "no reward":
            return attempt("a1", reward=None).spans
        case "retokenized":
            return attempt("a1", turns=(ask, replace(finish, prompt=(10, 11, 12, 20, 23, 30, 31)))).spans
        case "over-long":
            return attempt("a1", turns=(replace(ask, prompt=tuple(range(100, 190))),)).spans
        case "agent name":
            return attempt("a1", turns=[replace(turn, agent="slover") for turn in (ask, finish)]).spans
        case "interrupted stream":
            return attempt("a1", turns=(ask, replace(finish, complete=False))).spans
        case "duplicate spans":
            clients = [span for span in a1.spans if span.name == "chat math"]
            foreign = [replace(s, span_id=f"{n:016x}", scope="someone.else") for n, s in enumerate(clients, 1)]
            return [*a1.spans, *a1.spans, *foreign]
        case "clock skew":
            return [_gateway_earlier(span) for span in a1.spans]
        case "missing parent":
            a1 = attempt("a1", agent_attribute=False)
            return [span for span in a1.spans if not span.name.startswith("invoke_agent")]
        case "mixed versions":
            return attempt("a1", turns=(ask, replace(finish, version=4))).spans
    return a1.spans


CAUSES = {
    "no reward": "rollout r-a1 would not be trained: no reward: nothing scored attempt a1",
    "retokenized": WOULD + "retokenized: call 2 sends the answer of call 1 back as text",
    "over-long": "rollout r-a1 would not be trained: over-long: its 1 call is longer than max_sample_tokens = 64",
    "agent name": "rollout r-a1 would not be trained: agent name: its 2 calls are by 'slover'",
    "interrupted stream": "rollout r-a1 would be trained in part (1 of 2 calls, 3 of 5 sampled tokens): interrupted "
    "stream: call 2 ended early",
    "group of one": "rollout r-a1 would not be trained: group of one: group g holds this attempt alone",
    "duplicate spans": WOULD + "duplicate spans: 2 calls were recorded 6 times",
    "clock skew": WOULD + "clock skew: 'gateway chat'",
    "missing parent": "rollout r-a1 would not be trained: missing parent: 2 calls lie below spans",
    "mixed versions": WOULD + "mixed versions: weights were published while attempt a1 ran",
}


@pytest.mark.parametrize("name", CAUSES)
def test_the_first_line_names_the_cause(name, recorded, explain, attempt, ask, finish):
    options = recorded(_broken(name, attempt, ask, finish), alone=name == "group of one")
    assert explain("r-a1", *options)[0].startswith(CAUSES[name])


def test_a_healthy_one_would_be_trained_and_nothing_is_left_behind(recorded, explain, attempt, folder):
    options = recorded(attempt("a1").spans)
    lines = explain("r-a1", *options)
    assert lines[0] == "rollout r-a1 would be trained: 2 calls, 5 sampled tokens"
    assert lines[2].endswith("succeeded in 10.0 s · policy math · reward 1 · 7 spans")
    assert lines[3].split() == ["call", "after", "agent", "prompt", "sampled", "version", "would", "be", "credit"]
    assert "5 sampled tokens recorded, 5 accounted for: it balances" in lines
    assert sorted(path.name for path in folder.iterdir()) == ["lightning.toml", "spans.jsonl"]


def test_it_is_what_build_makes_of_the_same_file(recorded, explain, attempt, folder, monkeypatch):
    options = recorded([*attempt("a1").spans, *attempt("b1", reward=None).spans])
    told = {r["rollout_id"]: r for r in json.loads("\n".join(explain("*", *options, "--json")))["rollouts"]}
    monkeypatch.chdir(folder)
    command = ["build", *options, "--config", "lightning.toml", "--out", "samples.jsonl"]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    built = {sample["attempt_id"] for sample in samples if "attempt_id" in sample}
    assert built == {"a1", "other"}
    assert built == {f[2:] for f, rollout in told.items() if rollout["verdict"] == "would be trained"}


def test_an_attempt_of_which_the_file_has_no_end(recorded, explain, attempt):
    a1 = attempt("a1")
    first = explain("r-a1", *recorded([s for s in a1.spans if s.span_id != a1.span_id("root")]))[0]
    assert first.startswith("rollout r-a1 would not be trained: still running: attempt a1 has not ended")
    assert "record it to its end" in first


def test_spans_that_started_and_are_not_in_the_file_are_counted(recorded, explain, attempt):
    a1 = attempt("a1")
    a1.ids |= {semconv.SEQUENCE: "s", semconv.SEQUENCE_NUMBER: 1, semconv.SEQUENCE_STARTED: 9}
    first = explain("r-a1", *recorded(a1.spans))[0]
    assert "but spans missing: 2 spans of attempt a1 had started and are not among those that were read" in first


def test_several_files_and_gzip_and_what_was_left_out(recorded, explain, attempt, folder, otlp_line):
    a1 = attempt("a1").spans
    recorded(a1[:3])
    (folder / "rest.jsonl.gz").write_bytes(gzip.compress((otlp_line(a1[3:]) + "\nnot json\n").encode()))
    files = ("--spans", str(folder / "spans.jsonl"), "--spans", str(folder / "rest.jsonl.gz"))
    lines = explain("r-a1", *files)
    assert lines[0] == "rollout r-a1 would be trained: 2 calls, 5 sampled tokens"
    assert lines[lines.index("left out") + 1].startswith("- rest.jsonl.gz: line 2 is not JSON")


def test_the_list_and_the_newest(recorded, explain, attempt):
    options = recorded(attempt("a1", begins_s=60).spans)
    assert [line.split()[0] for line in explain(*options)[1:3]] == ["r-a1", "r-other"]
    assert explain("--last", *options)[0].startswith("rollout r-a1 would be trained")


def test_the_page_is_drawn_from_a_file(recorded, explain, attempt, folder):
    explain("r-a1", *recorded(attempt("a1").spans), "--html", str(folder / "tree.html"))
    assert "would be trained" in (folder / "tree.html").read_text()


def test_what_cannot_be_read_is_one_sentence(recorded, explain, attempt, folder):
    options = recorded(attempt("a1").spans)
    assert "there is no rollout, attempt or task 'r-b'" in " ".join(explain("r-b", *options, expect=2))
    assert "spans.jsonl: the nearest are" in " ".join(explain("r-a7", *options, expect=2, columns=400))
    both = " ".join(explain("r-a1", *options, "--state-dir", str(folder), expect=2, columns=400))
    assert "--spans and --state-dir are two places to read from" in both
    assert "a daemon's folder is --state-dir" in " ".join(explain("--spans", str(folder), expect=2, columns=400))
    assert "cannot read the spans" in " ".join(explain("--spans", str(folder / "none"), expect=2, columns=400))


def test_a_reward_that_only_a_store_could_correct_is_refused_as_in_build(
    recorded, explain, attempt, folder, monkeypatch
):
    settings = folder / "lightning.toml"
    reward = "reward = { reward = { weight = 1.0, correct = true } }\n"
    judge = '[[judge]]\nname = "reward"\nkind = "program"\ncommand = ["true"]\nchecked_by = ["right"]\n'
    settings.write_text(settings.read_text() + reward + judge)
    options = recorded(attempt("a1", judge="reward").spans)
    sentence = (
        "reward 'reward' is corrected by what a daemon's store knows of its judge, and files of spans have no store"
    )
    assert f"no reward: {sentence}" in explain("r-a1", *options)[0]
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["build", *options, "--out", "s.jsonl"], env={"COLUMNS": "300"})
    assert (done.exit_code, sentence in done.output) == (1, True)

"""``lightning-trainer build``, from the files that it reads to the files that others read."""

import base64
import hashlib
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from lightning_instrumentation import semconv
from typer.testing import CliRunner

import lightning_trainer
from lightning_trainer.cli.app import app
from lightning_trainer.config import PolicyConfig
from lightning_trainer.dataset.formats.json_lines import read_samples_json_lines
from lightning_trainer.dataset.formats.parquet import read_ledger, read_samples_parquet
from lightning_trainer.dataset.rows import SAMPLES
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.samples.batches import build_batch
from lightning_trainer.samples.transitions.causes import span_parents
from lightning_trainer.store import SqliteStore

PAGE = (Path(__file__).parents[3] / "docs" / "build.md").read_text(encoding="utf-8")
CALLS = (
    {
        "prompt_ids": [1, 2],
        "response_ids": [3],
        "logprobs": [-0.5],
        "attempt": "a",
        "group": "g",
        "attempt_reward": 1.0,
    },
    {
        "prompt_ids": [1, 2],
        "response_ids": [4],
        "logprobs": [-0.5],
        "attempt": "b",
        "group": "g",
        "attempt_reward": 0.0,
    },
)


@pytest.fixture
def folder(tmp_path, monkeypatch, otlp_line, two_attempts) -> Path:
    """The working folder of someone who has a file of spans and a configuration."""
    (tmp_path / "traces.jsonl").write_text("".join(f"{otlp_line([span])}\n" for span in two_attempts))
    (tmp_path / "calls.jsonl").write_text("".join(f"{json.dumps(call)}\n" for call in CALLS))
    (tmp_path / "lightning.toml").write_text(
        '[[policy]]\nname = "math"\nagents = ["solver", "agent"]\nmodel = "random:tiny"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def run(command: str, *, exit_code: int = 0) -> str:
    done = CliRunner().invoke(app, ["build", *shlex.split(command)])
    assert done.exit_code == exit_code, done.output
    return done.output


@pytest.mark.parametrize("mode", ["record", "evaluate"])
def test_what_was_recorded_for_a_dataset_is_built_and_evaluations_are_not(
    folder, otlp_line, two_attempts, mode
) -> None:
    spans = [replace(one, attributes={**one.attributes, semconv.ROLLOUT_MODE: mode}) for one in two_attempts]
    (folder / "recorded.jsonl").write_text("".join(f"{otlp_line([span])}\n" for span in spans))
    for purpose in ("rl", "sft", "dpo"):
        built = run(f"--spans recorded.jsonl --for {purpose} --out {purpose}.jsonl", exit_code=int(mode == "evaluate"))
        assert ("nothing to write" in built) is (mode == "evaluate")


def test_a_file_of_spans_becomes_the_samples_that_the_daemon_would_train(folder, two_attempts) -> None:
    output = run("--spans traces.jsonl --out samples.parquet")
    reading = read_spans(two_attempts)
    policy = PolicyConfig(name="math", agents=("solver",), model="random:tiny")
    built = build_batch(
        reading.calls, reading.attempts, reading.evaluations, policy, 1, span_parents=span_parents(two_attempts)
    )
    assert built.batch is not None
    assert read_samples_parquet(folder / "samples.parquet") == built.batch.samples
    assert read_ledger(folder / "samples.parquet") == built.ledger
    assert re.search(r"solver +math@v3 +trained +5 +2 +sampled", output)
    assert "2 samples written to samples.parquet" in output


@pytest.mark.parametrize("named", ["", "--spans .lightning ", "--spans copy.db "])
async def test_what_was_taken_out_of_training_is_in_no_dataset(folder, two_attempts, named) -> None:
    async with SqliteStore(folder / ".lightning" / "lightning.sqlite") as store:
        await store.append(two_attempts)
        await store.drop("a1", reason="it leaked")
    shutil.copy(folder / ".lightning" / "lightning.sqlite", folder / "copy.db")
    assert re.search(r"dropped +2 +1 +dropped", run(f"{named}--for sft --out sft.jsonl"))
    (row,) = [json.loads(line) for line in (folder / "sft.jsonl").read_text().splitlines()]
    assert row["attempt_id"] == "a2"
    assert "nothing to write" in run(f"{named}--for dpo --out dpo.jsonl", exit_code=1)
    run(f"{named}--out samples.parquet", exit_code=1)


def _showing(spans, body: bytes, *, gone: bool = False):
    """The spans with an image in their prompt, or with the reference to one that is nowhere."""
    digest = hashlib.sha256(body).hexdigest()
    part = {"type": "blob", "mime_type": "image/png", "content": base64.b64encode(body).decode()}
    part = {"type": "uri", "mime_type": "image/png", "uri": f"sha256:{digest}"} if gone else part
    said = {semconv.INPUT_MESSAGES: json.dumps([{"role": "user", "parts": [part]}])}
    return [
        replace(one, attributes={**one.attributes, **said}) if semconv.INPUT_MESSAGES in one.attributes else one
        for one in spans
    ]


@pytest.mark.parametrize("source", ["store", "file"])
async def test_the_images_of_samples_lie_beside_them_and_without_its_image_a_call_is_no_sample(
    folder, otlp_line, attempt_spans, source
) -> None:
    """Before: calls whose images were gone were counted as trained, and of the others nobody had the images."""
    bodies = [b"\x89PNG a cat", b"\x89PNG a dog", b"\x89PNG a fox"]
    spans = [
        one
        for number, body in enumerate(bodies, start=1)
        for one in _showing(attempt_spans(f"a{number}", number, reward=number % 2), body, gone=number == 3)
    ]
    (folder / "lightning.toml").write_text(
        '[[policy]]\nname = "math"\nagents = ["solver"]\nmodel = "random:tiny-vision"\nnon_text = "keep"\n'
    )
    if source == "store":
        async with SqliteStore(folder / ".lightning" / "lightning.sqlite") as store:
            await store.append(spans)
    else:
        (folder / "shown.jsonl").write_text("".join(f"{otlp_line([span])}\n" for span in spans))
    output = run(f"{'--spans shown.jsonl ' if source == 'file' else ''}--out samples.parquet")
    samples = read_samples_parquet(folder / "samples.parquet")
    assert {sample.attempt_id for sample in samples} == {"a1", "a2"}
    assert re.search(r"dropped +\d+ +1 +media_missing", output)
    named = {sample.media[0].uri.removeprefix("sha256:"): body for sample, body in zip(samples, bodies, strict=False)}
    assert {path.name: path.read_bytes() for path in (folder / "samples.media").iterdir()} == named
    assert "2 images written to samples.media" in output


async def test_the_store_of_the_configuration_is_read_when_nothing_is_named(folder, two_attempts) -> None:
    async with SqliteStore(folder / ".lightning" / "lightning.sqlite") as store:
        await store.append(two_attempts)
    run("--out from_store.jsonl")
    run("--spans traces.jsonl --out from_file.jsonl")
    assert (folder / "from_store.jsonl").read_bytes() == (folder / "from_file.jsonl").read_bytes()


def test_a_secret_in_a_file_of_spans_is_in_no_dataset(folder) -> None:
    run("--spans traces.jsonl --for sft --out before.jsonl")
    words = json.loads((folder / "before.jsonl").read_text().splitlines()[0])["prompt"][-1]["content"]
    secret = "sk-" + "a1B2" * 12
    recorded = (folder / "traces.jsonl").read_text()
    assert words in recorded
    (folder / "traces.jsonl").write_text(recorded.replace(words, f"{words} {secret}"))
    run("--spans traces.jsonl --for sft --out after.jsonl")
    written = (folder / "after.jsonl").read_text()
    assert f"{words} [redacted key]" in written
    assert secret not in written


def test_records_of_calls_become_samples(folder) -> None:
    run("--calls calls.jsonl --out samples.jsonl")
    built = lightning_trainer.build_samples(CALLS, {"name": "math"})
    assert built.batch is not None
    assert read_samples_json_lines(folder / "samples.jsonl") == built.batch.samples
    assert json.loads((folder / "samples.jsonl").read_text().splitlines()[0])["schema"] == SAMPLES


def test_only_the_named_agents_are_built_and_the_others_are_in_the_ledger(folder) -> None:
    run("--spans traces.jsonl --out all.jsonl")
    run("--spans traces.jsonl --agent 'solv*' --agent judge --out some.jsonl")
    assert (folder / "all.jsonl").read_bytes() == (folder / "some.jsonl").read_bytes()
    output = run("--spans traces.jsonl --agent agent --out none.jsonl", exit_code=1)
    assert re.search(r"solver +math@v3 +dropped +5 +2 +not[_ ]selected", output)


@pytest.mark.process
def test_demonstrations_and_pairs_are_what_hugging_face_datasets_loads(folder, tmp_path) -> None:
    import datasets

    run("--spans traces.jsonl --for sft --min-reward 0.5 --format trl --out sft.jsonl")
    run("--spans traces.jsonl --for sft --tokens --format trl --out ids.jsonl")
    run("--spans traces.jsonl --for dpo --format trl --out dpo.jsonl")

    def loaded(name: str) -> list[dict]:
        found = datasets.load_dataset("json", data_files=str(folder / name), cache_dir=str(tmp_path / "cache"))
        return found["train"].to_list()  # pyright: ignore[reportArgumentType, reportIndexIssue, reportCallIssue, reportAttributeAccessIssue]

    question = [{"role": "user", "content": "2+3?"}]
    assert loaded("sft.jsonl") == [{"prompt": question, "completion": [{"role": "assistant", "content": "5"}]}]
    assert loaded("ids.jsonl")[1] == {"input_ids": [1, 2, 5, 6, 7], "completion_mask": [0, 0, 1, 1, 1]}
    assert loaded("dpo.jsonl") == [
        {
            "prompt": question,
            "chosen": [{"role": "assistant", "content": "5"}],
            "rejected": [{"role": "assistant", "content": "6"}],
        }
    ]


def test_examples_and_pairs_are_written_as_parquet(folder) -> None:
    import pyarrow.parquet as pq

    run("--spans traces.jsonl --for sft --out sft.parquet")
    run("--spans traces.jsonl --for dpo --out dpo.parquet")
    first = pq.read_table("sft.parquet").to_pylist()[0]
    assert json.loads(first["answer"]) == {"role": "assistant", "content": "5"}
    assert (first["prompt_ids"], first["fidelity"], first["reward"]) == ([1, 2], "exact", 1.0)
    (pair,) = pq.read_table("dpo.parquet").to_pylist()
    assert (pair["chosen_reward"], pair["rejected_reward"], pair["rejected_ids"]) == (1.0, 0.0, [5, 6, 7])


def test_conversations_are_written_for_others_and_weights_are_said(folder, otlp_line, attempt_spans) -> None:
    spans = attempt_spans("b1", 3, reward=1.0)
    before = [
        {"role": role, "parts": [{"type": "text", "content": said}]}
        for role, said in (("user", "hi"), ("assistant", "yo"))
    ]
    asked = json.dumps([*before, {"role": "user", "parts": [{"type": "text", "content": "2+3?"}]}])
    spans = [
        replace(one, attributes={**one.attributes, semconv.INPUT_MESSAGES: asked})
        if semconv.INPUT_MESSAGES in one.attributes
        else one
        for one in spans
    ]
    (folder / "shown.jsonl").write_text("".join(f"{otlp_line([span])}\n" for span in spans))
    output = run("--spans shown.jsonl --for sft --format messages --out m.jsonl")
    said = [("user", "hi"), ("assistant", "yo"), ("user", "2+3?"), ("assistant", "5")]
    messages: list[dict] = [{"role": role, "content": text} for role, text in said]
    messages[1]["weight"] = 0
    assert json.loads((folder / "m.jsonl").read_text()) == {"messages": messages}
    assert "not to be imitated: 1, in 1 conversations" in output
    run("--spans traces.jsonl --for dpo --format openai --out p.jsonl")
    assert json.loads((folder / "p.jsonl").read_text())["input"] == {"messages": [{"role": "user", "content": "2+3?"}]}


@pytest.mark.verl
def test_verl_loads_what_is_written_for_it(folder) -> None:
    from verl import DataProto

    run("--spans traces.jsonl --format verl --out batch.pkl")
    run("--spans traces.jsonl --advantages --out samples.jsonl")
    batch = DataProto.load_from_disk("batch.pkl").batch
    assert batch is not None
    # GRPO of the rewards 1 and 0: half a point from the mean, over the deviation of sqrt(1/2).
    expected = 0.5 / (0.5**0.5)
    assert batch["advantages"][0, 0].item() == pytest.approx(expected, rel=1e-4)
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert rows[1]["advantages"] == pytest.approx([0, 0, *[-expected] * 3], rel=1e-4)


def test_words_are_tokenized_again_where_that_is_asked_for(
    folder, tiny_model, otlp_line, attempt_spans, monkeypatch
) -> None:
    from lightning_trainer.retokenize.tokenizer import PolicyTokenizer

    prompt = PolicyTokenizer(tiny_model).prompt_ids([{"role": "user", "content": "2+3?"}], [])
    spans = [*attempt_spans("a1", 1, reward=1.0, exact=False), *attempt_spans("a2", 2, reward=0.0, exact=False)]
    for number, span in enumerate((spans[1], spans[3])):
        span.attributes.update({"gen_ai.usage.input_tokens": len(prompt) + number, "gen_ai.usage.output_tokens": 2})
    (folder / "words.jsonl").write_text(otlp_line(spans))
    (folder / "lightning.toml").write_text(f'[[policy]]\nname = "math"\nagents = ["solver"]\nmodel = "{tiny_model}"\n')

    output = run("--spans words.jsonl --for sft --retokenize --tokens --format trl --out ids.jsonl")
    assert "tokenized again from their words and verified: 1" in output
    assert f"the server counted {len(prompt) + 1} prompt tokens" in output
    (row,) = [json.loads(line) for line in (folder / "ids.jsonl").read_text().splitlines()]
    assert row["input_ids"] == [*prompt, ord("5") - ord("!") + 3, 2]

    output = run("--spans words.jsonl --retokenise --out samples.jsonl", exit_code=1)
    assert "retokenised: The ids were made again" in output
    assert "fidelity_too_low" in output
    assert not (folder / "samples.jsonl").exists()


def test_nothing_to_write_is_said_with_the_reasons(folder, otlp_line, attempt_spans) -> None:
    (folder / "one.jsonl").write_text(otlp_line(attempt_spans("a1", 1, reward=1.0)))
    output = run("--spans one.jsonl --out samples.parquet", exit_code=1)
    assert "group_too_small" in output
    assert "nothing to write" in output
    assert not (folder / "samples.parquet").exists()


@pytest.mark.parametrize(
    "options", ["--for sft --spans long.jsonl", "--for sft --format trl --spans long.jsonl", "--calls calls.jsonl"]
)
def test_without_a_policy_no_call_is_too_long(options, folder, otlp_line, attempt_spans) -> None:
    (folder / "lightning.toml").unlink()
    long = [attempt_spans(f"a{n}", n, reward=n, prompt=range(3000), response=(n,)) for n in (1, 2)]
    (folder / "long.jsonl").write_text("".join(f"{otlp_line(spans)}\n" for spans in long))
    calls = ({**call, "prompt_ids": [1] * 3000} for call in CALLS)
    (folder / "calls.jsonl").write_text("".join(f"{json.dumps(call)}\n" for call in calls))
    assert "over_length" not in run(f"{options} --out out.jsonl")
    assert len((folder / "out.jsonl").read_text().splitlines()) == 2


def test_without_a_store_it_says_how_to_get_one(tmp_path, monkeypatch) -> None:
    # Before: "cannot read the spans in .lightning: No such file or directory"
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["build", "--for", "sft", "--out", "x.jsonl"], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert "lightning.sqlite: start `lightning-trainer serve`, or name files with --spans" in done.stderr
    done = CliRunner().invoke(app, ["versions"], env={"COLUMNS": "300"})
    assert "there is no lightning.toml in this folder: name the configuration with --config" in done.stderr


def test_a_torn_last_line_is_said_and_the_rest_is_built(folder) -> None:
    with (folder / "traces.jsonl").open("a") as file:
        file.write('{"resourceSpans": [{"res')
    assert "in the middle of a document" in run("--spans traces.jsonl --out samples.jsonl")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("--spans none.jsonl --out s.jsonl", "No such file"),
        ("--spans lightning.toml --out s.jsonl", "not a file of OTLP JSON lines"),
        ("--spans traces.jsonl --out s.dat", "does not say how to write it"),
        ("--spans traces.jsonl --out s.jsonl --for fun", "--for fun: there are rl, sft, dpo"),
        ("--spans traces.jsonl --out s.jsonl --format csv", "--format csv: there are parquet"),
        ("--spans traces.jsonl --out s.parquet --for sft --format trl", "give it another ending than .parquet"),
        ("--spans traces.jsonl --out s.jsonl --format parquet", "give it another ending than .jsonl"),
        ("--spans traces.jsonl --out s.pkl --for sft --format verl", "not for sft"),
        ("--spans traces.jsonl --out s.jsonl --for dpo --format trl --tokens", "has no ids"),
        ("--spans traces.jsonl --out s.jsonl --format messages", "--format messages is what was said"),
        ("--spans traces.jsonl --out s.jsonl --for sft --format openai --tokens", "--format openai has no ids"),
        ("--spans traces.jsonl --out s.jsonl --min-reward 1", "--min-reward"),
        ("--spans traces.jsonl --out s.jsonl --tokens", "--tokens"),
        ("--spans traces.jsonl --out s.jsonl --for sft --advantages", "--advantages"),
        ("--spans traces.jsonl --out s.jsonl --engine http://x/v1", "go together"),
        ("--spans traces.jsonl --calls calls.jsonl --out s.jsonl", "--calls"),
        ("--calls traces.jsonl --out s.jsonl", "unknown key 'resourceSpans'"),
        ("--calls wrong.jsonl --out s.jsonl", "wrong.jsonl: line 2: prompt_ids is None; it is a list of token ids"),
        ("--spans traces.jsonl --out s.jsonl --agent ''", "--agent: an agent pattern is empty"),
        ("--spans traces.jsonl --out s.jsonl --policy sql", "there is no policy 'sql'"),
        ("--spans traces.jsonl --out traces.jsonl/s.jsonl", "cannot write"),
    ],
)
def test_a_mistake_is_one_sentence(folder, command: str, sentence: str) -> None:
    wrong = {**CALLS[1], "prompt_ids": None}
    (folder / "wrong.jsonl").write_text(f"{json.dumps(CALLS[0])}\n{json.dumps(wrong)}\n")
    output = run(command, exit_code=2)
    assert sentence in output
    assert "Traceback" not in output


def test_another_reward_than_the_policys_is_named_and_taken(folder, otlp_line, two_attempts) -> None:
    for root in two_attempts:
        for event in root.events:
            event.attributes[semconv.EVALUATION_NAME] = "feedback"
    (folder / "traces.jsonl").write_text("".join(f"{otlp_line([span])}\n" for span in two_attempts))
    (folder / "lightning.toml").unlink()
    said = (
        "calls that lack a reward: 2; there are evaluations named feedback, and the policy's reward is 'reward': "
        "choose with --reward NAME"
    )
    command = "--spans traces.jsonl --out d.jsonl --for"
    for wanted in ("dpo", "sft --min-reward 0.5"):
        assert said in run(f"{command} {wanted}", exit_code=1)
    assert said not in run(f"{command} sft")
    assert "1 preference pairs written" in run(f"{command} dpo --reward feedback")
    assert "2 demonstrations written" in run(f"{command} sft --min-reward -2 --reward feedback=-2")
    both = run(f"{command} sft --min-reward -2 --reward feedback=-2 --reward other=1", exit_code=1)
    assert "nobody in it was given other, so no weighted reward can be summed up" in both
    for wrong, why in (
        ("=1", "the weight of '' is 1.0"),
        ("feedback=much", "the weight of 'feedback' is 'much'; write"),
    ):
        assert f"--reward: {why}" in run(f"{command} dpo --reward {wrong}", exit_code=2)


def test_the_command_of_the_page_works_as_it_stands(folder) -> None:
    commands = re.findall(r"^lightning-trainer build (.+)$", PAGE, flags=re.MULTILINE)
    assert commands
    for command in commands:
        run(command)
    programs = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        exec(compile(program, "docs/build.md", "exec"), {})


def test_the_page_names_every_option_and_column() -> None:
    from lightning_trainer.dataset.formats.parquet import SCHEMAS

    help_text = CliRunner().invoke(app, ["build", "--help"], env={"COLUMNS": "200"}).output
    for option in set(re.findall(r"--[a-z][a-z-]+", help_text)) - {"--help"}:
        assert f"`{option}" in PAGE or f" {option} " in PAGE, option
    for schema, columns in SCHEMAS.items():
        assert f"### `{schema}`" in PAGE
        for name in columns.names:
            bare = name.removeprefix("chosen_").removeprefix("rejected_")
            assert f"`{bare}`" in PAGE, name

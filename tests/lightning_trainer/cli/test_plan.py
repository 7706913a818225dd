"""The command says what fits as people, as programs and as a page's table read it."""

import json
import tomllib

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.config import Config
from lightning_trainer.plan.source import _SIZES


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["plan", *arguments])
    return done.exit_code, done.output


def test_what_is_printed_can_be_pasted():
    status, said = run("--model", "meta-llama/Llama-3.1-8B", "--hardware", "8x80GB")
    assert status == 0
    assert "8,030,261,248 parameters" in said
    assert "LoRA adapter of rank 16" in said
    pasted = said[said.index("[engine]") :]
    assert Config.model_validate(tomllib.loads(pasted)).training.world_size == 4


def test_a_file_of_sizes_is_no_model_to_paste(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(_SIZES["Qwen/Qwen3-4B"]))
    for form in ((), ("--json",)):
        status, said = run("--model", str(tmp_path / "config.json"), "--hardware", "8x80GB", *form)
        assert status == 0
        toml = json.loads(said)[0]["toml"] if form else said[said.index("[engine]") :]
        assert tomllib.loads(toml)["policy"][0]["model"] == "OWNER/NAME"


def test_a_model_that_needs_permission_is_not_blamed_on_the_network(monkeypatch):
    def refused(*_):
        raise errors.GatedRepoError("403", response=httpx.Response(403, request=httpx.Request("GET", "https://hub")))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refused)
    status, said = run("--model", "owner/gated", "--hardware", "1x80GB")
    assert status == 2
    assert "needs its owner's permission: ask for it and `hf auth login`" in " ".join(said.split())


def test_as_json_every_part_is_there_and_what_does_not_fit_is_said():
    status, said = run("--model", "meta-llama/Llama-3.1-8B", "--hardware", "1x80GB", "--hardware", "1x24GB", "--json")
    rows = json.loads(said)
    assert status == 1, "on one of them nothing fits"
    assert [(row["hardware"], row["lora_rank"], row["fits"]) for row in rows] == [
        ("1x80GB", None, False),
        ("1x80GB", 16, True),
        ("1x24GB", None, False),
        ("1x24GB", 16, False),
    ]
    assert set(rows[1]["trainer_bytes"]) == {
        *("weights", "gradients", "optimizer", "copies", "activations", "logits", "context")
    }


def test_as_a_table_what_does_not_fit_is_a_failure_too():
    status, said = run("--model", "meta-llama/Llama-3.1-8B", "--hardware", "1x80GB", "--hardware", "1x24GB", "--table")
    assert status == 1, "on one of them nothing fits"
    head, line, *rows = said.splitlines()
    assert head.startswith("| model | hardware | trains |")
    assert line == "|---|---|---|---|---|---|---|---|"
    assert [row.split(" | ")[1:4] for row in rows if "does not fit" in row] == [
        ["1x80GB", "all weights", "does not fit"],
        ["1x24GB", "all weights", "does not fit"],
        ["1x24GB", "LoRA 16", "does not fit"],
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "Qwen/Qwen3-4B", "--hardware", "much"), "write GPUs x memory"),
        (("--model", "/nowhere", "--hardware", "1x80GB"), "there is no config.json at '/nowhere'"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, said):
    status, output = run(*arguments)
    assert status == 2
    assert said in output

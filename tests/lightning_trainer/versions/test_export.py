"""A version can be taken elsewhere: what is written loads by itself, and says which version it is."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.errors import ExportError
from lightning_trainer.serving.adapter import AdapterShape
from lightning_trainer.serving.publication import Probe, Publication, Tolerance
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.store.tables import participations
from lightning_trainer.training.checkpoint_folder import model_mark
from lightning_trainer.types import PolicyVersion, VersionState
from lightning_trainer.versions.archive import VersionArchive
from lightning_trainer.versions.export import RECORD, export_version, merge_version

CONFIG = '[[policy]]\nname = "support"\nagents = ["support"]\nmodel = "random:tiny"\n'


def stored(
    root: Path,
    weights: Path,
    model_dir: Path,
    version: int,
    adapter: AdapterShape | None = None,
    model: str | None = None,
) -> Path:
    probe = Probe(((1, 2, 3),), ((-0.5, -1.25),))
    tolerance = Tolerance(1e-3, 1e-4)
    archive = VersionArchive(root, model_dir=model_dir, model=model)
    archive.add(Publication("support", version, str(weights), "ab" * 16, 1, "float32", probe, tolerance, adapter))
    return archive.folder(version)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "chat_template.jinja"):
        (folder / name).write_text("{}")
    (folder / "model.safetensors").write_text("weights")
    return folder


@pytest.fixture
async def served(tmp_path, model, monkeypatch):
    """A state folder in which version 1 is served and kept, and version 0 is not kept."""
    (tmp_path / "lightning.toml").write_text(CONFIG)
    async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:
        for version in (0, 1):
            await store.put_version(PolicyVersion("support", version, version, VersionState.LIVE, version))
    stored(tmp_path / ".lightning" / "versions" / "support", model / "model.safetensors", model, 1)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["export", *arguments], env={"COLUMNS": "400"})
    return done.exit_code, done.output


@pytest.mark.parametrize("named", [(), ("1",), ("support@v1",)])
def test_the_served_version_is_what_transformers_loads_and_says_what_it_is(served, tmp_path, named) -> None:
    status, said = run(*named, "--out", "taken")
    assert status == 0, said
    out = tmp_path / "taken"
    assert f"support@v1 is in {out}: a whole model" in said
    assert f"vllm serve {out} --served-model-name support" in said
    names = {path.name for path in out.iterdir()}
    assert names == {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors", RECORD}
    assert (out / "model.safetensors").read_text() == "weights"
    record = json.loads((out / RECORD).read_text())
    assert (record["version"], record["model"], record["state"]) == ("support@v1", "random:tiny", "serving")


def test_a_version_is_of_the_model_that_it_was_trained_from_whatever_is_configured_now(served, tmp_path, model) -> None:
    root = tmp_path / ".lightning" / "versions" / "support"
    shutil.rmtree(root)
    stored(root, model / "model.safetensors", model, 1, AdapterShape(4, 8, ("q_proj",)), model="owner/first")
    status, said = run("--out", "taken")
    assert status == 0, said
    assert "an adapter of owner/first" in said
    assert "vllm serve owner/first --enable-lora" in said
    assert json.loads((tmp_path / "taken" / RECORD).read_text())["model"] == "owner/first"
    document = json.loads((tmp_path / "taken" / "adapter_config.json").read_text())
    assert document["base_model_name_or_path"] == "owner/first"


@pytest.mark.parametrize("same", [True, False])
async def test_a_model_that_was_moved_is_known_by_its_weights(served, tmp_path, model, same) -> None:
    """Its old folder is in what was stored; the configuration names the new one, or another model."""
    root = tmp_path / ".lightning" / "versions" / "support"
    shutil.rmtree(root)
    old = tmp_path / "gone"
    stored(root, model / "model.safetensors", old, 1, AdapterShape(4, 8, ("q_proj",)), model=str(old))
    (tmp_path / "lightning.toml").write_text(CONFIG.replace("random:tiny", str(model)))
    await began_from(model_mark(model) if same else "of another model", tmp_path)
    status, said = run("--out", "taken")
    assert status == 0, said
    found = str(model if same else old)
    assert f"an adapter of {found}" in said
    assert f"vllm serve {found} --enable-lora" in said
    assert json.loads((tmp_path / "taken" / RECORD).read_text())["model"] == found
    assert json.loads((tmp_path / "taken" / "adapter_config.json").read_text())["base_model_name_or_path"] == found


async def began_from(mark: str, tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:
        await store.begin_policy("support")
        await store.write(lambda connection: participations.start_from(connection, "support", mark))


async def test_an_adapter_is_not_added_to_other_weights_than_it_was_trained_on(served, tmp_path, model) -> None:
    """The folder is where it was, and something else has been saved in it since."""
    root = tmp_path / ".lightning" / "versions" / "support"
    shutil.rmtree(root)
    stored(root, model / "model.safetensors", model, 1, AdapterShape(4, 8, ("q_proj",)), model=str(model))
    (tmp_path / "lightning.toml").write_text(CONFIG.replace("random:tiny", str(model)))
    await began_from(model_mark(model), tmp_path)
    (model / "model.safetensors").write_text("changed")
    status, said = run("--out", "taken", "--merge")
    assert (status, f"{model} has other weights than the model that support@v1 was trained from" in said) == (2, True)
    assert not (tmp_path / "taken").exists()
    status, said = run("--out", "taken")
    assert (status, f"{model} has other weights now than those that support@v1 was trained from" in said) == (0, True)


PRECISION = '[engine]\ndtype = "float32"\nquantization = "fp8"\n'
ENGINE = f"""{PRECISION}max_model_len = 512
chat_template = "ours.jinja"
tool_call_parser = "hermes"
reasoning_parser = "qwen3"
"""
OF_THE_POLICY = f"""[policy.engine]
max_model_len = 512
chat_template = "ours.jinja"
tool_call_parser = "hermes"
reasoning_parser = "qwen3"
{PRECISION}"""


@pytest.mark.parametrize("engine", [ENGINE, OF_THE_POLICY])
def test_the_command_serves_a_whole_model_as_the_engine_did(served, tmp_path, engine) -> None:
    (tmp_path / "lightning.toml").write_text(CONFIG + engine)
    (tmp_path / "ours.jinja").write_text("our template")
    status, said = run("--out", "a folder")
    assert status == 0, said
    out = tmp_path / "a folder"
    assert said.splitlines()[-1] == (
        f"vllm serve '{out}' --served-model-name support --dtype float32 --max-model-len 512 --quantization fp8 "
        "--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3 --generation-config vllm"
    )
    assert (out / "chat_template.jinja").read_text() == "our template"


@pytest.mark.parametrize("given", [None, "ours.jinja"])
def test_named_chat_templates_come_along_unless_the_engine_was_given_one(tmp_path, model, given) -> None:
    named = model / "additional_chat_templates"
    named.mkdir()
    (named / "tool_use.jinja").write_text("with tools")
    (tmp_path / "ours.jinja").write_text("our template")
    folder = stored(tmp_path / "versions", model / "model.safetensors", model, 1)
    template = given and tmp_path / given
    export_version(folder, tmp_path / "taken", model="random:tiny", record={}, chat_template=template)
    found = sorted(str(path.relative_to(tmp_path / "taken")) for path in (tmp_path / "taken").rglob("*.jinja"))
    assert found == (
        ["chat_template.jinja"] if given else ["additional_chat_templates/tool_use.jinja", "chat_template.jinja"]
    )


@pytest.mark.parametrize(("rank", "reserved"), [(4, 8), (16, 16), (48, 64)])
def test_the_command_serves_an_adapter_as_the_engine_did(served, tmp_path, model, monkeypatch, rank, reserved) -> None:
    """The model is in this machine's cache; the version was stored on another, where the cache was elsewhere."""
    here = tmp_path / "cache" / "random-tiny"
    here.mkdir(parents=True)
    monkeypatch.setattr("lightning_trainer.cli.export.found_model", lambda spec, cache: here)
    (tmp_path / "lightning.toml").write_text(CONFIG + ENGINE)
    (tmp_path / "ours.jinja").write_text("our template")
    root = tmp_path / ".lightning" / "versions" / "support"
    shutil.rmtree(root)
    stored(root, model / "model.safetensors", model, 1, AdapterShape(rank, 8, ("q_proj",)), model="random:tiny")
    status, said = run("--out", "taken")
    assert status == 0, said
    assert said.splitlines()[-1] == (
        f"vllm serve {here} --enable-lora --lora-modules support={tmp_path / 'taken'} --max-lora-rank {reserved} "
        f"--chat-template {tmp_path / 'ours.jinja'} --dtype float32 --max-model-len 512 --quantization fp8 "
        "--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3 --generation-config vllm"
    )


def test_a_policy_that_was_renamed_is_pointed_at(served, tmp_path) -> None:
    (tmp_path / "lightning.toml").write_text(CONFIG.replace('name = "support"', 'name = "helpdesk"'))
    also = "the store also has policy 'support' (2 versions), which the configuration does not name"
    status, said = run("--out", "taken")
    assert (status, f"no version of 'helpdesk' is served yet; {also}" in said) == (2, True), said
    said = CliRunner().invoke(app, ["versions"], env={"COLUMNS": "400"}).output
    assert said.rstrip().endswith(also)
    (tmp_path / "lightning.toml").write_text(CONFIG)
    assert "also has" not in CliRunner().invoke(app, ["versions"]).output


def test_what_is_there_is_not_replaced(served, tmp_path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    status, said = run("--out", "taken")
    assert (status, "taken is there already and is not an empty folder" in said) == (2, True)
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["mine.txt"]
    status, said = run("--out", "lightning.toml")
    assert (status, "lightning.toml is there already" in said) == (2, True)
    assert not list(tmp_path.glob(".*.partial"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("0",), "does not keep the weights of version 0; kept are v1; [policy.versions] says"),
        (("7",), "policy 'support' has no version 7; kept are v1"),
        (("1", "--merge"), "support@v1 is a whole model, not an adapter; leave out --merge"),
        (("one",), "version 'one' is not a version"),
    ],
)
def test_what_cannot_be_taken_is_one_sentence(served, tmp_path, arguments, said) -> None:
    status, output = run(*arguments, "--out", "taken")
    assert (status, said in output) == (2, True), output
    assert not (tmp_path / "taken").exists()


def test_an_adapter_names_its_model_as_others_can_find_it(tmp_path, model) -> None:
    shape = AdapterShape(4, 8, ("q_proj",))
    folder = stored(tmp_path / "versions", model / "model.safetensors", model, 1, shape)
    for name, found in (("owner/name", "owner/name"), ("random:tiny", str(model))):
        out = tmp_path / name.replace("/", "-")
        export_version(folder, out, model=name, record={})
        assert {path.name for path in out.iterdir()} == {"adapter_config.json", "adapter_model.safetensors", RECORD}
        document = json.loads((out / "adapter_config.json").read_text())
        assert (document["base_model_name_or_path"], document["r"], document["lora_alpha"]) == (found, 4, 8)
    with pytest.raises(ExportError, match="is there already"):
        export_version(folder, out, model="owner/name", record={})


@pytest.mark.torch
def test_a_model_that_transformers_does_not_know_cannot_be_merged(tmp_path, model) -> None:
    (model / "config.json").write_text('{"architectures": ["OursForCausalLM"]}')
    folder = stored(tmp_path / "versions", model / "model.safetensors", model, 1, AdapterShape(4, 8, ("q_proj",)))
    with pytest.raises(ExportError, match=r"cannot be added to the weights of .*OursForCausalLM.*; leave out --merge"):
        merge_version(folder, tmp_path / "taken", model_dir=model, record={})
    assert not (tmp_path / "taken").exists()


def trained(tmp_path: Path, base: Path, model: str):
    """Store an adapter of the base as version 1, and return what PEFT computes with."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False),
    )
    adapted.save_pretrained(str(tmp_path / "peft"))
    root = tmp_path / ".lightning" / "versions" / "support"
    shutil.rmtree(root)
    shape = AdapterShape(4, 8, ("down_proj", "q_proj"))
    stored(root, tmp_path / "peft" / "adapter_model.safetensors", base, 1, shape, model=model)
    return adapted


@pytest.mark.torch
def test_a_merged_adapter_is_the_model_that_peft_computes_with(served, tmp_path, tiny_model) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    adapted = trained(tmp_path, tiny_model, "random:tiny")

    for arguments, what in (((), "an adapter of random:tiny"), (("--merge",), "a whole model")):
        status, said = run(*arguments, "--out", f"taken{len(arguments)}")
        assert (status, what in said) == (0, True), said
    ids = torch.tensor([AutoTokenizer.from_pretrained(tmp_path / "taken1")("What is it?")["input_ids"]])
    with torch.no_grad():
        right = adapted(ids).logits
        base = AutoModelForCausalLM.from_pretrained(tiny_model)
        plain = base(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "taken1")(ids).logits
        loaded = PeftModel.from_pretrained(base, str(tmp_path / "taken0"))(ids).logits
    assert (plain - right).abs().max() > 0.01
    assert (merged - right).abs().max() < 1e-5
    assert (loaded - right).abs().max() < 1e-5


@pytest.mark.torch
async def test_a_model_of_the_hub_is_merged_from_a_folder_with_the_same_weights(
    served, tmp_path, tiny_model, monkeypatch
) -> None:
    """The machine has no network: the configuration names what was copied there."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    trained(tmp_path, tiny_model, "owner/first")
    (tmp_path / "lightning.toml").write_text(CONFIG.replace("random:tiny", str(tiny_model)))
    await began_from(model_mark(tiny_model), tmp_path)
    status, said = run("--out", "taken", "--merge")
    assert status == 0, said
    assert json.loads((tmp_path / "taken" / RECORD).read_text())["model"] == "owner/first"


@pytest.mark.torch
def test_what_is_beside_merged_weights_stands_as_the_model_has_it(served, tmp_path, tiny_model) -> None:
    """transformers writes its own form of it, in which other servers miss what they look for, and refuses defaults of
    sampling that contradict each other, as many models have them."""
    base = tmp_path / "base"
    shutil.copytree(tiny_model, base)
    theirs = {**json.loads((base / "config.json").read_text()), "rope_theta": 10000.0, "torch_dtype": "float32"}
    theirs.pop("rope_parameters", None)
    (base / "config.json").write_text(json.dumps(theirs))
    (base / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.6, "eos_token_id": 2}')
    trained(tmp_path, base, "random:tiny")
    archived = tmp_path / ".lightning" / "versions" / "support" / "v00000001"
    merge_version(archived, tmp_path / "taken", model_dir=base, record={})
    for name in ("config.json", "generation_config.json"):
        assert (tmp_path / "taken" / name).read_text() == (base / name).read_text()

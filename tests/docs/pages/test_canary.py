"""docs/canary.md: its configuration is accepted, its command runs, its table has every setting and its default."""

import asyncio
import re
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.config import Config
from lightning_trainer.config.policies.versions import CanaryConfig
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.tables import canaries
from lightning_trainer.store.tables.canaries import CanaryRecord
from lightning_trainer.types import PolicyVersion, VersionState

PAGE = (Path(__file__).parents[3] / "docs" / "canary.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_configuration_is_accepted():
    (policy,) = Config.model_validate(tomllib.loads(blocks("toml")[0])).policy
    assert policy.canary == CanaryConfig()


def test_beside_the_live_version_the_reward_is_a_judges():
    told = blocks("toml")[1]
    (policy,) = Config.model_validate(tomllib.loads(told)).policy
    assert policy.canary is not None
    assert policy.canary.shadow
    with pytest.raises(ValidationError, match="reward 'score' has to come from a judge of single attempts"):
        Config.model_validate(tomllib.loads(told.replace('reward = "helpful"', 'reward = "score"')))
    grouped = told.replace('kind = "rubric"', 'kind = "group"').replace("criterion =", "# criterion =")
    with pytest.raises(ValidationError, match="and its judge is of kind 'group'; add one, or leave shadow out"):
        Config.model_validate(tomllib.loads(grouped))


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        ('kind = "group"\nmodel = "m"', "is of kind 'group'"),
        ('kind = "pairwise"\nmodel = "m"', "is of kind 'pairwise'"),
        ('kind = "reference_probability"', "is of kind 'reference_probability'"),
        ('kind = "program"\nfunction = "a:b"\nwhole_group = true', "is of kind 'program' with whole_group = true"),
    ],
)
def test_a_judge_that_cannot_compare_two_versions_is_refused(judge, said):
    told = f"{blocks('toml')[0]}\n[[judge]]\nname = 'reward'\n{judge}\n"
    with pytest.raises(ValidationError, match=f"has a canary, and the judge of reward 'reward' {said}, whose scores"):
        Config.model_validate(tomllib.loads(told))


def test_a_judge_that_is_an_old_version_of_the_same_policy_is_refused_where_one_engine_is_for_both():
    judge = (
        '[[judge]]\nname = "reward"\nkind = "rubric"\nmodel = "support@v0"\nbase_url = "http://localhost:8321/v1"\n'
        'criterion = [{ name = "kind", says = "It is kind." }]\n'
    )
    told = f"{blocks('toml')[0]}\n{judge}"
    with pytest.raises(ValidationError, match="asks its own old version 'support@v0', which is not served next to"):
        Config.model_validate(tomllib.loads(told))
    Config.model_validate(tomllib.loads(told.replace("localhost:8321", "other:8321")))
    Config.model_validate(tomllib.loads(told.replace("[policy.canary]", "lora = {}\n[policy.canary]")))


def test_the_table_has_every_setting_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", PAGE, flags=re.MULTILINE))
    assert rows.keys() == CanaryConfig.model_fields.keys()
    written = "\n".join(f"{name} = {value}" for name, value in rows.items())
    assert CanaryConfig.model_validate(tomllib.loads(written)) == CanaryConfig()


def test_the_command_shows_a_canary_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lightning.toml").write_text(blocks("toml")[0])
    evidence = {"rollouts": [12, 90], "rewards": [0, 80], "means": [0.5, 0.625]}
    evidence |= {"shadow": {"incomplete": 1, "dropped": 2, "failed": 3}}

    async def record():
        async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:
            await store.put_version(PolicyVersion("support", 0, 0, VersionState.LIVE, 1))
            await store.put_version(PolicyVersion("support", 1, 1, VersionState.TRAINED, 2))
            going_on = CanaryRecord("support", 1, 0, "going_on", 3, None, evidence, None)
            await store.write(lambda connection: canaries.put(connection, going_on))

    asyncio.run(record())
    (command,) = blocks("bash")
    done = CliRunner().invoke(app, command.split()[1:], env={"COLUMNS": "200"}, catch_exceptions=False)
    assert re.search(
        r"v1 .* canary .* going_on – \(0\), live 0\.625 \(80\), in shadow; 2 calls dropped, 3 failed", done.output
    ), done.output

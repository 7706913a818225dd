"""examples/shop: a visit is shown as the shop shows it, and what is ordered in the real browser decides the reward."""

import json
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import lightning_instrumentation as lt
import pytest

from lightning_trainer.cli.environments.installed import install
from lightning_trainer.config.file import load_config
from lightning_trainer.environments import Task
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.retokenize.tokenizer import PolicyTokenizer
from lightning_trainer.rollouts.step_runner import StepRunner
from tests.lightning_trainer.environments.openai_server import serving  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "shop"


@pytest.fixture
def example(bare_names, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What train.py has."""
    monkeypatch.chdir(ROOT)
    sys.path.insert(0, str(FOLDER))
    return runpy.run_path(str(FOLDER / "train.py"))


@pytest.fixture
def customer(bare_names) -> dict[str, Any]:
    sys.path.insert(0, str(FOLDER))
    return runpy.run_path(str(FOLDER / "customer.py"))


@pytest.fixture(scope="module")
def shop() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "shop.py"))


def next_click(messages: list[dict[str, Any]]) -> str:
    """What a good customer does next."""
    goal, page = messages[-1]["content"].split("\n\n", 1)
    (wanted,) = re.findall('"(.+)"', goal)
    what = "Order" if "In the cart" in page else f"Add {wanted}" if '"Cart: 0"' in page else "Cart: 1"
    line, number = re.findall(rf'^(button "{what}" \[(\d+)\])$', page, flags=re.MULTILINE)[0]
    return f"{line}: click({number})"


def test_what_is_shown_are_visits_that_order_what_is_wanted_and_nothing_of_the_shop(example, shop) -> None:
    shown = example["AGENT"]["examples"]
    for at in range(0, len(shown), 2):
        assert shown[at + 1]["content"] == next_click(shown[: at + 1])
    text = " ".join(one["content"] for one in shown)
    for words in (*shop["COLORS"].values(), *shop["THINGS"].values()):
        assert not [word for word in words if word in text.split()]


def test_held_out_visits_ask_for_what_training_never_has_and_the_order_alone_counts(shop) -> None:
    visits = {split: [shop["Shop"]() for _ in range(40)] for split in ("train", "held-out")}
    seen: dict[str, set[str]] = {}
    for split, some in visits.items():
        for seed, visit in enumerate(some):
            goal, page = visit.open(Task("web", "1", split, seed))
            assert goal == f'Order one "{visit.wanted}".'
            things = set(re.findall(r'"(.+?)"', re.findall(r"things = (\[.*?\])", page)[0]))
            assert visit.wanted in things
            seen.setdefault(split, set()).update(things)
    assert seen["train"].isdisjoint(seen["held-out"])
    visit = visits["train"][0]
    ordered: list[Any] = [None, [visit.wanted], [], [visit.wanted, visit.wanted], ["other"]]
    assert [visit.reward(lambda script, one=one: one) for one in ordered] == [None, 1.0, 0.0, 0.0, 0.0]


def test_the_customer_does_what_is_right_on_pages_of_training_alone(customer, shop) -> None:
    rows = customer["demonstrations"]()
    for row in rows:
        assert row["completion"] == [{"role": "assistant", "content": next_click(row["prompt"])}]
    text = json.dumps(rows)
    assert not [word for words in (shop["COLORS"], shop["THINGS"]) for word in words["held-out"] if f" {word}" in text]
    wait, imitation, rl = load_config(FOLDER / "lightning.toml").policy[0].stage
    assert (wait.data, wait.steps, rl.data, rl.steps) == (None, 1, None, None)
    assert imitation.data is not None
    assert imitation.data.read_text() == "".join(json.dumps(row) + "\n" for row in rows)
    assert imitation.steps == 4 * len(rows) // imitation.batch_size


def test_demonstrations_are_asked_as_the_agent_asks_and_fit_into_a_sample(example, customer) -> None:
    policy = load_config(FOLDER / "lightning.toml").policy[0]
    tokenizer = PolicyTokenizer(resolve_model(policy.model, model_cache()))
    opening = [{"role": "system", "content": example["AGENT"]["instructions"]}, *example["AGENT"]["examples"]]
    for row in customer["demonstrations"]():
        assert row["prompt"][:-1] == opening
        assert len(tokenizer.prompt_ids(row["prompt"], ())) + example["AGENT"]["max_tokens"] <= policy.max_sample_tokens
        assert len(tokenizer.text_ids(row["completion"][0]["content"])) < example["AGENT"]["max_tokens"]


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs Chromium")
def test_who_orders_what_is_wanted_has_every_visit_and_who_hurries_has_none(
    example, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.wait_until_there", lambda _: None)
    monkeypatch.setattr(StepRunner, "train", lambda self, *, steps: None)
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "http://127.0.0.1:9")
    if not (ROOT / ".venv-environments" / "web").exists():
        install("web", ROOT / ".venv-environments")
    lt.shutdown(0)
    lt.init("http://127.0.0.1:9", spool_dir=tmp_path)
    customers = {
        "4 of 4": lambda request: {"content": next_click(request["messages"])},
        "0 of 4": lambda request: {"content": "click(4)" if "Cart: 0" in str(request["messages"][-1]) else "click(1)"},
    }
    for solved, customer in customers.items():
        monkeypatch.setattr(sys, "argv", ["train.py", "--heldout", "4", "--concurrency", "2"])
        with serving(customer) as (url, _):
            example["main"]("A test.", "shop", example["ENVIRONMENT"], {**example["AGENT"], "base_url": url})
        assert f"after: {solved} held-out pages solved" in capsys.readouterr().out
    lt.shutdown(0)


def test_its_environment_is_named_relative_to_where_it_is_started(example) -> None:
    assert example["ENVIRONMENT"] == "web:examples/shop/shop.py"

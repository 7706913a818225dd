"""A real engine of adapters: each request runs on one of them, the newest that was proven, and nothing waits."""

import asyncio
import dataclasses
import time

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from lightning_trainer.errors import PublicationError
from lightning_trainer.serving.adapter import AdapterShape
from lightning_trainer.serving.publication import Probe, Publication, Tolerance
from lightning_trainer.serving.shared_memory import file_checksum

pytestmark = pytest.mark.engine

PROBE_IDS = ((5, 6, 7, 8, 9, 10, 11, 12), (40, 41, 42, 43, 44))
PROMPT = [10, 20, 30, 40]
MODULES = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")


class Adapter:
    """An adapter in plain PEFT, moved by hand."""

    def __init__(self, engine, policy: str, modules=MODULES, rank: int = 4) -> None:
        self.engine, self.policy = engine, policy
        self.shape = AdapterShape(rank, 2 * rank, tuple(modules))
        base = AutoModelForCausalLM.from_pretrained(engine.model_dir, dtype=torch.float32)
        self.model = get_peft_model(base, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(modules)))
        self.model.eval()

    def step(self, seed: int, scale: float = 0.2) -> None:
        source = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=source) * scale)

    def publication(self, version: int | None = None) -> Publication:
        version = self.engine.next_version() if version is None else version
        path = self.engine.weights.folder / f"{self.policy}-{version}-{time.monotonic_ns()}.safetensors"
        tensors = {
            name.replace(".default.", "."): value.detach().clone()
            for name, value in self.model.named_parameters()
            if value.requires_grad
        }
        save_file(tensors, path)
        return Publication(
            policy=self.policy,
            version=version,
            path=str(path),
            checksum=file_checksum(path),
            tensor_count=len(tensors),
            dtype="float32",
            probe=Probe(PROBE_IDS, self.score(PROBE_IDS)),
            tolerance=Tolerance(1e-3, 2e-4),
            adapter=self.shape,
        )

    def publish(self, seed: int) -> Publication:
        self.step(seed)
        publication = self.publication()
        report = self.engine.publish(publication)
        assert report.accepted, report.reason
        return publication

    def score(self, token_ids) -> tuple[tuple[float, ...], ...]:
        rows = []
        for ids in token_ids:
            with torch.no_grad():
                logprobs = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
            rows.append(tuple(logprobs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()))
        return tuple(rows)

    def gap(self, prompt, ids, logprobs) -> float:
        own = self.score([list(prompt) + ids])[0][len(prompt) - 1 :]
        return max(abs(a - b) for a, b in zip(logprobs, own, strict=True))


@pytest.fixture(scope="module")
def engine(start_engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    engine = start_engine(folder, policies=("writer", "critic"), lora_rank=5, max_model_len=2048)
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture(scope="module")
def writer(engine):
    return Adapter(engine, "writer")


@pytest.fixture(scope="module")
def critic(engine):
    return Adapter(engine, "critic", modules=("q_proj", "v_proj"), rank=2)


async def complete(client, policy="writer", prompt=PROMPT, headers=None, **options):
    body = {"model": policy, "prompt": prompt, "max_tokens": 12, "temperature": 1.0, "logprobs": 0, "ignore_eos": True}
    response = await client.post(
        "/v1/completions", json={**body, "return_token_ids": True, **options}, headers=headers or {}
    )
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert response.headers["x-lightning-policy"] == policy
    version = int(response.headers["x-lightning-policy-version"])
    return choice["token_ids"], choice["logprobs"]["token_logprobs"], version


async def names(client) -> set[str]:
    return {model["id"] for model in (await client.get("/v1/models")).json()["data"]}


async def test_before_the_first_publication_the_model_itself_answers(engine, writer):
    async with engine.client() as client:
        ids, logprobs, version = await complete(client)
    assert version == 0
    assert writer.gap(PROMPT, ids, logprobs) < 1e-3  # B is zero


async def test_a_published_adapter_answers_and_the_one_before_is_gone(engine, writer):
    first = writer.publish(seed=1)
    second = writer.publish(seed=2)
    async with engine.client() as client:
        ids, logprobs, version = await complete(client)
        assert version == second.version
        assert writer.gap(PROMPT, ids, logprobs) < 1e-3
        assert second.name in await names(client)
        assert first.name not in await names(client)
        gone = await client.post("/v1/completions", json={"model": first.name, "prompt": PROMPT, "max_tokens": 1})
    assert gone.status_code == 404
    for served, own in zip(engine.score(PROBE_IDS), writer.score(PROBE_IDS), strict=True):
        assert served == pytest.approx(own, abs=1e-3)


async def test_two_policies_share_the_model_and_not_their_adapters(engine, writer, critic):
    writer.publish(seed=3)
    critic.publish(seed=4)
    async with engine.client() as client:
        answers = await asyncio.gather(*(complete(client, policy) for policy in ("writer", "critic") * 4))
    for (ids, logprobs, _), own, other in zip(answers, (writer, critic) * 4, (critic, writer) * 4, strict=True):
        assert own.gap(PROMPT, ids, logprobs) < 1e-3 < 0.05 < other.gap(PROMPT, ids, logprobs)


async def test_a_cached_prompt_is_not_answered_from_another_adapter(engine, writer, critic):
    """The same prompt, many blocks long, under two policies, before and after a publication of each."""
    prompt = [(7 * i) % 240 + 5 for i in range(200)]
    async with engine.client() as client:
        for seed in (5, 6):
            writer.publish(seed)
            critic.publish(seed)
            for _ in range(2):
                for policy, own in (("writer", writer), ("critic", critic)):
                    ids, logprobs, _ = await complete(client, policy, prompt)
                    assert own.gap(prompt, ids, logprobs) < 1e-3


async def test_nor_one_that_came_again_under_the_same_number(engine, writer):
    """A number whose first weights were refused: the prefix cache must not answer from those."""
    prompt = [(11 * i) % 240 + 5 for i in range(200)]
    live = writer.publish(seed=7)
    writer.step(seed=8)
    wrong = writer.publication()
    probe = Probe((tuple(prompt),), writer.score([prompt]))
    shifted = Probe(probe.token_ids, tuple(tuple(value - 0.01 for value in row) for row in probe.logprobs))
    report = engine.publish(dataclasses.replace(wrong, probe=shifted))
    assert not report.accepted
    assert report.version == live.version
    assert "trainer and engine differ on the probe" in (report.reason or "")
    writer.step(seed=9)
    again = writer.publication(wrong.version)
    assert engine.publish(again).accepted
    async with engine.client() as client:
        ids, logprobs, version = await complete(client, prompt=prompt)
    assert version == wrong.version
    assert writer.gap(prompt, ids, logprobs) < 1e-3


async def test_a_stream_ends_on_the_adapter_it_began_with_and_nobody_waits_for_it(engine, writer):
    old = writer.publish(seed=10)
    async with engine.client() as client, engine.client() as other:
        body = {"model": "writer", "prompt": PROMPT, "max_tokens": 1500, "ignore_eos": True, "stream": True, "seed": 1}
        async with client.stream("POST", "/v1/completions", json={**body, "return_token_ids": True}) as stream:
            assert int(stream.headers["x-lightning-policy-version"]) == old.version
            lines = stream.aiter_lines()
            await anext(lines)
            new = await asyncio.to_thread(writer.publish, 11)
            *_, version = await complete(other)
            assert version == new.version
            still = await names(other)
            rest = [line async for line in lines]
        assert old.name in still, "the stream was over before the publication: make it longer"
        assert any("[DONE]" in line for line in rest)
        for _ in range(100):
            if old.name not in await names(other):
                break
            await asyncio.sleep(0.05)
        assert old.name not in await names(other)


async def test_an_old_version_answers_beside_the_live_one_while_it_is_held(engine, writer):
    old = writer.publish(seed=12)
    kept = dataclasses.replace(writer.publication(old.version), version=old.version)
    frozen = Adapter(engine, "writer")
    frozen.model.load_state_dict(writer.model.state_dict())
    new = writer.publish(seed=13)
    report = engine.wait(engine.process.hold(kept))
    assert report.accepted, report.reason
    async with engine.client() as client:
        asked = {"x-lightning-policy-version": str(old.version)}
        ids, logprobs, version = await complete(client, headers=asked)
        assert version == old.version
        assert frozen.gap(PROMPT, ids, logprobs) < 1e-3
        *_, live = await complete(client)
        assert live == new.version
        engine.wait(engine.process.drop("writer", old.version))
        gone = await client.post("/v1/completions", json={"model": "writer", "prompt": PROMPT}, headers=asked)
        assert gone.status_code == 404, "no other version answers for it"
        assert f"writer@v{old.version}" in gone.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "because"),
    [
        (lambda p, a: dataclasses.replace(p, checksum="0" * 32), "has the checksum"),
        (lambda p, a: dataclasses.replace(p, policy="painter"), "this engine serves 'writer', 'critic'"),
        (lambda p, a: dataclasses.replace(p, adapter=None), "holds all weights, and this engine serves adapters"),
        (lambda p, a: dataclasses.replace(p, adapter=AdapterShape(6, 12, MODULES)), "rank 6; this engine was started"),
        (lambda p, a: dataclasses.replace(p, adapter=AdapterShape(4, 8, MODULES[:3])), "tensors are not the model's"),
        (lambda p, a: dataclasses.replace(p, adapter=AdapterShape(3, 8, MODULES)), "has the shape"),
        (lambda p, a: dataclasses.replace(p, adapter=AdapterShape(4, 80, MODULES)), "differ on the probe"),
        (lambda p, a: dataclasses.replace(p, dtype="bfloat16"), "the engine computes in float32"),
        (lambda p, a: dataclasses.replace(p, path="/etc/hostname"), "is outside of"),
    ],
)
async def test_what_cannot_be_proven_is_refused_and_the_version_before_goes_on(engine, writer, change, because):
    live = engine.version()
    ids_before = engine.score(PROBE_IDS)
    adapter = Adapter(engine, "writer")
    adapter.step(seed=20)
    publication = adapter.publication()
    report = engine.publish(change(publication, adapter))
    assert not report.accepted
    assert because in (report.reason or "")
    assert engine.version() == live
    assert engine.score(PROBE_IDS) == ids_before
    async with engine.client() as client:
        assert publication.name not in await names(client)


def test_publishing_the_same_version_again_changes_nothing(engine, writer):
    publication = writer.publish(seed=14)
    assert engine.publish(publication).accepted
    other = dataclasses.replace(publication, checksum="1" * 32)
    assert "a version never changes" in (engine.publish(other).reason or "")


def test_scores_of_a_policy_that_is_not_here_are_refused(engine):
    with pytest.raises(PublicationError, match="the policy is 'painter'"):
        engine.wait(engine.process.score(PROBE_IDS, "painter"))

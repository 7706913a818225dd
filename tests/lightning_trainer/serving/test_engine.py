"""A real engine: exact tokens, weights that are proven, and a way back when they are not."""

import asyncio
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from lightning_trainer.errors import PublicationError
from lightning_trainer.serving.publication import Probe, Publication, Tolerance
from lightning_trainer.serving.shared_memory import file_checksum

pytestmark = pytest.mark.engine

PROBE_IDS = tuple(tuple((17 * s + 31 * i * i + 7 * i) % 250 + 5 for i in range(40)) for s in range(4))
TOLERANCE = Tolerance(max_abs=1e-3, mean_abs=2e-4)
PROMPT = [1, 50, 60, 70, 80, 90, 100, 110]


class Trainer:
    """Plain Hugging Face in the trainer's place: it perturbs its weights, writes them and scores the probe."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.model = LlamaForCausalLM.from_pretrained(engine.model_dir, dtype=torch.float32).eval()

    def step(self, seed: int, scale: float = 0.02) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)

    def tensors(self) -> dict[str, torch.Tensor]:
        return {n: t.contiguous().clone() for n, t in self.model.state_dict().items() if n != "lm_head.weight"}

    def publication(self, tensors: dict[str, torch.Tensor] | None = None) -> Publication:
        version = self.engine.next_version()
        path = self.engine.weights.path(version)
        tensors = self.tensors() if tensors is None else tensors
        save_file(tensors, path)
        probe = Probe(PROBE_IDS, tuple(tuple(row) for row in self.score(PROBE_IDS)))
        return Publication("tiny", version, str(path), file_checksum(path), len(tensors), "float32", probe, TOLERANCE)

    def score(self, token_ids) -> list[list[float]]:
        rows = []
        for ids in token_ids:
            with torch.no_grad():
                logprobs = self.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
            rows.append(logprobs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist())
        return rows


@pytest.fixture(scope="module")
def trainer(engine):
    """Follows the engine through the module: what it holds is what was published last."""
    return Trainer(engine)


@pytest.fixture(scope="module", autouse=True)
def one_publication_to_start_from(engine, trainer):
    """Whatever another module has left in the engine."""
    assert engine.publish(trainer.publication()).accepted


async def complete(client, **options) -> tuple[list[int], list[float], int]:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 0, "ignore_eos": True}
    response = await client.post("/v1/completions", json={**body, "return_token_ids": True, **options})
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return (
        choice["token_ids"],
        choice["logprobs"]["token_logprobs"],
        int(response.headers["x-lightning-policy-version"]),
    )


async def until_requests_run(client) -> None:
    async with asyncio.timeout(60):
        while not re.search(r"^vllm:num_requests_running.* [1-9]", (await client.get("/metrics")).text, re.MULTILINE):
            await asyncio.sleep(0.01)


async def test_sampled_tokens_and_logprobs_are_those_of_the_model(engine, trainer):
    async with engine.client() as client:
        ids, logprobs, version = await complete(client, temperature=1.0, seed=5)
    assert version == engine.version()
    assert len(ids) == 12
    own = trainer.score([PROMPT + ids])[0][len(PROMPT) - 1 :]
    assert max(abs(a - b) for a, b in zip(logprobs, own, strict=True)) < 1e-3


def test_scores_are_those_of_the_model_and_the_same_every_time(engine, trainer):
    first, again = engine.score(PROBE_IDS), engine.score(PROBE_IDS)
    own = trainer.score(PROBE_IDS)
    assert first == again
    assert max(abs(a - b) for row, o in zip(first, own, strict=True) for a, b in zip(row, o, strict=True)) < 1e-3


@pytest.mark.parametrize("token_ids", [[[1]], [[1, 10**6]], [[1, -1]], [list(range(5, 250)) * 2]])
def test_what_cannot_be_scored_is_refused_and_the_engine_lives(engine, token_ids):
    with pytest.raises(PublicationError, match="sequence 0"):
        engine.score(token_ids)
    assert engine.score([[1, 2, 3]])


async def test_a_publication_changes_what_is_served(engine, trainer):
    async with engine.client() as client:
        before, _, old = await complete(client, temperature=1.0, seed=11)
        trainer.step(seed=1, scale=0.1)
        publication = trainer.publication()
        report = engine.publish(publication)
        after, logprobs, new = await complete(client, temperature=1.0, seed=11)
    assert report.accepted, report.reason
    assert report.max_abs_diff is not None
    assert report.max_abs_diff < 1e-3
    assert report.movement == pytest.approx(1, abs=0.01)
    assert set(report.seconds) == {"gate", "update", "probe", "total"}
    assert (old, new) == (publication.version - 1, publication.version)
    assert before != after
    own = trainer.score([PROMPT + after])[0][len(PROMPT) - 1 :]
    assert max(abs(a - b) for a, b in zip(logprobs, own, strict=True)) < 1e-3


async def test_a_prompt_that_was_cached_is_not_answered_from_the_version_before(engine, trainer):
    prompt = [(7 * i) % 240 + 5 for i in range(200)]
    async with engine.client() as client:
        await complete(client, prompt=prompt)
        trainer.step(seed=2)
        assert engine.publish(trainer.publication()).accepted
        ids, logprobs, _ = await complete(client, prompt=prompt)
    own = trainer.score([prompt + ids])[0][len(prompt) - 1 :]
    assert max(abs(a - b) for a, b in zip(logprobs, own, strict=True)) < 1e-3


def test_publishing_the_same_version_again_changes_nothing(engine, trainer):
    trainer.step(seed=3)
    publication = trainer.publication()
    assert engine.publish(publication) == engine.publish(publication)
    assert engine.version() == publication.version


def tampered_bytes(publication: Publication) -> Publication:
    path = Path(publication.path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 0x40
    path.write_bytes(content)
    return publication


def other_values(publication: Publication) -> Publication:
    """What a mix-up does: a whole file of the right model, checksum and all, and not the trainer's values."""
    path = Path(publication.path)
    tensors = load_file(path)
    name = "model.layers.1.mlp.down_proj.weight"
    save_file({**tensors, name: tensors[name] * 1.5}, path)
    return replace(publication, checksum=file_checksum(path))


def rewritten(publication: Publication, tensors: dict[str, torch.Tensor]) -> Publication:
    save_file(tensors, publication.path)
    return replace(publication, checksum=file_checksum(publication.path), tensor_count=len(tensors))


def a_tensor_renamed(publication: Publication) -> Publication:
    tensors = load_file(publication.path)
    tensors["model.extra.weight"] = tensors.pop("model.norm.weight")
    return rewritten(publication, tensors)


def a_tensor_cut(publication: Publication) -> Publication:
    tensors = load_file(publication.path)
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()
    return rewritten(publication, tensors)


def half_precision(publication: Publication) -> Publication:
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(publication.path).items()}
    return rewritten(publication, tensors)


def outside(publication: Publication) -> Publication:
    elsewhere = Path(publication.path).parent.parent / "lightning-test-elsewhere.safetensors"
    shutil.copy(publication.path, elsewhere)
    return replace(publication, path=str(elsewhere))


def absent(publication: Publication) -> Publication:
    Path(publication.path).unlink()
    return publication


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (tampered_bytes, "checksum"),
        (other_values, "trainer and engine differ on the probe"),
        (a_tensor_renamed, r"missing: model\.norm\.weight"),
        (a_tensor_cut, r"model\.norm\.weight has the shape \[63\]"),
        (half_precision, "is bfloat16; the engine computes in float32"),
        (outside, "outside of"),
        (absent, "cannot be read"),
        (lambda publication: replace(publication, policy="other"), "policy is 'other'"),
        (lambda publication: replace(publication, dtype="bfloat16"), "computes in float32"),
        (lambda publication: replace(publication, tensor_count=3), "the trainer wrote 3"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_a_spoilt_publication_is_refused_and_serving_goes_on_as_before(engine, trainer, spoil, reason):
    trainer_before = trainer.tensors()
    version = engine.version()
    async with engine.client() as client:
        before = await complete(client)
        trainer.step(seed=4)
        publication = spoil(trainer.publication())
        report = engine.publish(publication)
        after = await complete(client)
    (Path(publication.path)).unlink(missing_ok=True)
    trainer.model.load_state_dict(trainer_before | {"lm_head.weight": trainer_before["model.embed_tokens.weight"]})
    assert not report.accepted
    assert report.version == version
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(report.reason)
    assert after == before


def test_weights_that_never_arrive_are_refused_though_they_agree_within_the_tolerance(engine, trainer):
    trainer_before = trainer.tensors()
    trainer.step(seed=6, scale=3e-6)
    publication = rewritten(trainer.publication(), trainer_before)
    report = engine.publish(publication)
    trainer.model.load_state_dict(trainer_before | {"lm_head.weight": trainer_before["model.embed_tokens.weight"]})
    Path(publication.path).unlink()
    assert report.max_abs_diff is not None
    assert report.max_abs_diff < TOLERANCE.max_abs
    assert not report.accepted
    assert "stale" in (report.reason or "")


async def test_running_requests_end_on_the_version_that_they_began_with(engine, trainer):
    options = {"max_tokens": 240, "temperature": 1.0}
    async with engine.client() as client:
        old = engine.version()
        old_model = trainer.tensors()
        # Made before the requests: while it was made, a quick engine would have answered them all.
        trainer.step(seed=7)
        publication = trainer.publication()
        first = [asyncio.create_task(complete(client, **options, seed=i)) for i in range(8)]
        await until_requests_run(client)
        publishing = asyncio.create_task(asyncio.to_thread(engine.publish, publication))
        second = []
        while not publishing.done():
            second.append(asyncio.create_task(complete(client, max_tokens=5, temperature=1.0, seed=len(second))))
            await asyncio.sleep(0.01)
        assert (await publishing).accepted
        answers = await asyncio.gather(*first, *second)
    old_scores = Trainer(engine)
    old_scores.model.load_state_dict(old_model | {"lm_head.weight": old_model["model.embed_tokens.weight"]})
    assert {version for _, _, version in answers} == {old, publication.version}
    for ids, logprobs, version in answers:
        scorer = old_scores if version == old else trainer
        own = scorer.score([PROMPT + ids])[0][len(PROMPT) - 1 :]
        assert max(abs(a - b) for a, b in zip(logprobs, own, strict=True)) < 1e-3


async def test_a_stream_is_sampled_by_one_version(engine, trainer):
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 200, "temperature": 1.0, "seed": 9, "ignore_eos": True}
    # Made before the stream begins: while it was made, a quick engine would have come to the stream's end.
    trainer.step(seed=8)
    publication = trainer.publication()
    async with (
        engine.client() as client,
        client.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream,
    ):
        assert stream.status_code == 200
        old = int(stream.headers["x-lightning-policy-version"])
        lines = stream.aiter_lines()
        await anext(lines)
        publishing = asyncio.create_task(asyncio.to_thread(engine.publish, publication))
        await asyncio.sleep(0.02)
        async with engine.client() as other:
            version = (await other.get("/lightning/version")).json()["version"]
        assert version == old
        rest = [line async for line in lines]
    assert rest[-2].endswith("[DONE]") or rest[-1].endswith("[DONE]")
    assert (await publishing).accepted
    assert engine.version() == publication.version > old


@pytest.mark.parametrize("level", [1, 2])
def test_a_call_waits_while_the_engine_sleeps_and_is_answered_by_the_version_that_slept(engine, trainer, level):
    """vLLM on the CPU stops scheduling and keeps its memory: what is held, and what is proven after, is the same."""
    trainer.step(seed=40 + level)
    published = trainer.publication()
    assert engine.publish(published).accepted
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}

    async def sleep_and_call() -> tuple[str, str]:
        async with engine.client() as client:
            before = (await client.post("/v1/completions", json=body)).raise_for_status()
            await engine.process.sleep(level)
            await engine.process.sleep(level)
            held = asyncio.create_task(client.post("/v1/completions", json=body))
            await asyncio.sleep(1.0)
            assert not held.done()
            assert await engine.process.version() == published.version
            refused = await engine.process.publish(replace(published, version=published.version + 1000))
            assert refused.reason == "the engine sleeps; wake it first"
            await engine.process.wake()
            after = (await held).raise_for_status()
            assert after.headers["x-lightning-policy-version"] == str(published.version)
            return before.json()["choices"][0]["text"], after.json()["choices"][0]["text"]

    before, after = engine.wait(sleep_and_call())
    assert before == after
    assert engine.score(PROBE_IDS)[0] == pytest.approx(published.probe.logprobs[0], abs=1e-3)


@pytest.mark.gpu
def test_on_a_gpu_a_sleeping_engine_holds_little_of_its_memory(start_engine, tmp_path):
    def used_mib() -> float:
        said = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True
        ).stdout
        return float(said.splitlines()[0])

    of_others = used_mib()
    engine = start_engine(tmp_path, sleeps=True, gpu_memory_utilization=0.6)
    try:
        awake = used_mib() - of_others
        engine.wait(engine.process.sleep(1))
        asleep = used_mib() - of_others
        engine.wait(engine.process.wake())
        assert asleep < awake / 4
        assert len(engine.score(PROBE_IDS)) == len(PROBE_IDS)
    finally:
        engine.close()

"""A span that comes in is stored in the form that everything later finds it by."""

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.ingest.http.otlp import encode_request, otlp_router
from lightning_trainer.types import AttemptState, Span

_HEADERS = {"content-type": "application/x-protobuf"}
_IDS = {semconv.ROLLOUT_ID: "r", semconv.ATTEMPT_ID: "a"}


@pytest.fixture
def arrived(store, client_of):
    """Send spans to the receiver, then return those of attempt ``a`` in the store."""
    client = client_of(otlp_router(store))

    async def arrived(*spans: Span) -> list[Span]:
        answer = await client.post("/v1/traces", content=encode_request(spans), headers=_HEADERS)
        assert answer.status_code == 200
        return list(await store.spans_of_attempts(["a"]))

    return arrived


def _span(number: int, parent: int | None = None, *, resource=None, scope="spring", **attributes) -> Span:
    parent_id = None if parent is None else f"{parent:016x}"
    named = {name.replace("__", "."): value for name, value in attributes.items()}
    return Span(
        *("1" * 32, f"{number:016x}", parent_id, "s", number, number + 1), named, scope=scope, resource=resource or {}
    )


@pytest.mark.parametrize(
    ("mark", "ended"), [("true", True), ("True", True), (True, True), ("false", False), (1, False)]
)
async def test_the_mark_of_a_root_may_be_text(arrived, store, mark, ended: bool) -> None:
    await arrived(_span(1, **_IDS, **{semconv.ROLLOUT_ROOT: mark}))
    (attempt,) = await store.attempts()
    assert (attempt.state is AttemptState.SUCCEEDED) is ended

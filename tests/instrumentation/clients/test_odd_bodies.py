"""Bodies that are legal and unusual: they are read as the caller's library reads them, and handed on as they came."""

import gzip
import json
import sys
import zlib

import httpx
import httpx2
import pytest
from lightning_instrumentation import semconv

_stubs = sys.modules["lightning_test_stubs"]
ASKED = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}


class Canned(_stubs._Server):
    """Answers every request with the same bytes, all at once."""

    def __init__(self) -> None:
        canned = self

        class Handler(_stubs._Handler):
            def do_POST(self) -> None:
                self.read()
                self.answer(200, canned.body, {"content-type": "text/event-stream", **canned.headers})

        super().__init__(Handler)
        self.body = b""
        self.headers: dict[str, str] = {}

    def read_by(self, library, body: bytes, **headers: str) -> bytes:
        self.body, self.headers = body, headers
        with library.stream("POST", f"{self.url}/v1/chat/completions", json=ASKED) as response:
            return b"".join(response.iter_bytes())


@pytest.fixture
def canned():
    server = Canned()
    server.start()
    yield server
    server.stop()


def event(content: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"id": "c1", "model": "m", "choices": [choice]}).encode() + b"\n\n"


FIRST, LAST = event("one "), event("two", "stop") + b"data: [DONE]\n\n"


def read(recording) -> tuple[str, bool]:
    """What the span has of the answer, and whether it is complete."""
    attributes = recording.span("chat").attributes
    parts = json.loads(attributes[semconv.OUTPUT_MESSAGES])[0]["parts"]
    return parts[0]["content"], attributes[semconv.STREAM_COMPLETE]


@pytest.mark.parametrize("odd", [b"data: ping\n\n", b"data: \xff\n\n", b"event: ping\ndata: [1\n\n"])
def test_an_event_that_is_not_json_takes_no_other_with_it(recording, canned, odd):
    body = FIRST + odd + LAST
    assert canned.read_by(httpx, body) == body
    assert read(recording) == ("one two", True)


def raw_deflate(data: bytes) -> bytes:
    squeeze = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return squeeze.compress(data) + squeeze.flush()


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("deflate", lambda *parts: zlib.compress(b"".join(parts))),
        ("deflate", lambda *parts: raw_deflate(b"".join(parts))),
        ("identity, gzip", lambda *parts: gzip.compress(b"".join(parts))),
        ("deflate, gzip", lambda *parts: gzip.compress(zlib.compress(b"".join(parts)))),
    ],
    ids=["zlib", "without zlib's header", "one of two", "two"],
)
def test_what_the_library_decodes_is_read(recording, canned, encoding, encode):
    assert canned.read_by(httpx, encode(FIRST, LAST), **{"content-encoding": encoding}) == FIRST + LAST
    assert read(recording) == ("one two", True)


@pytest.mark.parametrize(
    ("library", "module"), [(httpx, "zstandard"), (httpx2, "backports.zstd"), (httpx2, "compression.zstd")]
)
def test_frames_of_zstd_are_read_by_what_the_library_has_loaded(recording, canned, library, module):
    zstd = pytest.importorskip(module)
    if "zstd" not in library._decoders.SUPPORTED_DECODERS:
        pytest.skip("loaded after the library")
    body = zstd.compress(FIRST) + zstd.compress(LAST)
    assert canned.read_by(library, body, **{"content-encoding": "zstd"}) == FIRST + LAST
    assert read(recording) == ("one two", True)

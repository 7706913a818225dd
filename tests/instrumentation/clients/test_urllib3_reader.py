"""However urllib3's response is read, the answer is captured whole, and its reader gets what they get without us."""

import io

import lightning_instrumentation as lt
import pytest
import requests
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import unpack_token_ids
from lightning_instrumentation.wire.call import silence


def in_parts(raw) -> bytes:
    """Each method after another; what is left is read at once."""
    buffer = bytearray(5)
    taken = [raw.read(3), raw.read(0), raw.readline(), raw.read1(4), bytes(buffer[: raw.readinto(buffer)])]
    return b"".join([*taken, raw.read()])


WAYS = {
    "TextIOWrapper": lambda raw: in_text(raw),
    "BufferedReader": lambda raw: io.BufferedReader(raw).read(),
    "read": lambda raw: raw.read(),
    "read1": lambda raw: b"".join(iter(lambda: raw.read1(50), b"")),
    "read1 all": lambda raw: b"".join(iter(raw.read1, b"")),
    "readinto": lambda raw: in_buffers(raw),
    "readline": lambda raw: b"".join(iter(raw.readline, b"")),
    "readline of 9": lambda raw: b"".join(iter(lambda: raw.readline(9), b"")),
    "readlines": lambda raw: b"".join(raw.readlines()),
    "iteration": lambda raw: b"".join(raw),
    "stream": lambda raw: b"".join(raw.stream(7)),
    "data": lambda raw: raw.data,
    "data again": lambda raw: raw.data and raw.data,
    "in parts": in_parts,
}


def in_text(raw) -> bytes:
    raw.auto_close = False  # as urllib3's guide says: else it calls itself closed before the wrapper has read the end
    return "".join(io.TextIOWrapper(raw, encoding="utf-8")).encode()


def in_buffers(raw) -> bytes:
    buffer, taken = bytearray(11), []
    while count := raw.readinto(buffer):
        taken.append(bytes(buffer[:count]))
    return b"".join(taken)


def ask(url: str, read, stream: bool):
    document = {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        **({"stream": True} if stream else {}),
    }
    with requests.post(url, json=document, stream=True, headers={"accept-encoding": "identity"}) as response:
        return read(response.raw)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("trusted", [False, True], ids=["stranger", "trusted"])
@pytest.mark.parametrize("read", WAYS.values(), ids=WAYS)
def test_every_way_to_read_is_watched(receiver, model, tmp_path, read, trusted, stream):
    lt.shutdown(0.0)
    lt.init(receiver.url, spool_dir=tmp_path, trusted_hosts=[model.url] if trusted else [])
    url = f"{model.base_url}/chat/completions"
    seen = ask(url, read, stream)
    with silence():
        assert seen == ask(url, read, stream)
    lt.shutdown()
    (span,) = receiver.spans("chat")
    assert "answer0 to hello" in span.attributes[semconv.OUTPUT_MESSAGES]
    assert span.attributes.get(semconv.STREAM_COMPLETE) is (True if stream else None)
    if trusted:
        assert unpack_token_ids(span.attributes[semconv.response_token_ids(0)])


@pytest.mark.parametrize("trusted", [False, True], ids=["stranger", "trusted"])
def test_chunks_and_json_are_read_where_there_are_any(receiver, model, tmp_path, trusted):
    lt.shutdown(0.0)
    lt.init(receiver.url, spool_dir=tmp_path, trusted_hosts=[model.url] if trusted else [])
    url = f"{model.base_url}/chat/completions"
    ways = [(lambda raw: b"".join(raw.read_chunked()), True), (lambda raw: raw.json(), False)]
    seen = [ask(url, read, stream) for read, stream in ways]
    with silence():
        assert seen == [ask(url, read, stream) for read, stream in ways]
    lt.shutdown()
    assert ["answer0" in span.attributes[semconv.OUTPUT_MESSAGES] for span in receiver.spans("chat")] == [True, True]

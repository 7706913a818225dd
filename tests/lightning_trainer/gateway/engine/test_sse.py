"""Events come out as they were sent, wherever the network cut them."""

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.gateway.engine.sse import events

_EVENTS = st.lists(
    st.binary(max_size=6).map(lambda data: data.replace(b"\n", b"").replace(b"\r", b"") + b"x"), max_size=5
)
_ENDS = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n\r\n"])


@given(st.data())
def test_where_pieces_are_cut_makes_no_difference(data):
    sent = [event + data.draw(_ENDS) for event in data.draw(_EVENTS)]
    stream = b"".join(sent) + (rest := data.draw(st.sampled_from([b"", b"rest"])))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    async def read() -> list[bytes]:
        async def network():
            for piece in pieces:
                yield piece

        return [event async for whole in events(network()) for event in whole]

    assert asyncio.run(read()) == [*sent, *([rest] if rest else [])]


def test_a_long_event_in_many_pieces_takes_no_longer_than_its_length():
    """Quadratic, it would look at 32 GB, which takes minutes."""

    async def network():
        for _ in range(4000):
            yield b"x" * 4096
        yield b"\n\n"

    async def read() -> list[bytes]:
        return [event async for whole in events(network()) for event in whole]

    begun = time.process_time()
    (event,) = asyncio.run(read())
    assert time.process_time() - begun < 10
    assert len(event) == 4000 * 4096 + 2

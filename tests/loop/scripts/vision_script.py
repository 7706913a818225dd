"""An agent of two turns that shows an image in each, the second one streamed; all attempts at a task show the same."""

import base64
import itertools
import os
import struct
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import lightning_instrumentation as lt
from openai import OpenAI

from lightning_trainer.rollouts import Runner

NOT_IMAGES = {"259": -100, "260": -100, "261": -100, "262": -100}
"""Random weights would sample the tokens that stand for images."""


class Task(NamedTuple):
    id: str
    color: tuple[int, int, int]


client = OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key="unused", timeout=300)
attempts: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


def png(color: tuple[int, int, int], width: int = 20, height: int = 12) -> str:
    """Return an image with a diagonal, as a ``data:`` URL."""
    rows = b"".join(
        b"\0" + b"".join(bytes(color if x != y else (0, 0, 0)) for x in range(width)) for y in range(height)
    )

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    body = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(body).decode()}"


def shown(words: str, color: tuple[int, int, int]) -> dict:
    picture = {"type": "image_url", "image_url": {"url": png(color)}}
    return {"role": "user", "content": [{"type": "text", "text": words}, picture]}


@lt.agent("tester")
def solve(task: Task) -> None:
    messages: list = [shown(f"what is on {task.id}?", task.color)]
    asked: dict = {"model": "tiny", "logit_bias": NOT_IMAGES}
    first = client.chat.completions.create(messages=messages, max_tokens=8, **asked)
    messages += [
        {"role": "assistant", "content": first.choices[0].message.content},
        shown("and here?", (255, 255, 0)),
    ]
    for _ in client.chat.completions.create(messages=messages, max_tokens=12, stream=True, **asked):
        pass


def attempt(task: Task) -> float:
    solve(task)
    return float(next(attempts[task.id]) % 2)


if __name__ == "__main__":
    Runner("tiny", attempt, concurrency=4, timeout_s=300).train(
        lambda step: [Task(f"task-{step}-{n}", (60 * step, 200 * n, 90)) for n in range(2)], steps=int(sys.argv[1])
    )
    lt.flush(30)

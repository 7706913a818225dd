"""Files of OTLP in JSON: one ExportTraceServiceRequest per line, as a collector's file exporter writes them.

A line is read as the receiver reads a request's body (``otlp.json_spans``), so both give the same spans. A line that
cannot be read, such as the last one of a file that is still being written, is left out and reported. Source:
OpenTelemetry Protocol File Exporter.
"""

import codecs
import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import orjson

from lightning_trainer.errors import MalformedTelemetryError
from lightning_trainer.otlp.json_spans import parse_json, spans_of
from lightning_trainer.otlp.span_codec import span_from_proto
from lightning_trainer.types import Span

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_OTHER_SIGNALS = ("resourceLogs", "resourceMetrics", "resourceProfiles")


def read_file(file: BinaryIO, head: bytes, name: str, problems: list[str]) -> Iterator[Span]:
    """Yield the spans of an opened file, plain or gzip.

    Args:
        head: its first bytes; the file's position is still at its beginning.
        name: of the file, for messages.
        problems: gets one sentence for everything that is left out.

    Raises:
        MalformedTelemetryError: the file is something else.
    """
    if head.startswith(_ZSTD):
        raise MalformedTelemetryError(
            f"{name} is compressed with zstd, where the collector writes frames and not lines: leave `compression` out "
            "of the file exporter's configuration"
        )
    if head.startswith(_GZIP):
        return read_lines(_inflated(file, name, problems), name, problems)
    return read_lines(file, name, problems)


def _inflated(file: BinaryIO, name: str, problems: list[str]) -> Iterable[bytes]:
    with gzip.open(file) as lines:
        try:
            yield from lines
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            problems.append(f"{name}: the gzip stream breaks off ({error}); what came before is read")


def read_lines(lines: Iterable[bytes], name: str, problems: list[str]) -> Iterator[Span]:
    """Yield the spans of the lines of a file.

    Args:
        lines: with their line ends; empty lines are counted but otherwise ignored.
        name: of the file, for messages.
        problems: gets one sentence for everything that is left out.

    Raises:
        MalformedTelemetryError: the first line is not OTLP in JSON, so the file is something else.
    """
    others = 0
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line.strip():
            continue
        try:
            document = parse_json(line)
        except orjson.JSONDecodeError as error:
            if not line.endswith(b"\n"):
                problems.append(
                    f"{name}: line {number} ends after {len(line)} bytes in the middle of a document (the exporter "
                    "was still writing, or was killed); it is left out"
                )
                return
            if number == 1:
                raise _no_otlp(name, str(error)) from error
            problems.append(f"{name}: line {number} is not JSON and is left out: {error}")
            continue
        if isinstance(document, dict) and any(signal in document for signal in _OTHER_SIGNALS):
            others += 1
            continue
        if not isinstance(document, dict) or not isinstance(document.get("resourceSpans"), list):
            if number == 1:
                raise _no_otlp(name, "it has no resourceSpans")
            problems.append(f"{name}: line {number} has no resourceSpans and is left out")
            continue
        try:
            yield from _spans(document, f"{name}: line {number}", problems)
        except MalformedTelemetryError as error:
            problems.append(f"{name}: line {number} is left out from there on: {error}")
    if others:
        problems.append(f"{name}: {others} lines hold logs, metrics or profiles and no spans; they are left out")


def _no_otlp(name: str, why: str) -> MalformedTelemetryError:
    return MalformedTelemetryError(
        f"{name} is not a file of OTLP JSON lines ({why}): have the collector's file exporter write format json, one "
        "document a line"
    )


def _spans(document: Mapping[str, Any], where: str, problems: list[str]) -> Iterator[Span]:
    rejected: list[str] = []
    warnings: list[str] = []
    try:
        yield from spans_of(document, rejected, warnings, read=span_from_proto)
    finally:
        problems += [f"{where}: {warning}" for warning in warnings]
        problems += [f"{where}: a span is left out: {reason}" for reason in rejected]

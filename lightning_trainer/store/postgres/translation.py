"""The store's queries in PostgreSQL's SQL: its placeholders, its way to read a list, and the few that differ."""

import re
from functools import lru_cache

from lightning_trainer.store.tables.spans import INSERT, SELECT_RESOURCE

_TOKEN = re.compile(r"'(?:[^']|'')*'|\?(\d*)|(?<![:\w]):([a-z_]+)|%")
_LIST = re.compile(r"json_each\((%s|%\(\w+\)s)\)")
_OF_SPANS = "trace_id, span_id, parent_span_id, name, start_ns, end_ns, rollout_id, attempt_id, operation, response_id"
OVERRIDES = {
    # An index row is limited to 2.7 kB, and the attributes of a resource may be longer: the index has their digest.
    SELECT_RESOURCE: "SELECT id FROM resources WHERE sha256(body) = sha256(%s)",
}
IN_ONE = {
    # A thousand spans in one statement with binary arrays: as text, every byte would be escaped.
    INSERT: f"""INSERT INTO spans({_OF_SPANS}, scope, resource_id, body, checksum)
        SELECT * FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::bigint[], %b::text[],
            %b::text[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::bytea[], %b::bigint[])
        ON CONFLICT (trace_id, span_id) DO NOTHING""",
}
"""Bulk statements that take a list for each column."""


@lru_cache(maxsize=1024)
def translated(sql: str) -> str:
    """Return one of the store's queries in PostgreSQL's SQL."""
    if sql in OVERRIDES:
        return OVERRIDES[sql]
    return _LIST.sub(r"json_array_elements_text((\1)::json) AS json_each(value)", _TOKEN.sub(_placeholder, sql))


def _placeholder(found: re.Match[str]) -> str:
    token, number, name = found[0], found[1], found[2]
    if name:
        return f"%({name})s"
    if number is not None:
        return f"%(p{number})s" if number else "%s"
    return token.replace("%", "%%")


def numbered(sql: str) -> bool:
    """Whether a query's parameters are numbered (``?1``)."""
    return "?1" in sql

"""Redaction: what must not be recorded is removed before a span is written to the spool, so it never leaves the
process.

``keys`` finds secrets: by their formats (``formats``: a maintained library's and ours), and by what precedes them
(``named``). ``emails`` finds addresses, ``patterns`` what the user describes. ``rules`` applies all of them to texts,
``documents`` to the texts inside JSON, and ``spans`` knows which parts of a span are text.
"""

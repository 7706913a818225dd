"""What must not be recorded is taken out before a span is written to the spool, so it never leaves the process.

``keys`` and ``emails`` find what they are named after, ``rules`` applies them and the user's own to texts and JSON,
``spans`` knows which parts of a span are text.
"""

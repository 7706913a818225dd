"""What must not be recorded is taken out before a span is written to the spool, so it never leaves the process.

``keys`` finds secrets: by their forms (``formats``: a maintained library's and ours), and by what stands before them
(``named``). ``emails`` finds addresses, ``patterns`` what the user describes. ``rules`` applies all of them to texts,
``documents`` to the texts inside JSON, and ``spans`` knows which parts of a span are text.
"""

"""Capture of model calls made by client libraries: HTTP libraries, and the openai client above them (``openai/``).

``outgoing`` decides what a request is and what is added to it; ``httpx`` (and httpx2), ``requests``, ``aiohttp``, and
``botocore`` hook one library each; ``websockets`` only counts. How a call is routed, falls back, and is answered is the
same for all of them: see ``lightning_instrumentation.routing.exchange``. Below the openai client's hook, the hook of an
HTTP library starts no call of its own; it reads the answer for the openai client's.
"""

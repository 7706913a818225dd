"""Capture of model calls made by client libraries: HTTP libraries, and the openai client above them (``openai/``).

``outgoing`` decides what a request is and what is added to it; ``httpx`` (and httpx2), ``requests``, ``aiohttp``, and
``botocore`` hook one library each; ``websockets`` only counts. How a call is routed, falls back, and is answered is
``lightning_instrumentation.routing.exchange``, for all of them. Below the openai client's hook, that of an HTTP library
starts no call of its own and reads the answer for it.
"""

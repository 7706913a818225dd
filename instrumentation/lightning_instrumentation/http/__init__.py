"""Capture of model calls made over HTTP without the openai client, by whatever code.

``request`` decides what a request is and what is added to it; ``httpx`` (and httpx2), ``requests``, ``aiohttp``, and
``botocore`` hook one library each; ``websockets`` only counts. Below the openai client's hook they start no call of
their own and read the answer for it.
"""

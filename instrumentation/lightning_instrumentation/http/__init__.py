"""Capture of model calls that are made over HTTP without the openai client, whatever made them.

``request`` decides what a request is and what is added to it; ``httpx`` (and httpx2), ``requests``, ``aiohttp`` and
``botocore`` hook one library each. Under the openai client's hook they begin nothing of their own and read the answer
for it.
"""

"""Capture of model calls at the openai client's own request method, below every framework that uses it.

``patch`` installs the hook, ``call`` begins and ends a call, ``options`` reads and changes the client's request
options. The answer is read from the wire by the hook of the HTTP library below (``clients.httpx``).
"""

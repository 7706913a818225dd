"""Capture of model calls at the openai client's own request method, below every framework that uses it.

``patch`` puts the hook in, ``call`` begins and ends a call, ``options`` reads and changes the client's request options.
The answer is read off the wire by the hook of the HTTP library below (``lightning_instrumentation.http``).
"""

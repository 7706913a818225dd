"""Capture of chat completions at the openai client's own request method, below every framework that uses it.

``patch`` puts the hooks in, ``call`` is one request's life, ``request`` what is read from and added to it, ``answer``
what came back, ``stream`` a stream that is read through us, ``hiding`` takes out what the caller did not ask for.
"""

"""The wire formats of model calls, whatever client sends them: requests, answers, and what we add and hide.

``apis`` detects a request's format; ``chat``, ``completions``, ``responses``, and ``messages_api`` describe one format
each on top of ``api``, ``answer``, and ``request``; ``call`` is the life of one call, and ``body`` reads its answer as
the bytes pass.
"""

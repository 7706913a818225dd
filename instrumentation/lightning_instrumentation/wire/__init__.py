"""The wire formats of model calls, no matter who sends them: what a request asks, an answer says, and we add and hide.

``apis`` knows which format a request has; ``chat``, ``completions``, ``responses`` and ``messages_api`` describe one
format each on top of ``api``, ``answer`` and ``request``; ``call`` is the life of one call and ``body`` reads its
answer as the bytes pass.
"""

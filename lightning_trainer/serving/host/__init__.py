"""What runs inside the engine's process: vLLM, a middleware in front of it, and the way in for new weights.

These modules import the standard library, vLLM and what vLLM itself depends on, and ``serving.publication``,
``serving.adapter``, ``serving.shared_memory``, ``sampling``, ``experts`` and ``errors``; nothing else of this project.
The interpreter is configurable, and another one need not have what the daemon has.
"""

"""The code inside the engine's process: vLLM, a middleware in front of it, and the loading of new weights.

These modules import the standard library, vLLM and what vLLM itself depends on, and ``serving.publication``,
``serving.adapter``, ``serving.shared_memory``, ``models.images``, ``sampling``, ``experts`` and ``errors``; nothing
else of this project. The engine's interpreter is configurable, and need not have the packages that the daemon's has.
"""

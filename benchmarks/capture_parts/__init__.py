"""Sections of ``benchmarks/capture.py`` and the processes that they start.

Sections, each with ``run(sizes, folder) -> list[Row]``: ``cost``, ``loss``, ``ingest``, ``gateway``, ``absent`` and
``matrix``. Processes, started as ``python -m capture_parts.NAME``: ``engine`` is a scripted inference server and
telemetry receiver; ``daemon`` the real ingest router, gateway and store, without engine and trainer; ``agent`` one
program that calls a model; ``writer`` one that writes spans; ``matrix_agent`` one framework's scenario.
"""

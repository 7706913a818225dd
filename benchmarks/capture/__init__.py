"""Capture: sections, each with ``run(sizes, folder) -> list[Row]``, and the programs that they start.

Sections: ``cost``, ``loss``, ``ingest``, ``gateway``, ``absent`` and ``matrix``. Programs, each a process of its own:
in ``programs``, ``agent`` calls a model, ``writer`` writes spans, and ``matrix_agent`` plays one framework's scenario;
in ``benchmarks.common.servers``, ``engine`` is a scripted inference server and telemetry receiver, and ``daemon`` the
real ingest router, gateway and store, without engine and trainer.
"""

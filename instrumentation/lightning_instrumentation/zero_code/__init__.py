"""``lightning-trainer run``: capture of an unmodified program.

The launcher puts ``site/`` first on ``PYTHONPATH`` and becomes the program; every Python interpreter below it finds our
``sitecustomize`` there, which runs the user's own and then installs the hooks. The SDK is imported at the first call.
"""

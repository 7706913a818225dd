"""Runs in every interpreter below ``lightning-trainer run``, of any version: first the user's own, then our hooks.

No failure here may reach the program, and ``sys.path`` is left as it would be without us. The environment keeps this
folder, so that subprocesses find it too.
"""

import os
import sys


def _run_the_users_own():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _install_ours():
    try:
        from lightning_instrumentation.zero_code.start import start

        start()
    except Exception as error:
        if os.environ.get("LIGHTNING_RUN_SAID"):
            return
        # Inherited by subprocesses, so that it is reported only once.
        os.environ["LIGHTNING_RUN_SAID"] = "1"
        cause = type(error).__name__ + ": " + str(error)
        sys.stderr.write("lightning-trainer run: " + str(sys.executable) + " is not captured (" + cause + "); ")
        sys.stderr.write("install lightning-trainer into its environment\n")


try:
    _run_the_users_own()
finally:
    _install_ours()

"""A sandbox for untrusted Python: ``Sandbox().run("print(6 * 7)")``."""

from lightning_trainer.environments.sandbox.sandbox import Ran, Sandbox, SandboxLimits, SandboxUnavailableError

__all__ = ["Ran", "Sandbox", "SandboxLimits", "SandboxUnavailableError"]

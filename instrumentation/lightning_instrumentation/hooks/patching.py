"""Wrapping functions of other packages, and restoring them.

If another wrapper was put on top of ours, ours cannot be removed from below it: it stays and only passes calls through.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import wrapt

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""As in wrapt: called with the wrapped function, its instance, and the arguments."""


@dataclass(slots=True)
class _Patch:
    """One attribute of a module or class; ``wrapped`` is our wrapper, None while the original is in place."""

    owner: Any
    attribute: str
    wrapper: Wrapper
    original: Any = None
    inherited: bool = False
    """Whether the owner inherits the attribute instead of defining it."""
    wrapped: Any = None

    def apply(self) -> None:
        _, _, self.original = wrapt.resolve_path(self.owner, self.attribute)
        self.inherited = self.attribute not in vars(self.owner)
        self.wrapped = wrapt.FunctionWrapper(self.original, self.wrapper, _is_active)
        setattr(self.owner, self.attribute, self.wrapped)

    def restore(self) -> None:
        if self.wrapped is None or vars(self.owner).get(self.attribute) is not self.wrapped:
            return
        if self.inherited:
            delattr(self.owner, self.attribute)
        else:
            setattr(self.owner, self.attribute, self.original)
        self.wrapped = None


_patches: list[_Patch] = []
_lock = threading.Lock()
_active = True


def wrap(target: Any, name: str, wrapper: Wrapper) -> None:
    """Wrap ``target``'s function of this dotted name.

    Raises:
        AttributeError: there is no such function.
    """
    owner, attribute, _ = wrapt.resolve_path(target, name)
    patch = _Patch(owner, attribute, wrapper)
    with _lock:
        patch.apply()
        _patches.append(patch)


def restore_originals() -> None:
    """Restore all originals, the last one first."""
    global _active
    with _lock:
        _active = False
        for patch in reversed(_patches):
            patch.restore()


def wrap_again() -> None:
    """Undo ``restore_originals``."""
    global _active
    with _lock:
        for patch in _patches:
            if patch.wrapped is None:
                patch.apply()
        _active = True


def _is_active() -> bool:
    return _active

"""Functions of other packages that are wrapped, and can be put back.

What someone else wrapped on top of ours cannot be taken out from below it: there our wrapper stays and passes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import wrapt

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""As in wrapt: takes the wrapped function, its instance, and the arguments."""


@dataclass(slots=True)
class _Patch:
    """One attribute of a module or class; ``wrapped`` is what stands there, None while the original does."""

    owner: Any
    attribute: str
    wrapper: Wrapper
    original: Any = None
    inherited: bool = False
    """Whether the owner has no such attribute of its own."""
    wrapped: Any = None

    def apply(self) -> None:
        _, _, self.original = wrapt.resolve_path(self.owner, self.attribute)
        self.inherited = self.attribute not in vars(self.owner)
        self.wrapped = wrapt.FunctionWrapper(self.original, self.wrapper, _is_active)
        setattr(self.owner, self.attribute, self.wrapped)

    def restore(self) -> None:
        if vars(self.owner).get(self.attribute) is not self.wrapped:
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
        AttributeError: it has none.
    """
    owner, attribute, _ = wrapt.resolve_path(target, name)
    patch = _Patch(owner, attribute, wrapper)
    with _lock:
        patch.apply()
        _patches.append(patch)


def restore_originals() -> None:
    """Put every original back, the last one first."""
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

"""Blocks of code that something is said of: ``with`` and ``async with`` alike."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from lightning_instrumentation.scope import Scope, use_scope


class Block:
    """A context manager for both kinds of ``with``; subclasses have ``__enter__`` and ``__exit__``."""

    __slots__ = ()

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


class ScopeBlock(Block):
    """A block that runs in a scope of its own, once at a time."""

    __slots__ = ("_body",)

    def __init__(self) -> None:
        self._body: use_scope | None = None

    def _scope(self) -> Scope:
        """Return what it runs in."""
        raise NotImplementedError

    def _entered_already(self) -> str:
        """Return what to say where it is entered inside of itself."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        if self._body is not None:
            raise RuntimeError(self._entered_already())
        self._body = use_scope(self._scope())
        self._body.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._body is not None:
            self._body.__exit__(kind, error, traceback)
            self._body = None

"""The parameters of a page's address; one that cannot be read is refused in a sentence."""

from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import urlencode

from lightning_trainer.errors import LightningError

_LONGEST = 512
_YEARS = range(1970, 2200)
"""Years whose times in nanoseconds fit the store's integers."""


class PageError(LightningError):
    """A page that does not exist, or a parameter that cannot be read."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


class Asked:
    """The parameters of one request; an empty one is absent."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._given = {name: value for name, value in parameters.items() if value.strip()}

    def text(self, name: str) -> str | None:
        """Return a parameter; None if it is absent.

        Raises:
            PageError: it is too long.
        """
        value = self._given.get(name)
        if value is not None and len(value) > _LONGEST:
            raise PageError(f"{name} has {len(value)} characters; {_LONGEST} are read")
        return value

    def needed(self, name: str) -> str:
        """Return a parameter that the page cannot do without.

        Raises:
            PageError: it is absent or too long.
        """
        value = self.text(name)
        if value is None:
            raise PageError(f"the address lacks {name}=")
        return value

    def number(self, name: str, least: int = 0) -> int | None:
        """Return a parameter as an integer; None if it is absent.

        Raises:
            PageError: it is not a decimal integer, or less than ``least``.
        """
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and len(value) < 19 and int(value) >= least):
            raise PageError(f"{name} = {value!r}: write a number from {least}")
        return int(value)

    def real(self, name: str) -> float | None:
        """Return a parameter as a float; None if it is absent.

        Raises:
            PageError: it is not a finite number.
        """
        value = self.text(name)
        if value is None:
            return None
        try:
            found = float(value)
        except ValueError:
            found = float("nan")
        if found != found or abs(found) == float("inf"):
            raise PageError(f"{name} = {value!r}: write a number, such as 0.5")
        return found

    def time_ns(self, name: str) -> int | None:
        """Read a time as browsers write it (``2026-11-23T22:55``); it is UTC unless it has a zone."""
        value = self.text(name)
        if value is None:
            return None
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            raise PageError(f"{name} = {value!r}: write a time as 2026-11-23T22:55") from None
        if at.year not in _YEARS:
            raise PageError(f"{name} = {value!r}: write a time between the years {_YEARS.start} and {_YEARS.stop}")
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1e9)

    def among(self, name: str, values: tuple[str, ...]) -> str | None:
        """Return a parameter that is one of some values; None if it is absent.

        Raises:
            PageError: it is another value.
        """
        value = self.text(name)
        if value is not None and value not in values:
            raise PageError(f"{name} = {value!r}: there are {', '.join(values)}")
        return value

    def link(self, path: str, **changes: object) -> str:
        """Return an address with these parameters, some of them changed; None removes one."""
        told = {**self._given, **changes}
        query = urlencode({name: value for name, value in told.items() if value is not None})
        return f"{path}?{query}" if query else path

    def __contains__(self, name: str) -> bool:
        return name in self._given

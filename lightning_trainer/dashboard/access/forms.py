"""Small forms that our pages post: read under a bound, as ``application/x-www-form-urlencoded``."""

from urllib.parse import parse_qs

from fastapi import Request

from lightning_trainer.errors import ConfigError, LightningError
from lightning_trainer.ingest.http.bodies import BodyTooLargeError, BodyTooSlowError, read_body

_MOST_BYTES = 2**18
_MOST_FIELDS = 20


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields; of several with one name the first.

    Raises:
        LightningError: it is not such a form, or too long.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ConfigError("send the form as application/x-www-form-urlencoded")
    try:
        raw = await read_body(request.stream(), limit=_MOST_BYTES)
        fields = parse_qs(raw.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except (BodyTooLargeError, BodyTooSlowError, ValueError) as error:
        raise LightningError(f"the form could not be read: {error}") from error
    return {name: values[0] for name, values in fields.items()}

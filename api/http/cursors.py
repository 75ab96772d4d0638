"""Opaque page cursors: where a listing goes on, signed so that an altered or foreign one is refused."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping

from ...kernels.errors import InvalidInputError

_MAC_BYTES = 16
_REFUSED = (
    "This cursor is not one that this service gave for this listing with these filters since it started: "
    "begin again without cursor."
)

Position = int | str


class Cursors:
    """Makes and reads cursors.

    A cursor grants nothing; the signature is there so that a cut, altered or mixed-up one is an error and not a
    wrong page.

    Args:
        secret: the key; empty makes a random one, and cursors end with the process.
    """

    def __init__(self, secret: str = "") -> None:
        self._key = secret.encode() if secret else secrets.token_bytes(32)

    def make(self, listing: str, filters: Mapping[str, object], position: Position) -> str:
        """The cursor for `position` in `listing` with `filters`."""
        payload = json.dumps(position, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._sign(listing, filters, payload) + payload).decode().rstrip("=")

    def read(self, listing: str, filters: Mapping[str, object], cursor: str) -> Position:
        """The position in a cursor.

        Raises:
            InvalidInputError: the cursor was not made by this service for this listing and these filters.
        """
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidInputError(_REFUSED) from error
        mac, payload = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        # The second test refuses texts that decode to the same bytes: spare bits in the last digit.
        if not hmac.compare_digest(mac, self._sign(listing, filters, payload)) or (
            base64.urlsafe_b64encode(raw).decode().rstrip("=") != cursor
        ):
            raise InvalidInputError(_REFUSED)
        position: Position = json.loads(payload)
        return position

    def _sign(self, listing: str, filters: Mapping[str, object], payload: bytes) -> bytes:
        scope = json.dumps([listing, sorted((k, str(v)) for k, v in filters.items() if v is not None)]).encode()
        message = len(scope).to_bytes(4, "big") + scope + payload
        return hmac.digest(self._key, message, hashlib.sha256)[:_MAC_BYTES]

"""The errors of fp4tune: classes of ours, each with one sentence a user can act on."""

from __future__ import annotations


class Fp4tuneError(Exception):
    """Base of every error that a user is meant to read.

    Attributes:
        exit_code: the exit status of the command line when this error ends a command.
        slug: the stable last part of the problem `type` URI when this error ends an HTTP request.
        http_status: the HTTP status that goes with `slug`.
    """

    exit_code: int = 1
    slug: str = "internal"
    http_status: int = 500


class InvalidInputError(Fp4tuneError):
    """Something the user gave is not valid: a shape, an option, a file that cannot be parsed."""

    exit_code = 2
    slug = "invalid-input"
    http_status = 422


class NotFoundError(Fp4tuneError):
    """Something the user named does not exist: a preset, a directory, a run, a backend, a device."""

    exit_code = 3
    slug = "not-found"
    http_status = 404


class UnsupportedError(Fp4tuneError):
    """A backend, a device or a checkpoint cannot do what was asked, and retrying will not help."""

    exit_code = 4
    slug = "unsupported"
    http_status = 422


class OtherKindError(UnsupportedError):
    """A backend is for problems of another kind: another op, other formats. Nothing is missing, and nothing failed."""


class OutOfMemoryError(UnsupportedError):
    """A problem needs more memory than the device has; the sentence says how much is needed."""

    slug = "too-large"


class StoreError(Fp4tuneError):
    """The database cannot be used: read-only, full, corrupt, busy, or of another schema."""

    exit_code = 5
    slug = "store"
    http_status = 503


class BusyError(Fp4tuneError):
    """A resource is held by somebody else: a port, a device lock."""

    exit_code = 6
    slug = "busy"
    http_status = 409

"""The root of what jumok raises on purpose, on either side of the wire: one except clause catches both."""


class JumokError(Exception):
    """Base of all errors of the SDK, the server room and the export room; its text is fit for a user's eyes.

    ``field`` is the path of the part of the request that was wrong (``contents[3]``), or empty.
    ``retry_after_s`` is the time in seconds after which the same request can succeed, where somebody knows it.
    """

    field: str = ""
    retry_after_s: float | None = None

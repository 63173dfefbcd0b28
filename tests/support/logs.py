"""Log records of a test."""

import logging

import pytest

OF_ANOTHER_LOOP = "PollerCompletionQueue._handle_events"
"""In what gRPC says of an event loop that is closed: all loops share its poller."""


def own_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of a test, without what gRPC says of other tests' event loops."""
    return [record for record in caplog.records if OF_ANOTHER_LOOP not in record.getMessage()]

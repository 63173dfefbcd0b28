"""Log records of a test."""

import logging

import pytest


def own_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of a test, without what gRPC says of other tests' event loops.

    All loops share gRPC's poller, which may still have an event for one that is closed.
    """
    return [record for record in caplog.records if "PollerCompletionQueue._handle_events" not in record.getMessage()]

"""The wire contract: protobuf stubs, and the result types that the server and its callers share."""

__version__ = "0.1.0"

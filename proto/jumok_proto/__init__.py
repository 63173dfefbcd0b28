"""The wire contract: protobuf stubs, and result types for both sides."""

__version__ = "0.1.0"

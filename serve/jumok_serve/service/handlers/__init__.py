"""Methods of the gRPC services."""

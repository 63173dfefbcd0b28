"""The methods of the gRPC services."""

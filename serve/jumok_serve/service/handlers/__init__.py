"""What the service does with texts, free of transports, and the methods of the gRPC services."""

"""The server side: bundles, ONNX Runtime sessions, search, scheduling and the gRPC service."""

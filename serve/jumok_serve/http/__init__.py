"""HTTP APIs of other services over the gRPC services; needs the extra ``http``."""

"""HTTP APIs of other services, and the contract as JSON, over the services of gRPC; needs the extra ``http``."""

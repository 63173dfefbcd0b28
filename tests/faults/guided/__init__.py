"""Coverage-guided fuzzing of everything that reads bytes of strangers: requests and manifests."""

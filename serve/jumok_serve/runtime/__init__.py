"""ONNX Runtime sessions, the KV cache and the decoder step."""

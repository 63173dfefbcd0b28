"""ONNX graphs of the bundle's contract, traced from PyTorch models."""

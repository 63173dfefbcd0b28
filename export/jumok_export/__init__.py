"""From text to bundle: models, training, ONNX export, quantization and verification."""

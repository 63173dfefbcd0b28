"""Graph variants with the native CPU kernels."""

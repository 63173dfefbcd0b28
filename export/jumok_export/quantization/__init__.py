"""int8 quantization and calibration."""

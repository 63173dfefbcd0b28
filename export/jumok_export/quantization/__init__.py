"""int8 graphs and calibration; `graphs.quantize_matrix` quantizes one matrix."""

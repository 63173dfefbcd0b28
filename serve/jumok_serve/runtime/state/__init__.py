"""State of decoders between steps: caches in place, gathered or recurrent state, and their buffers."""

"""Parts of the decoder step benchmark."""

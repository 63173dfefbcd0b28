"""Parts of the check of decoding on a GPU."""

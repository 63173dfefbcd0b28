"""Jobs of ``jumok translate-corpus``: files of rows, blocks of output, and the state that resumes them."""

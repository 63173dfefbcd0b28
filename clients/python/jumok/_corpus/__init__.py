"""Translation of any number of texts, in bounded memory."""

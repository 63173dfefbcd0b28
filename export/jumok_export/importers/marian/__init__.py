"""Import of models in Marian's files: OPUS-MT originals, and students of Firefox and Bergamot."""

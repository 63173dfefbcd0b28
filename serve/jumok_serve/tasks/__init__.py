"""What is done with a text: translation, scoring and alignment."""

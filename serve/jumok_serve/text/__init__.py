"""What happens to a text around the model."""

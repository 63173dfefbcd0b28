"""What surrounds every call: access, errors and counts."""

"""Around every call: access, errors and counts."""

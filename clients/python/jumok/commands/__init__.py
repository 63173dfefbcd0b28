"""The sub-commands of the SDK; other packages have their own."""

"""The sub-commands of the SDK; those of other rooms live there."""

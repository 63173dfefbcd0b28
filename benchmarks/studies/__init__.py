"""Studies whose figures documents state: each is one program."""

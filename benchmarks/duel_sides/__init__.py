"""The sides of a duel, each of which runs as a process of its own, and what their times are made into."""

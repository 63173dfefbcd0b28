"""Trial of a bundle in a process of its own, with limits of time and memory."""

"""What is done to ``jumok serve`` to show that nothing is lost: one module a group of scenarios."""

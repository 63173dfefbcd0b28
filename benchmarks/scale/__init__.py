"""Measurements and a simulation of more than one server, and of jobs that take hours."""

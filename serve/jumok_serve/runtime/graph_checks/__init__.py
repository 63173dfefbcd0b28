"""Checks of graph files before and while sessions open: weights, contract, copies between devices."""

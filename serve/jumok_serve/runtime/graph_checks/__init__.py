"""Graph files before and while sessions open: checks of weights and contract, copies between devices, parts."""

"""Observers of module calls, ops, gradients, taps and variables."""

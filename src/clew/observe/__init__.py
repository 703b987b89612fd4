"""Those who see: observers of module calls, ops, gradients, taps and variables."""

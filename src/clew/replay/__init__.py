"""Run programs again: repeats, perturbed weights, other precisions, modules on given inputs."""

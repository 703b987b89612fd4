"""Rules about training and data: each takes facts of a `Run` and says found, fine, not checked."""

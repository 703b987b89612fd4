"""Compare two runs: where they part first. Plain functions on two `Run`s, torch-free."""

"""Training scripts as people write them: `make()` gives what is trained, `train()` trains it."""

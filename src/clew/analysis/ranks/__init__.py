"""Which ranks disagree: all ranks of a saved trace, read one by one, compared with each other."""

"""Write traces: while the program runs, all at once, or after a kill."""

"""`clew run`: an unmodified program, recorded. Starts the program, and records from inside it."""

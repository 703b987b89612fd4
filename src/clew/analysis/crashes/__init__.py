"""What a crash note is made of: the scene of a crash, and what each kind of fault says about it."""

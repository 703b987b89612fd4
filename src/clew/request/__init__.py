"""What was asked for, as data."""

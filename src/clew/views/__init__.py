"""Views: a `Reader` and analysis results as something to look at. Never torch, never capture."""

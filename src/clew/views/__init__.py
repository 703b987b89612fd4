"""Views: a `Run` and analysis results as something to look at. Never torch, never capture."""

"""From what observers note to batches of plain integers."""

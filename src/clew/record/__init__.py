"""Turn what observers record into batches of plain integers."""

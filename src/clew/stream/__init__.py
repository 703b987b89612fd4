"""The seam between observers and stores: batches of plain integers."""

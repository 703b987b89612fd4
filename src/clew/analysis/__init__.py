"""Analysis: plain functions from a `Run` to answers. Knows nothing of capture or of views."""

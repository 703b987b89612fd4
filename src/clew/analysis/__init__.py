"""Analysis: plain functions from a `Reader` to answers. Knows nothing of capture or of views."""

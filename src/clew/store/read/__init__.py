"""Read traces, from strangers too: a folder in, columns out, damage listed."""

"""Read traces, also untrusted ones: a folder in, columns out, damage listed."""

"""The event model: what capture emits, stores write and readers see.

Knows nothing of torch, of files or of how anything is shown.
"""

"""The event model: what capture emits, what stores keep, what readers see.

Knows nothing of torch, of files or of how anything is shown.
"""

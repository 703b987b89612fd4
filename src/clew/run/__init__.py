"""Every fact of every event, for all ranks, derived once.

In come the columns of each rank, out comes a `Run`: what analyses, views and exports read. Must
not know torch, nor how anything is shown.
"""

"""Every fact of every event, for all ranks, derived once.

Input: the columns of each rank. Output: a `Run`, which analyses, views and exports read. Must not
know torch, nor how anything is shown.
"""

"""The tree of a run as data: ranks, steps, module calls, ops, backward pass and optimizer.

`tree_build.tree_of` makes it from a `Run`; `tree_model` has its classes. Every number of a node is
a total over everything the node stands for, so that children sum to their parents.
"""

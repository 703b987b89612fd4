"""Architectures in two implementations, with bugs that can be switched on in both.

A file `NAME.py` holds the reference and `NAME_port.py` the port: other names, other structure,
other ops, the same function. Each wrong line carries the comment `# bug: NAME`.
"""

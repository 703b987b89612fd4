"""The HTML report: one file that holds a trace and the viewer for it."""

# Events that a report holds unless more are asked for.
EVENTS = 200_000

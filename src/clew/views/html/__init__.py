"""The HTML report: one file that holds a trace and the viewer for it."""

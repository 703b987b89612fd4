"""Exports: a trace, or the values it kept, in the files of other tools. One file per format."""

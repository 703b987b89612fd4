"""Capture: watch a program run and emit raw records. May import torch; knows only `events`."""

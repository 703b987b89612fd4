"""Layered layout of a graph, frame by frame: positions of boxes and routes of edges.

Input: sizes and links. Output: rectangles and routes. Knows nothing of traces, text or colours.
"""

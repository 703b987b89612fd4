"""Where the boxes of a graph go and how the edges run: a layered layout, frame by frame.

In come sizes and links, out come rectangles and routes. Knows nothing of traces, text or colours.
"""

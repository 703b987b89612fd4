"""Pictures of a graph: SVG, PNG, DOT and Mermaid."""

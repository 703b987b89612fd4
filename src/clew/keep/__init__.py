"""What is kept of a value: its facts, its statistics, its data; each once, however often asked."""

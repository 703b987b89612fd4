"""The one thing that passes from those who observe to those who keep: batches of plain integers."""

"""Every way in which facts of a trace leave Clew, read back by its own means.

In comes a trace of the corpus, out comes `Seen`: what one exit says of each event, by the event's
row in the whole run, and of the trace. Facts have one form whatever the exit: `facts.md` lists
them. What an exit does not say is left out. Nothing here imports torch.
"""

from tests.corpus.exits import arrays, facts, tables, text
from tests.corpus.exits.case import EXITS, Case
from tests.corpus.exits.facts import HAS_FINDINGS, objects_with_numbers, pages

__all__ = [
    "EXITS", "HAS_FINDINGS", "Case", "arrays", "facts", "objects_with_numbers", "pages", "tables",
    "text",
]  # fmt: skip

"""The last ops that made a dimension that does not fit, in a few lines of a note."""

from __future__ import annotations

from dataclasses import replace

from clew.analysis.crashes.origins import history
from clew.analysis.crashes.scene import GivenTensor
from clew.analysis.file_names import bare_name
from clew.analysis.shape.call import CARRIED, PERMUTED, TAKEN
from clew.analysis.shape_links import OUTSIDE, PARAMETER, SEEN, ShapeLink
from clew.events.op_names import bare_op
from clew.run.run import Run

# How many links are shown of the only dimension that is, and of one of several.
_MOST_LINKS, _FEW_LINKS = 4, 2
_SKIPPED = (CARRIED, SEEN, OUTSIDE)


def dimension_history(run: Run, argument: GivenTensor, dim: int, is_only: bool) -> list[str]:
    """Write where a dimension of an argument comes from; nothing if the run does not have it."""
    chain = history(run, argument.number, dim)
    if chain is None:
        return []
    links = _of_parameters([link for link in chain.links if link.how not in _SKIPPED])
    # What happened last comes first; of the parts of a merged dimension, those that are near.
    near = sorted(links, key=lambda link: link.depth)[: _MOST_LINKS if is_only else _FEW_LINKS]
    if not near:
        return []
    head = f"dimension {chain.dim} of {argument.name} is {chain.size}:"
    return [head, *(f"  {_line(link)}" for link in near)]


def _of_parameters(links: list[ShapeLink]) -> list[ShapeLink]:
    """Say at the op that took a size from a parameter whose it is, in place of the way there."""
    found: list[ShapeLink] = []
    at = 0
    while at < len(links):
        link, way = links[at], 0
        if link.how == TAKEN:
            way = next((steps for steps in (1, 2) if _is_parameter(links, at, steps)), 0)
        found.append(replace(link, text=links[at + way].text))
        at += 1 + way
    return found


def _is_parameter(links: list[ShapeLink], at: int, steps: int) -> bool:
    """Return whether a parameter comes some steps after a link, with only a permute between."""
    between = links[at + 1 : at + steps]
    end = links[at + steps] if at + steps < len(links) else None
    is_plain = all(link.how == PERMUTED for link in between)
    return end is not None and end.how == PARAMETER and is_plain


def _line(link: ShapeLink) -> str:
    event, source = link.event, link.source
    op = "" if event is None else f", {bare_op(event.name)}"
    where = "" if event is None or not event.module else f" in {event.module}"
    line = "" if source is None else f" at {bare_name(source.file)}:{source.line}"
    return f"{link.text}{op}{where}{line}"

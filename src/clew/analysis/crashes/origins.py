"""What decided the size of a dimension: a layer's setting, a merge, a join, or data from outside.

Input: a run, the number of a value and a dimension. Output: an `Origin`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from clew.analysis.shape.call import CARRIED
from clew.analysis.shape_chain import trace_dimension
from clew.analysis.shape_links import INPUT, PARAMETER, SEEN, ShapeChain, ShapeLink
from clew.errors import ClewError
from clew.run.event import Event
from clew.run.run import Run

_ALONG = (CARRIED, SEEN, "permuted", "sliced")
# The settings of a layer that decide the sizes of its result.
_MAKES = ("out_features", "out_channels", "embedding_dim", "num_features", "hidden_size")


@dataclass(frozen=True, slots=True)
class Origin:
    """The event that decided a size, None for data from outside, and how it did.

    `how` is a word of a `ShapeLink`. `setting` and `layer` are the setting of a layer that the
    size is, empty where none is. `is_turned` says whether dimensions changed places since.
    """

    how: str
    event: Event | None
    setting: str = ""
    layer: str = ""
    is_turned: bool = False

    @property
    def is_layer(self) -> bool:
        """Return whether the size is a setting of a layer."""
        return bool(self.setting)

    @property
    def is_computed(self) -> bool:
        """Return whether the size was made of others: merged or joined."""
        return self.how in ("merged", "concatenated")


def history(run: Run, number: int | None, dim: int) -> ShapeChain | None:
    """Return the chain of ops that made a dimension, None if the run does not have it.

    That it came into a model on its way is left out.
    """
    chain = _chain(run, number, dim)
    if chain is None:
        return None
    links = tuple(link for link in chain.links if link.is_end or link.how != INPUT)
    return replace(chain, links=links)


def is_batch(run: Run, number: int | None) -> bool:
    """Return whether dimension 0 of a value is that of an input of a model."""
    chain = _chain(run, number, 0)
    links = () if chain is None else chain.links
    return any(link.how == INPUT and link.after.dim == 0 for link in links)


def _chain(run: Run, number: int | None, dim: int) -> ShapeChain | None:
    if number is None:
        return None
    try:
        return trace_dimension(run, number, dim)
    except ClewError:
        return None


def origin_of(run: Run, number: int | None, dim: int) -> Origin | None:
    """Return what decided the size of a dimension, None if the run does not tell."""
    chain = history(run, number, dim)
    if chain is None:
        return None
    deciding = [link for link in chain.links if link.how not in _ALONG]
    if not deciding:
        return None
    first = deciding[0]
    is_turned = any(link.how == "permuted" for link in chain.links if link.depth == 0)
    if first.how == PARAMETER or any(link.how == PARAMETER for link in deciding[:2]):
        return _of_layer(run, first, chain.size)
    return Origin(first.how, first.event, is_turned=is_turned)


def _of_layer(run: Run, link: ShapeLink, size: int) -> Origin:
    """Return the origin of a size that a parameter has; its layer if a setting is that size."""
    event = link.event
    owner = -1 if event is None else int(run.owner_row[event.row])
    if owner >= 0:
        call = run.event(owner)
        settings = call.attributes
        name = next((name for name in _MAKES if settings.get(name) == size), "")
        return Origin(link.how, event, name, (call.module or "the root module") if name else "")
    return Origin(link.how, event)

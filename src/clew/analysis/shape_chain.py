"""Why a tensor has its shape: follow one dimension back through the ops that made it.

Input: a `Run`, a value and a dimension. Output: a `ShapeChain` of frozen links, from the value back
to inputs, parameters and numbers given to ops. What happens to a dimension in one op is decided by
`analysis.shape.rules`; this file walks from value to value, folds what only carries the dimension
along, and names where it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from clew import analysis
from clew.analysis.parameters import Parameters
from clew.analysis.shape.call import (
    CARRIED,
    SPLIT,
    UNKNOWN,
    Part,
)
from clew.analysis.shape.settings import setting
from clew.analysis.shape_links import (
    BUFFER,
    INPUT,
    OUTSIDE,
    PARAMETER,
    SEEN,
    Dimension,
    ShapeChain,
    ShapeLink,
)
from clew.analysis.shape_steps import Made, Place, ShapeSteps, shape_of
from clew.errors import ClewError
from clew.events.op_names import bare_op
from clew.events.vocabulary import MODULE
from clew.run.run import Run
from clew.run.value import Value

# The most ops that are walked through, and the deepest nesting of branches.
_MOST_OPS = 20_000
_DEEPEST = 24


def trace_dimension(run: Run, value: int, dim: int) -> ShapeChain:
    """Follow a dimension of a value, by the value's number in the run, back to where it was made.

    Negative dims count from the end; one that is not there raises a ClewError.
    """
    shape = shape_of(run, value)
    if not -len(shape) <= dim < len(shape):
        raise ClewError(_no_such_dim(run.value(value), dim))
    dim = dim + len(shape) if dim < 0 else dim
    walk = _Walk(run)
    links = tuple(walk.links(value, Part(dim, shape[dim]), 0))
    return ShapeChain("", Dimension(shape, dim), links, tuple(walk.notes()))


def _no_such_dim(value: Value, dim: int) -> str:
    rank = len(value.shape or ())
    if not rank:
        return f"there is no dim {dim}: {value.look} has no dimensions"
    return f"there is no dim {dim}: {value.look} has {rank}, from 0 to {rank - 1}"


class _Walk:
    """Follows one dimension through a run, with all its branches."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._steps = ShapeSteps(run)
        self._seen: set[Place] = set()
        self._parameters = Parameters(run.columns.modules, run.columns.parameters)

    def links(self, value: int, part: Part, depth: int) -> Iterator[ShapeLink]:
        """Yield the links from a value back to its origins, branches one after another."""
        path, value, part, made = self._straight(value, part)
        yield from (replace(link, depth=depth) for link in _folded(path))
        if made is None:
            yield replace(self._end(value, part), depth=depth)
            return
        if made.sources:
            self._seen.add((value, part))
        yield replace(self._link(made, self._dimension(value, part)), depth=depth)
        for source in dict.fromkeys(made.sources):
            if depth < _DEEPEST:
                yield from self.links(*source, depth + 1)
            else:
                end = ShapeLink(UNKNOWN, "not followed further", None, self._dimension(*source))
                yield replace(end, depth=depth + 1)

    def _straight(self, value: int, part: Part) -> tuple[list[ShapeLink], int, Part, Made | None]:
        """Follow a dimension to where it ends or branches: the links, the value, what made it.

        A dimension that a `view` split off, and that an earlier `view` had merged, was only carried
        in between, as `linear` does with a batch of sequences.
        """
        path: list[ShapeLink] = []
        split_at = -1
        while True:
            is_end = (value, part) in self._seen or len(self._seen) > _MOST_OPS
            made = None if is_end else self._steps.made(value, part)
            if made is not None:
                path += self._passing(value, part)
            if made is None or len(made.sources) != 1:
                return path, value, part, made
            self._seen.add((value, part))
            link = self._link(made, self._dimension(value, part))
            path.append(link)
            value, part = made.sources[0]
            if link.how == SPLIT:
                split_at = len(path) - 1
            elif split_at >= 0 and part.is_whole(shape_of(self._run, value)):
                if link.how == CARRIED:
                    path[split_at] = replace(path[split_at], how=CARRIED)
                split_at = -1

    def _dimension(self, value: int, part: Part) -> Dimension:
        return Dimension(shape_of(self._run, value), part.dim)

    def _link(self, made: Made, after: Dimension) -> ShapeLink:
        before = [Dimension(shape_of(self._run, n), part.dim) for n, part in made.sources]
        event = self._run.event(made.row)
        return ShapeLink(made.step.how, made.step.text, event, after, tuple(before))

    # Where it comes into a model, and where it ends

    @cached_property
    def _given(self) -> set[int]:
        """Return the tensors that were made outside any module call and given to one."""
        c, tensors = self._run.columns, self._run.tensors
        is_outermost = (c.kind == MODULE) & (self._run.parent_row < 0)
        numbers = tensors.value[is_outermost[tensors.event] & ~tensors.is_output]
        made_by = self._run.producers[numbers]
        return set(numbers[(made_by >= 0) & (self._run.owner_row[made_by] < 0)].tolist())

    def _passing(self, value: int, part: Part) -> list[ShapeLink]:
        """Say that a dimension came into a model here, which the program had made before."""
        after = self._dimension(value, part)
        taken = self._first_taken(value) if value in self._given else None
        return [] if taken is None else [replace(self._input(*taken, after), before=(after,))]

    def _input(self, row: int, path: str, after: Dimension) -> ShapeLink:
        event = self._run.event(row)
        name = analysis.address_of(event, "in", path, with_call=event.call > 0)
        said = path if path.isdecimal() else f"`{path}`"
        return ShapeLink(INPUT, f"input {said} of {event.name}", None, after, name=name)

    def _end(self, value: int, part: Part) -> ShapeLink:
        """Name a value that no recorded event made: a parameter, an input, or what came before."""
        after = self._dimension(value, part)
        if (value, part) in self._seen:
            return ShapeLink(SEEN, "as above", None, after)
        if self._run.producer_row(value) >= 0:
            return ShapeLink(UNKNOWN, f"not followed further than {_MOST_OPS:,} ops", None, after)
        name = self._run.value(value).name
        if name is not None:
            how = PARAMETER if self._parameters.has(name) else BUFFER
            text = f"{how} {name}" + self._setting(name, part.dim)
            return ShapeLink(how, text, None, after, name=name)
        taken = self._first_taken(value)
        if taken is None:
            return ShapeLink(OUTSIDE, "made before the trace", None, after)
        row, path = taken
        event = self._run.event(row)
        if event.kind == "module" and event.parent is None:
            return self._input(row, path, after)
        if self._run.level == "modules":
            text = f"made between module calls, before {event.address}; level='ops' shows how"
            return ShapeLink(UNKNOWN, text, None, after)
        text = f"made before the trace, first taken by {event.address}"
        return ShapeLink(OUTSIDE, text, None, after)

    def _setting(self, name: str, dim: int) -> str:
        """Write which setting of its module a dimension of a parameter is, if that is known."""
        path, _, leaf = name.rpartition(".")
        classes = [module.cls for module in self._run.columns.modules if module.path == path]
        found = setting(classes[0], leaf, dim) if classes else ""
        return f": {found} of {path or classes[0]}" if found else ""

    def _first_taken(self, value: int) -> tuple[int, str] | None:
        """Return the outermost call, or else the first event, that took a value, and its path.

        An observer that meets a tensor from outside may record it as a value of its own.
        """
        c, tensors = self._run.columns, self._run.tensors
        same = (c.storage == c.storage[value]) & (c.meta == c.meta[value])
        same &= self._run.producers == self._run.producers[value]
        rows = tensors.event[~tensors.is_output & same[tensors.value]]
        if not len(rows):
            return None
        outermost = rows[(c.kind[rows] == MODULE) & (self._run.parent_row[rows] < 0)]
        row = int(outermost[0] if len(outermost) else rows[0])
        inputs = self._run.event(row).inputs
        return row, next((path for path, v in inputs.items() if same[v.number]), "")

    def notes(self) -> list[str]:
        """Say what a trace of another kind would show."""
        if self._run.level == "modules":
            return ["the trace has module calls only; clew.trace(level='ops') shows every op"]
        return []


def _folded(path: list[ShapeLink]) -> Iterator[ShapeLink]:
    """Yield links, with each stretch of ops that only carry the dimension as one."""
    carried: list[ShapeLink] = []
    for link in path:
        if link.how == CARRIED:
            carried.append(link)
            continue
        yield from _fold(carried)
        carried = []
        yield link
    yield from _fold(carried)


def _fold(carried: list[ShapeLink]) -> Iterator[ShapeLink]:
    if not carried:
        return
    first, last = carried[0], carried[-1]
    names = list(dict.fromkeys(_op_name(link) for link in carried))
    listed = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
    text = (
        f"carried by {listed}" if len(carried) == 1 else f"carried by {len(carried)} ops: {listed}"
    )
    yield replace(first, text=text, before=last.before, count=len(carried))


def _op_name(link: ShapeLink) -> str:
    assert link.event is not None
    return bare_op(link.event.name)

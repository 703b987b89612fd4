"""Short texts of events for the page: what each is called in a list, and its result.

Input: a `Run` and some rows. Output: `Coded` texts, written as the printed tree writes them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clew.analysis.folded_ops import FoldedOps
from clew.analysis.structure import relative_path
from clew.events.columns import OUT, Coded, Ints, Tensor
from clew.events.vocabulary import LABELLED, MODULE, OF_OPS, PREFIX, STEP, Unseen
from clew.plain_text import plain
from clew.run.lookup import number_lists, numbered
from clew.run.run import Run
from clew.views.text.call_texts import constant_text
from clew.views.text.cells import result_text
from clew.views.text.named_texts import label_text
from clew.views.text.style import clipped, meta_text, short_op

_LONGEST = 24


def event_labels(run: Run, rows: Ints) -> Coded:
    """Return what events are called in a list; nothing for those that no list shows.

    A call has the path of its module within the one that called it, or else its class; an op its
    short name; a variable its name; a gradient or parameter its address.
    """
    c = run.columns
    parent = run.parent_row[rows]
    is_call = c.kind[rows] == MODULE
    above = np.where(is_call & (parent >= 0), c.subject[parent], -1)
    codes = numbered(c.kind[rows], c.subject[rows], above)
    first = _first_rows(codes)
    return Coded(codes, [_label(run, int(rows[at]), int(above[at])) for at in first.tolist()])


def _label(run: Run, row: int, above: int) -> str:
    c = run.columns
    kind, subject = int(c.kind[row]), int(c.subject[row])
    if kind == MODULE:
        outer = c.modules[above].path if above >= 0 else None
        return plain(relative_path(c.modules[subject].path, outer) or run.name(row))
    if kind in (STEP, PREFIX):
        return ""
    if kind in OF_OPS:
        return short_op(plain(run.name(row)))
    if kind in LABELLED and c.labels[subject].role is not None:
        return plain(label_text(c.labels[subject]))
    return plain(run.name(row))


class WrittenOps(NamedTuple):
    """What people wrote: a number for each composite that stands for ops, from 1 on, and its name.

    `of` has for each row the number of the composite that stands for it, 0 for none.
    """

    of: Ints
    names: Coded


def written_ops(run: Run, rows: Ints) -> WrittenOps:
    """Return which composites stand for the ops in some rows, as the tree and the code view say."""
    stands = FoldedOps(run).stands[rows]
    composites, at = np.unique(stands[stands != rows], return_inverse=True)
    of = np.zeros(len(rows), dtype=np.int64)
    of[stands != rows] = at + 1
    codes = numbered(run.columns.subject[composites])
    named = composites[_first_rows(codes)].tolist()
    return WrittenOps(of, Coded(codes, [short_op(plain(run.name(row))) for row in named]))


def result_texts(run: Run, rows: Ints) -> Coded:
    """Return the results of events in a few characters."""
    c, tensors = run.columns, run.tensors
    given = tensors.is_output
    counts = np.bincount(tensors.event[given], minlength=len(run))
    metas = c.meta[tensors.value[given]]
    # The paths matter if there are several results; results may be constants, or inferred.
    template = np.where(counts == 1, -1, c.template)[rows]
    inferred = np.where(c.end[rows] < 0, np.arange(len(rows)), -1)
    codes = numbered(number_lists(counts, metas)[rows], template, inferred)
    ends = np.cumsum(counts)
    texts = []
    for at in _first_rows(codes).tolist():
        row = int(rows[at])
        mine = metas[ends[row] - counts[row] : ends[row]].tolist()
        texts.append(_result(run, row, [meta_text(c.metas[meta]) for meta in mine]))
    return Coded(codes, texts)


def _result(run: Run, row: int, looks: list[str]) -> str:
    if not looks and run.is_reconstructed(row):
        inferred = run.values_of(row, OUT).items()
        return plain(result_text([(path, value.look) for path, value in inferred]))
    leaves = [
        leaf
        for leaf in run.columns.templates[int(run.columns.template[row])].leaves
        if leaf.role == OUT and leaf.constant is not Unseen
    ]
    if looks:
        paths = [leaf.path for leaf in leaves if leaf.constant is Tensor]
        return plain(result_text(list(zip(paths, looks, strict=True))))
    constants = [(leaf.path, constant_text(leaf.constant)) for leaf in leaves]
    return plain(result_text([(path, clipped(text, _LONGEST)) for path, text in constants]))


def _first_rows(codes: Ints) -> Ints:
    """Return for each code the first row that has it."""
    first = np.zeros(int(codes.max(initial=-1)) + 1, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return first

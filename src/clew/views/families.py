"""Families of module classes and of ops, by which views colour them.

Input: the name of a class or an op. Output: the name of its family; the names, patterns and colours
are those of `clew.spec`.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache

from clew.spec import CLASS_FAMILIES, OP_FAMILIES, VIEW_OPS
from clew.views.text.style import base_op

_CLASSES = tuple((name, re.compile(p, re.IGNORECASE)) for name, p in CLASS_FAMILIES if p)
# Classes that fit no pattern get one of these, by their names.
_OTHERS = tuple(name for name, pattern in CLASS_FAMILIES if not pattern)
_OPS = tuple((name, re.compile(p)) for name, p in OP_FAMILIES if p is not None)
VIEW = OP_FAMILIES[0][0]


@lru_cache(maxsize=4096)
def class_family(cls: str) -> str:
    """Return the family of a module's class.

    >>> class_family("GPT2Attention"), class_family("LayerNorm"), class_family("Dropout")
    ('attention', 'norm', 'regular')
    """
    for name, pattern in _CLASSES:
        if pattern.search(cls):
            return name
    return _OTHERS[zlib.crc32(cls.encode(errors="surrogatepass")) % len(_OTHERS)]


@lru_cache(maxsize=4096)
def op_family(name: str) -> str:
    """Return the family of an op.

    >>> op_family("aten.addmm.default"), op_family("aten.t.default"), op_family("aten.add.Tensor")
    ('matmul', 'view', 'math')
    """
    bare = base_op(name)
    if bare in VIEW_OPS:
        return VIEW
    return next(family for family, pattern in _OPS if pattern.search(bare))

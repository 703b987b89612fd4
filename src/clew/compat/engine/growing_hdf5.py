"""An HDF5 file that values are appended to as they come, whatever they are.

Input: values by name, with facts of each. Output: a dataset `name` with a row per value, and
`name_fact` for each fact. Rows of several shapes are aligned at their last axes and filled up at
the ends, a dataset takes on whatever dtype holds all its rows, the parts of a container have
datasets of their own (`name.0`, `name.key`), and what is not numeric is stored as text: in
`name.text` if there are numbers as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clew.errors import ClewError
from clew.optional_packages import optional_package
from clew.request.callbacks import as_array
from clew.views.export.dtypes import Array, DType, cast


class GrowingHdf5:
    """Appends rows to an HDF5 file, which is made, or replaced, when the first one comes.

    Rows that come after `close` are added to the same file.

    `dtypes` says what to store numbers as, by kind: `{"f": "float32", "i": "int32"}`; all else is
    stored as it is. `filters` are those of h5py: `compression`, `compression_opts`, `shuffle`.
    """

    def __init__(self, path: Path, dtypes: Mapping[str, Any], **filters: Any) -> None:
        self.path = path
        self._h5py = optional_package("h5py", "a growing HDF5 file")
        self._dtypes = {kind: np.dtype(asked) for kind, asked in dtypes.items() if asked}
        self._filters = filters
        self._file: Any = None
        self._is_made = False
        # The names of the datasets of each part: of its values, and of their facts.
        self._names: dict[str, list[str]] = {}

    @property
    def file(self) -> Any:
        """Return the file of h5py, open."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._h5py.File(self.path, "a" if self._is_made else "w")
            self._is_made = True
        return self._file

    def append(
        self, name: str, values: Iterable[Any], **facts: tuple[Iterable[Any], int]
    ) -> dict[str, tuple[Any, ...]]:
        """Add a row for each value, and one for each of its facts.

        Facts come with a number to fill them up with. None is added if a dtype that was asked for
        cannot hold one of the values. Returns the datasets that are new, longer or moved by name,
        those of the facts after that of the values.
        """
        columns = [column for column, _ in facts.values()]
        rows = [
            (part, self._stored(part, leaf), of)
            for value, *of in zip(values, *columns, strict=True)
            for part, leaf in _parts(name, value)
        ]
        if not rows:
            return {}
        # All of them if the file was closed: what callers know of them is closed too.
        changed = {} if self._file is not None else dict.fromkeys(self._names)
        for part, row, of in rows:
            is_text = _is_text(row.dtype)
            if self._holds(part, not is_text):
                beside = self._beside(part, is_text)
                if is_text:
                    part = beside
                else:
                    self._move(part, beside)
                    changed[beside] = None
            changed[part] = None
            names = self._names.setdefault(part, [part, *(f"{part}_{key}" for key in facts)])
            fills = (0, *(fill for _, fill in facts.values()))
            for each, item, fill in zip(names, (row, *of), fills, strict=True):
                self._extend(each, np.asarray(item), fill)
        self.file.flush()
        return {
            part: tuple(self.file[name] for name in self._names[part])
            for part in changed if part in self.file
        }  # fmt: skip

    def close(self) -> None:
        """Close the file; its datasets cannot be read through here any more."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _stored(self, name: str, value: Any) -> Array:
        array = as_array(value)
        if array.dtype.kind not in "biufc":
            return np.asarray(value if isinstance(value, str) else repr(value), dtype=object)
        asked = self._dtypes.get(array.dtype.kind, array.dtype)
        try:
            return cast(array, asked, name)
        except ClewError as unfit:
            raise ClewError(f"{name!r} has values that {asked} cannot hold: {unfit}") from unfit

    def _holds(self, part: str, text: bool) -> bool:
        """Return whether there is a dataset of text, or of numbers."""
        return part in self.file and _is_text(self.file[part].dtype) == text

    def _beside(self, part: str, is_there: bool) -> str:
        """Return where the text of a part is that has numbers too; or a free place for it."""
        name = f"{part}.text"
        while self._holds(name, False) or (self._holds(name, True) and not is_there):
            name += ".text"
        return name

    def _move(self, part: str, to: str) -> None:
        names = self._names.pop(part)
        self._names[to] = [to + name.removeprefix(part) for name in names]
        for old, new in zip(names, self._names[to], strict=True):
            self.file.move(old, new)

    def _extend(self, name: str, row: Array, fill: int) -> None:
        """Add a row to a dataset."""
        if name not in self._file:
            self._create(name, (0, *row.shape), row.dtype, fill)
        dataset = self._fitted(name, row, fill)
        if not _is_text(row.dtype):
            row = cast(row, dataset.dtype, name)
        row = row.reshape((1,) * (dataset.ndim - 1 - row.ndim) + row.shape)
        sizes = [max(pair) for pair in zip(dataset.shape[1:], row.shape, strict=True)]
        dataset.resize((len(dataset) + 1, *sizes))
        # Slices as long as the row, which would be repeated to fill longer ones.
        place = (slice(len(dataset) - 1, None), *(slice(0, n) for n in row.shape))
        dataset[place] = row[None]

    def _fitted(self, name: str, row: Array, fill: int) -> Any:
        """Return a dataset with the dtype and the axes that a row needs, made anew if needed."""
        old = self._file[name]
        dtype = old.dtype if _is_text(row.dtype) else np.result_type(old.dtype, row.dtype)
        missing = max(0, row.ndim + 1 - old.ndim)
        if dtype == old.dtype and not missing:
            return old
        content = old[()] if _is_text(dtype) else cast(old[()], dtype, name)
        content = content.reshape(len(content), *(1,) * missing, *content.shape[1:])
        del self._file[name]
        new = self._create(name, content.shape, dtype, fill)
        new[()] = content
        return new

    def _create(self, name: str, shape: tuple[int, ...], dtype: DType, fill: int) -> Any:
        # At least one element in each direction: chunks of none cannot be stored.
        chunks = tuple(max(1, n) for n in (1, *shape[1:])) if 0 in shape[1:] else True
        return self._file.create_dataset(
            name, shape=shape, maxshape=(None,) * len(shape), chunks=chunks,
            dtype=self._h5py.string_dtype() if _is_text(dtype) else dtype,
            fillvalue=None if _is_text(dtype) else np.array(fill, dtype=dtype), **self._filters,
        )  # fmt: skip


def _is_text(dtype: DType) -> bool:
    return dtype.kind == "O"


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield everything in a value that is no container, with the name of each."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _parts(f"{name}.{key}", part)
    elif isinstance(value, (list, tuple)):
        yield from _parts(name, dict(enumerate(value)))
    else:
        yield name, value

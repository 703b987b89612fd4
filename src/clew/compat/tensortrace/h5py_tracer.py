"""TensorTracer's HDF5 callback: gathered values go to a file, and out of memory.

What a value was is what the file has: dtypes are kept unless others are asked for, and a number
that those cannot hold is an error. Datasets grow with the shapes they meet; smaller values are
filled up with zeros at their ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from clew.callbacks import as_array
from clew.compat.tensortrace.tracer import ModelTracer
from clew.compat.tensortrace.variable import row_of, stacked_facts
from clew.errors import ClewError, MissingDependency

Array = np.ndarray[Any, Any]


class Saved(tuple[Any, Any]):
    """The datasets of a variable: `content, iterations = saved`, and `saved.ranks`."""

    ranks: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the content: number of rows first."""
        return tuple(self[0].shape)


class H5PYSaverCallback:
    """Writes what was gathered to datasets `name`, `name_iterations` and `name_ranks`.

    Give it as the last of the `post_gather_callbacks`. Floating-point numbers and integers are
    stored as they are, or as `float_dtype` and `int_dtype`. The parts of a container have datasets
    `name.0` or `name.key`, and what is not numeric is stored as text. An existing file is
    replaced, or left alone with `existing_ok=False`, which raises ValueError.
    """

    def __init__(
        self,
        dataset_file: str | Path,
        iteration_dtype: Any = np.int64,
        float_dtype: Any = None,
        int_dtype: Any = None,
        compression: str | None = None,
        compression_opts: Any = None,
        shuffle: bool = False,
        existing_ok: bool = True,
    ) -> None:
        try:
            import h5py
        except ImportError as missing:
            raise MissingDependency("H5PYSaverCallback", "h5py", "clew[hdf5]") from missing
        self._h5py = h5py
        self.dataset_file = Path(dataset_file)
        if self.dataset_file.exists() and not existing_ok:
            raise ValueError(
                f"{self.dataset_file} exists: give another dataset_file, or existing_ok=True to "
                "replace it"
            )
        self.iteration_dtype = iteration_dtype
        self.float_dtype = float_dtype
        self.int_dtype = int_dtype
        self._filters = {
            "compression": compression, "compression_opts": compression_opts, "shuffle": shuffle,
        }  # fmt: skip
        self.h5_file: Any = None
        self.datasets: dict[str, Saved] = {}

    def __call__(
        self,
        name: str,
        results: Any,
        iterations: list[Any] | None = None,
        ranks: list[Any] | None = None,
    ) -> None:
        """Write the values of a gather; the result, or its lists, are empty afterwards."""
        if iterations is None or ranks is None:
            values, iterations, ranks = results.values, results.iterations, results.ranks
        else:
            values = results
        rows = list(zip(values, iterations, ranks, strict=True))
        for value, iteration, rank in rows:
            for part, array in self._parts(name, value):
                self._append(part, array, iteration, rank)
        if self.h5_file is not None:
            self.h5_file.flush()
        if values is results:
            for emptied in (values, iterations, ranks):
                emptied.clear()
        else:
            results.values, results.iterations, results.ranks = [], [], []

    def close(self) -> None:
        """Close the file; its datasets cannot be read through here any more."""
        if self.h5_file is not None:
            self.h5_file.close()
            self.h5_file = None

    def _parts(self, name: str, value: Any) -> Iterable[tuple[str, Array]]:
        if isinstance(value, dict):
            for key, part in value.items():
                yield from self._parts(f"{name}.{key}", part)
        elif isinstance(value, (list, tuple)):
            yield from self._parts(name, dict(enumerate(value)))
        else:
            array = as_array(value)
            if array.dtype.kind in "biufc":
                yield name, self._converted(name, array)
            elif array.dtype.kind in "US" and array.ndim == 0:
                yield name, np.asarray(str(value), dtype=object)
            else:
                yield name, np.asarray(repr(value), dtype=object)

    def _converted(self, name: str, array: Array) -> Array:
        kinds = {"f": self.float_dtype, "i": self.int_dtype, "u": self.int_dtype}
        asked = kinds.get(array.dtype.kind)
        if asked is None:
            return array
        with np.errstate(over="ignore"):
            result = array.astype(asked)
        same = result == array if result.dtype.kind in "iu" else np.isfinite(result)
        if not np.all(same | ~np.isfinite(array)):
            raise ClewError(
                f"{name!r} has values that {np.dtype(asked).name} cannot hold; leave "
                f"{'float_dtype' if array.dtype.kind == 'f' else 'int_dtype'} out to keep "
                f"{array.dtype.name}"
            )
        return result

    def _append(self, name: str, array: Array, iteration: Any, rank: Any) -> None:
        if self.h5_file is None:
            self.dataset_file.parent.mkdir(parents=True, exist_ok=True)
            self.h5_file = self._h5py.File(self.dataset_file, "w")
        is_text = array.dtype.kind == "O"
        if name in self.datasets and is_text != (self.datasets[name][0].dtype.kind == "O"):
            name = f"{name}.{'text' if is_text else 'number'}"
        facts = np.asarray(iteration, dtype=self.iteration_dtype)
        content = self._added(name, array, 0)
        iterations = self._added(f"{name}_iterations", facts, 0)
        saved = Saved((content, iterations))
        saved.ranks = self._added(f"{name}_ranks", stacked_facts([rank], -1)[0], -1)
        self.datasets[name] = saved

    def _added(self, name: str, row: Array, padding: int) -> Any:
        """A dataset with one row more, and wide enough for it."""
        old = self.h5_file.get(name)
        if old is None:
            old = self._made(name, (0, *row.shape), row.dtype, padding)
        is_text = row.dtype.kind == "O"
        dtype = old.dtype if is_text else np.result_type(old.dtype, row.dtype)
        ndim = max(old.ndim - 1, row.ndim)
        row = row.reshape((1,) * (ndim - row.ndim) + row.shape)
        if dtype != old.dtype or ndim != old.ndim - 1:
            content = old[()]
            del self.h5_file[name]
            lifted = content.reshape(len(content), *(1,) * (ndim + 1 - content.ndim),
                                     *content.shape[1:])  # fmt: skip
            old = self._made(name, lifted.shape, dtype, padding)
            old[()] = lifted
        size = [max(a, b) for a, b in zip(old.shape[1:], row.shape, strict=True)]
        old.resize((len(old) + 1, *size))
        old[row_of(len(old) - 1, row.shape)] = row[None]
        return old

    def _made(self, name: str, shape: tuple[int, ...], dtype: Any, padding: int) -> Any:
        is_text = np.dtype(dtype).kind == "O"
        # At least one element in each direction: chunks of none cannot be stored.
        chunk = tuple(max(1, n) for n in (1, *shape[1:])) if 0 in shape[1:] else True
        return self.h5_file.create_dataset(
            name, shape=shape, maxshape=(None,) * len(shape), chunks=chunk,
            dtype=self._h5py.string_dtype() if is_text else dtype,
            fillvalue=None if is_text else np.array(padding, dtype=dtype), **self._filters,
        )  # fmt: skip


class ModelTracerH5PY(ModelTracer):
    """The first release's tracer, which writes to a file every `saving_interval` passes."""

    def __init__(
        self,
        model: nn.Module,
        variables: list[str],
        dataset_file: str | Path,
        trace_interval: int = 1,
        saving_interval: int = 1,
        eval_only: bool = False,
        train_only: bool = False,
        **settings: Any,
    ) -> None:
        self.saver = H5PYSaverCallback(dataset_file, **settings)
        super().__init__(
            model, variables, trace_interval, saving_interval,
            post_gather_callbacks=[self.saver], eval_only=eval_only, train_only=train_only,
        )  # fmt: skip

    @property
    def datasets(self) -> dict[str, Saved]:
        """The datasets of each variable."""
        return self.saver.datasets


class H5PYTracedModel(nn.Module):
    """A model every pass of which is traced into a file."""

    def __init__(self, model: nn.Module, *args: Any, **settings: Any) -> None:
        super().__init__()
        self.model = model
        self.tracer = ModelTracerH5PY(model, *args, **settings)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """A pass of the model."""
        with self.tracer:
            return self.model(*args, **kwargs)

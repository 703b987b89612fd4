"""TensorTracer's results in an HDF5 file, as they are gathered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from clew.compat.engine.growing_hdf5 import GrowingHdf5
from clew.compat.tensortrace.tracer import ModelTracer, TracedModel
from clew.compat.tensortrace.variable import GlobalVariableResult
from clew.session.environment import rank_and_size


class Saved(tuple[Any, Any]):
    """The datasets of a variable: `content, iterations = saved`, `saved.ranks`, `saved.shape`."""

    ranks: Any
    shape = property(lambda self: self[0].shape)


@dataclass(eq=False)
class H5PYSaverCallback(GrowingHdf5):
    """Writes what was gathered to datasets `name`, `name_iterations` and `name_ranks`.

    Give it as the last of the `post_gather_callbacks`. Floating-point numbers and integers are
    stored as they are, or as `float_dtype` and `int_dtype` if those hold them. An existing file is
    replaced, or left alone with `existing_ok=False`, which raises ValueError.
    """

    dataset_file: str | Path
    iteration_dtype: Any = np.int64
    float_dtype: Any = None
    int_dtype: Any = None
    compression: str | None = None
    compression_opts: Any = None
    shuffle: bool = False
    existing_ok: bool = True

    def __post_init__(self) -> None:
        path = self.dataset_file = Path(self.dataset_file)
        if path.exists() and not self.existing_ok:
            told = "give another dataset_file, or existing_ok=True to replace it"
            raise ValueError(f"{path} exists: {told}")
        dtypes = {"f": self.float_dtype, "i": self.int_dtype, "u": self.int_dtype}
        settings = "compression", "compression_opts", "shuffle"
        super().__init__(path, dtypes, **{name: getattr(self, name) for name in settings})
        self.datasets: dict[str, Saved] = {}

    h5_file = property(lambda self: None if rank_and_size()[0] else self.file)

    def __call__(self, name: str, results: Any, iterations: Any = None, ranks: Any = None) -> None:
        """Write the values of a gather; the result, or its lists, are empty afterwards."""
        given = results if iterations is None else GlobalVariableResult(iterations, ranks, results)
        counts = [np.asarray(each, self.iteration_dtype) for each in given.iterations]
        facts = {"iterations": (counts, 0), "ranks": (given.ranks, -1)}
        for part, (*saved, ranks) in self.append(name, given.values, **facts).items():
            self.datasets[part] = Saved(saved)
            self.datasets[part].ranks = ranks
        given.clear()


class ModelTracerH5PY(ModelTracer):
    """The first release's tracer, which writes to a file every `saving_interval` passes."""

    def __init__(
        self, model: nn.Module, variables: Any, dataset_file: str | Path, trace_interval: int = 1,
        saving_interval: int = 1, eval_only: bool = False, train_only: bool = False, **saving: Any,
    ) -> None:  # fmt: skip
        self.saver = H5PYSaverCallback(dataset_file, **saving)
        self.datasets = self.saver.datasets
        modes, write = (eval_only, train_only), ((), (), [self.saver], ())
        super().__init__(model, variables, trace_interval, saving_interval, *write, *modes)


class H5PYTracedModel(TracedModel):
    """A model every pass of which is traced into a file."""

    tracer_class = ModelTracerH5PY

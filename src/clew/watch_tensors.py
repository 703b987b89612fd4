"""What a watch needs to record tensors, once the program has imported torch, which this imports."""

from __future__ import annotations

from clew.keep import fast_summaries  # noqa: F401 - importing it registers it
from clew.keep.identity import TensorTable
from clew.keep.keeper import Keeper
from clew.observe.variables.frames import monitoring, tracing
from clew.record.recorder import Recorder
from clew.request.interest import Interest
from clew.torch_compat import keep_from_dynamo


def record_tensors(recorder: Recorder) -> None:
    """Let the recorder of a watch keep tensors as well as arrays, in the tables it has."""
    keep_from_dynamo((monitoring, tracing))
    values = recorder.values
    table = TensorTable(recorder.modules)
    table.values = values.tensors.values
    values.tensors = table
    values.keep(
        lambda: Keeper("meta", Interest(), values.budget, recorder.gaps.add, values.kept), False
    )

"""What only a live crash knows: tensors of the failing line by their names, and bad indices.

The session notes them in the trace's environment under `crash_facts`; here they are read back.
Input: an environment, perhaps of a file from a stranger. Output: `CrashFacts`; what is damaged is
left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KEY = "crash_facts"
# The name among `indices` of what the innermost module was called with first.
GIVEN = ":in"


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Dtype, shape and device of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    device: str
    requires_grad: bool

    def to_json(self) -> list[Any]:
        """Return the facts as they are stored."""
        return [self.dtype, list(self.shape), self.device, self.requires_grad]


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """The smallest and the largest number in an integer tensor, and where each is first."""

    least: int
    least_at: tuple[int, ...]
    most: int
    most_at: tuple[int, ...]

    def to_json(self) -> list[Any]:
        """Return the facts as they are stored."""
        return [self.least, list(self.least_at), self.most, list(self.most_at)]


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """A tuple, list or dict with tensors in it: what it is, and how many items it has."""

    kind: str
    count: int

    def to_json(self) -> list[Any]:
        """Return the facts as they are stored."""
        return [self.kind, self.count]


@dataclass(frozen=True, slots=True)
class CrashFacts:
    """What was at hand when it crashed: tensors by their text in the source, indices alike.

    `containers` are tuples, lists and dicts, whose tensors are among `tensors` as `xs[0]`.
    `parameters` are those of the module that failed, by their names in it; `devices` and
    `dtypes` count the parameters and buffers of the whole model. `inner` is the text of the
    exception that these facts are about, if the one that ended the program was raised from it.
    `batch` says which sample of a DataLoader's batch has another shape than the others.
    """

    tensors: dict[str, TensorFacts] = field(default_factory=dict)
    parameters: dict[str, TensorFacts] = field(default_factory=dict)
    indices: dict[str, IndexFacts] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    dtypes: dict[str, int] = field(default_factory=dict)
    containers: dict[str, ContainerFacts] = field(default_factory=dict)
    inner: str | None = None
    batch: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the facts as they are stored."""
        return {
            "tensors": {name: one.to_json() for name, one in self.tensors.items()},
            "parameters": {name: one.to_json() for name, one in self.parameters.items()},
            "indices": {name: one.to_json() for name, one in self.indices.items()},
            "devices": self.devices,
            "dtypes": self.dtypes,
            "containers": {name: one.to_json() for name, one in self.containers.items()},
            **({} if self.inner is None else {"inner": self.inner}),
            "batch": self.batch,
        }


def crash_facts(environment: dict[str, Any]) -> CrashFacts:
    """Return the facts that an environment holds, without those that are damaged."""
    noted = environment.get(KEY)
    if not isinstance(noted, dict):
        return CrashFacts()
    inner = noted.get("inner")
    return CrashFacts(
        _read(noted.get("tensors"), _tensor),
        _read(noted.get("parameters"), _tensor),
        _read(noted.get("indices"), _index),
        _read(noted.get("devices"), int),
        _read(noted.get("dtypes"), int),
        _read(noted.get("containers"), _container),
        inner if isinstance(inner, str) else None,
        str(noted.get("batch", "")),
    )


def _read(noted: Any, load: Any) -> dict[str, Any]:
    if not isinstance(noted, dict):
        return {}
    found = {}
    for name, row in noted.items():
        try:
            found[str(name)] = load(row)
        except (TypeError, ValueError):
            continue
    return found


def _tensor(row: Any) -> TensorFacts:
    dtype, shape, device, requires_grad = row
    return TensorFacts(str(dtype), _ints(shape), str(device), bool(requires_grad))


def _index(row: Any) -> IndexFacts:
    least, least_at, most, most_at = row
    return IndexFacts(int(least), _ints(least_at), int(most), _ints(most_at))


def _container(row: Any) -> ContainerFacts:
    kind, count = row
    return ContainerFacts(str(kind), int(count))


def _ints(row: Any) -> tuple[int, ...]:
    return tuple(int(number) for number in row)


def most_common(counts: dict[str, int]) -> str | None:
    """Return what there is most of, None if there is nothing or no single such thing."""
    most = max(counts.values(), default=0)
    found = [name for name, count in counts.items() if count == most]
    return found[0] if len(found) == 1 else None

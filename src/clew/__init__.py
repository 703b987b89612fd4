"""Clew: what happened to every tensor, in one trace.

>>> import torch, clew
>>> model = torch.nn.Linear(3, 2)
>>> with clew.trace(model) as t:
...     y = model(torch.zeros(1, 3))
>>> t.ops[-1].name
'aten.addmm.default'
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

__version__ = "0.1.0"

_HOME = {
    "Callbacks": "clew.request.callbacks",
    "ClewError": "clew.errors",
    "ClewWarning": "clew.errors",
    "Diff": "clew.analysis.diff.divergence",
    "Hdf5": "clew.events.outputs",
    "Limits": "clew.request.limits",
    "Noise": "clew.analysis.diff.noise",
    "NonFiniteError": "clew.errors",
    "RankAgreement": "clew.analysis.ranks.agreement",
    "Trace": "clew.traces",
    "calibrate": "clew.replay.calibrating",
    "determinism": "clew.replay.reproducing",
    "diff": "clew.traces",
    "diff_models": "clew.replay.models",
    "guard": "clew.session.guard",
    "load": "clew.traces",
    "noise_of": "clew.traces",
    "prefix": "clew.observe.taps",
    "ranks": "clew.traces",
    "recorder": "clew.session.flight_recorder",
    "schedule": "clew.request.limits",
    "tap": "clew.observe.taps",
    "trace": "clew.session",
    "watch": "clew.watching",
}

__all__ = [
    "Callbacks",
    "ClewError",
    "ClewWarning",
    "Diff",
    "Hdf5",
    "Limits",
    "Noise",
    "NonFiniteError",
    "RankAgreement",
    "Trace",
    "__version__",
    "calibrate",
    "determinism",
    "diff",
    "diff_models",
    "guard",
    "load",
    "noise_of",
    "prefix",
    "ranks",
    "recorder",
    "schedule",
    "tap",
    "trace",
    "watch",
]

logging.getLogger("clew").addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from clew.analysis.diff.divergence import Diff
    from clew.analysis.diff.noise import Noise
    from clew.analysis.ranks.agreement import RankAgreement
    from clew.errors import ClewError, ClewWarning, NonFiniteError
    from clew.events.outputs import Hdf5
    from clew.observe.taps import prefix, tap
    from clew.replay.calibrating import calibrate
    from clew.replay.models import diff_models
    from clew.replay.reproducing import determinism
    from clew.request.callbacks import Callbacks
    from clew.request.limits import Limits, schedule
    from clew.session import trace
    from clew.session.flight_recorder import recorder
    from clew.session.guard import guard
    from clew.traces import Trace, diff, load, noise_of, ranks
    from clew.watching import watch


__getattr__ = lazy_names(globals(), _HOME)


def __dir__() -> list[str]:
    return __all__

"""Make the observer of watched variables of a trace, which also reports them live if asked to."""

from __future__ import annotations

from clew.keep import fast_summaries as fast_summaries  # which is known once it is loaded
from clew.observe.variables.frames import monitoring, tracing
from clew.observe.variables.selector import watched_names
from clew.observe.variables.user_code import Scope
from clew.observe.variables.watched import WatchSource
from clew.observe.variables.watched_calls import WatchOptions
from clew.record.gaps import Gaps
from clew.record.recorder import Recorder
from clew.request.request import Request
from clew.torch_compat import keep_from_dynamo
from clew.watch_output import output_for


def watch_source(recorder: Recorder, request: Request, gaps: Gaps) -> WatchSource:
    """Return the observer of the variables that a request names."""
    keep_from_dynamo((monitoring, tracing))
    values = "stats" if request.values == "meta" else request.values
    options = WatchOptions(watched_names(request.watch), values)
    show = None
    if request.live:
        output = output_for(None, 3, False)
        show = None if output is None else output.show
    return WatchSource(recorder, options, Scope(), show, gaps.tell, everywhere=True)

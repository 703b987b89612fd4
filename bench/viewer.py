"""Opening a report of many events in a real browser: how soon it can be used, how it scrolls.

Run as `python -m bench.viewer <events>`; prints one JSON object. The trace is of training steps
with the statistics of every tensor, which is what fills a report.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch

from bench.workloads import training_trace
from tests.browser.page import Page

OPENINGS = 3
SCROLL_STEPS = 60

# Open everything, then scroll through it; how long one step took from asking to drawn, the worst.
_SCROLL = """(async () => {
    const list = document.getElementById('tree');
    const more = document.querySelector('.tree .bar button');
    const begun = performance.now();
    for (let level = 0; level < 8; level++) more.click();
    const opened = performance.now() - begun;
    const frame = () => new Promise(requestAnimationFrame);
    const times = [];
    for (let step = 1; step <= STEPS; step++) {
        await frame();
        const before = performance.now();
        list.scrollTop = (list.scrollHeight - list.clientHeight) * step / STEPS;
        list.dispatchEvent(new Event('scroll'));
        list.getBoundingClientRect();
        times.push(performance.now() - before);
    }
    const rows = document.querySelector('.tree .space').offsetHeight / 24;
    return {opened, rows, worst: Math.max(...times)};
})()""".replace("STEPS", str(SCROLL_STEPS))


def main(wanted: int) -> None:
    torch.set_num_threads(1)
    trace = training_trace(wanted)
    with tempfile.TemporaryDirectory() as folder, Page() as page:
        begun = time.perf_counter()
        report = trace.html(Path(folder) / "report.html", events=2 * wanted)
        written = time.perf_counter() - begun
        ready = []
        for _ in range(OPENINGS):
            page.open(report.path)
            ready.append(float(page.evaluate("document.documentElement.dataset.ready")))
        scrolled = page.evaluate(_SCROLL)
    found = {
        "events": report.events,
        "megabytes": report.size / 1e6,
        "written": written,
        "ready": min(ready),
        "opened": scrolled["opened"],
        "rows": scrolled["rows"],
        "scroll": scrolled["worst"],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))

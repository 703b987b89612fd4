"""A page in a real browser, for tests: a Node process drives Chromium, this asks it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.processes import HANG_GUARD

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Seconds after which something in the browser hangs: a busy machine takes a few.
PATIENCE = 120


class BrowserError(AssertionError):
    """The browser could not do what was asked."""


class Page:
    """One browser; `open` begins anew with a file."""

    def __init__(self) -> None:
        browser = next((found for found in map(shutil.which, BROWSERS) if found), None)
        node = shutil.which("node")
        tools = HERE.parents[1] / "viewer" / "node_modules" / "playwright-core"
        if browser is None or node is None or not tools.exists():
            raise BrowserError("the tests of the viewer need Node and Chromium: run `make browser`")
        self._process = subprocess.Popen(
            [node, str(HERE / "driver.mjs"), browser, str(PATIENCE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(HANG_GUARD)
        self._process.stdout.close()

    def _ask(self, command: str, **given: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"command": command, **given}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BrowserError(f"the browser ended while asked to {command} {given}")
        answer = json.loads(line)
        if "error" in answer:
            raise BrowserError(f"{command} {given}: {answer['error']}")
        return answer["value"]

    def open(self, path: Path, at: str = "", **options: Any) -> None:
        """Open a report and wait until it is ready."""
        self._ask("open", url=path.as_uri() + (f"#{at}" if at else ""), **options)
        self.until("document.documentElement.dataset.ready !== undefined")

    def open_any(self, path: Path) -> None:
        """Open a file that is no report, or a broken one."""
        self._ask("open", url=path.as_uri())

    def evaluate(self, code: str, frame: bool = False) -> Any:
        """What a JavaScript expression gives."""
        return self._ask("evaluate", code=code, frame=frame)

    def until(self, code: str, frame: bool = False) -> None:
        """Wait until a JavaScript expression is true."""
        self._ask("until", code=code, frame=frame)

    def click(self, selector: str, **options: Any) -> None:
        self._ask("click", selector=selector, options=options)

    def double_click(self, selector: str) -> None:
        self._ask("dblclick", selector=selector)

    def press(self, *keys: str) -> None:
        for key in keys:
            self._ask("press", key=key)

    def type(self, text: str) -> None:
        self._ask("type", text=text)

    def wheel(self, selector: str, y: int) -> None:
        self._ask("wheel", selector=selector, y=y)

    def drag(self, *points: tuple[float, float]) -> None:
        """Press the mouse at the first place, move it along the others, let it go."""
        self._ask("drag", points=points)

    def download(self, selector: str) -> tuple[str, Path]:
        """The name and place of the file that a click saves."""
        name, path = self._ask("download", selector=selector)
        return str(name), Path(path)

    def drag_in(self, selector: str, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Press at a point of an element, move to another, let go."""
        self._ask("drag_in", selector=selector, start=start, end=end)

    def hover(self, selector: str, **options: Any) -> None:
        self._ask("hover", selector=selector, options=options)

    def reload(self) -> None:
        """Load the same address again and wait until the page is ready."""
        self._ask("reload")
        self.until("document.documentElement.dataset.ready !== undefined")

    def media(self, media: str) -> None:
        """Show the page as on a `screen` or in `print`."""
        self._ask("media", media=media)

    def pdf(self, path: Path) -> None:
        self._ask("pdf", path=str(path))

    def text(self, selector: str) -> str:
        """The text of the first element there is, empty if there is none."""
        code = f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"
        return str(self.evaluate(code))

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements in sight."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return list(
            self.evaluate(f"{found}.filter(e => !e.closest('[hidden]')).map(e => e.textContent)")
        )

    def screenshot(self, path: Path) -> None:
        self._ask("screenshot", path=str(path))

    def heard(self) -> tuple[list[str], list[str]]:
        """What the page said on its console, and what it asked the network for."""
        heard = self._ask("heard")
        return heard["problems"], heard["requests"]

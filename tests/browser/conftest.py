"""What the tests of the pages share: the browser, in which nothing may go wrong, and one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.browser.page import Page

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with Page() as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """The browser; afterwards nothing may have gone wrong in it, or been asked of the network."""
    yield browser
    problems, requests = browser.heard()
    assert problems == []
    assert [url for url in requests if not url.startswith("file:")] == []
    assert len(requests) <= 1, f"the page loaded other files: {requests}"

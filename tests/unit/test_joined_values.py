"""What is known of values whose slices were recorded one by one."""

from __future__ import annotations

import numpy as np
import pytest

from clew.analysis.diff.joined_values import _stacked
from clew.events.fingerprint import SUMS, packed_fingerprint


@pytest.mark.parametrize(("count", "shape"), [(3, (4,)), (7, (2, 1, 5)), (70, (2, 40)), (33, (1,))])
def test_slices_have_the_fingerprint_of_what_they_are_stacked_to(
    count: int, shape: tuple[int, ...]
) -> None:
    slices = np.random.default_rng(0).normal(size=(count, *shape))
    sums = [np.frombuffer(packed_fingerprint(one))[1 + len(shape) :] for one in slices]
    assert len(sums[0]) > len(SUMS)
    whole = np.frombuffer(packed_fingerprint(slices))
    np.testing.assert_allclose(_stacked(shape, np.stack(sums)), whole, rtol=1e-9, atol=1e-12)

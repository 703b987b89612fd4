"""How two values relate, from their elements: each relation is named, and noise has none."""

from __future__ import annotations

import numpy as np
import pytest

from clew.analysis.diff.elements import Array, distance_text, element_relation

X = np.random.default_rng(0).standard_normal((3, 5, 5)).astype(np.float32)
VECTOR = np.linspace(1, 2, 5, dtype=np.float32)


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (X.transpose(0, 2, 1), "b is a with its dimensions in the order (0, 2, 1)"),
        (X.transpose(2, 0, 1), "b is a with its dimensions in the order (2, 0, 1)"),
        (X.reshape(15, 5), "b is a in another shape"),
        (np.roll(X, 1, axis=1), "b is a shifted by one along dimension 1"),
        (np.roll(X, -1, axis=2), "b is a shifted by one backwards along dimension 2"),
        (X[:, ::-1], "b is a reversed along dimension 1"),
        (X + 0.5, "b is a + 0.5"),
        (X + VECTOR, "b is a + a vector along dimension 2, as of a bias"),
        (X + VECTOR[:, None], "b is a + a vector along dimension 1, as of a bias"),
        (X * VECTOR, "b is a × a vector along dimension 2, as of a weight"),
        (X.astype(np.float16), "b is a rounded to float16"),
        (np.trunc(X), "b is a rounded to whole numbers"),
    ],
)
def test_a_simple_relation_is_named(y: Array, said: str) -> None:
    assert element_relation(X, y) == said
    # Also where rounding hides it a little, but for casts, which are exact.
    if "rounded" not in said:
        noise = 1 + 1e-7 * np.random.default_rng(1).standard_normal(y.shape)
        assert element_relation(X, y * noise).split(".")[0] == said.split(".")[0]


def test_rounding_to_bfloat16_is_named_on_either_side() -> None:
    torch = pytest.importorskip("torch")
    rounded = torch.from_numpy(X).bfloat16().float().numpy()
    assert element_relation(X, rounded) == "b is a rounded to bfloat16"
    assert element_relation(rounded, X) == "a is b rounded to bfloat16"


@pytest.mark.parametrize(
    "y",
    [
        X * (1 + 1e-3 * np.random.default_rng(2).standard_normal(X.shape)),
        np.random.default_rng(3).standard_normal(X.shape),
        np.zeros_like(X),
        np.full_like(X, np.nan),
        X[:2],
    ],
)
def test_noise_and_other_values_have_no_relation(y: Array) -> None:
    assert element_relation(X, y) == ""
    assert element_relation(np.ones(1), np.zeros(1)) == ""


def test_the_distance_is_told_in_numbers_between_two_elements() -> None:
    x = np.array([1.0, -1.0, 0.0, 2.0], dtype=np.float32)
    y = x.copy()
    y[1] = np.nextafter(np.nextafter(x[1], np.float32(0)), np.float32(0))
    said = distance_text(x, y, "float32")
    assert said.startswith("1 of 4 elements differ: by at most 1.19e-07")
    assert ", 2 ulp; cosine 1.000000" in said
    y[1] = -(1 - 2**-8)
    assert ", 1 ulp;" in distance_text(x, y, "bfloat16")
    around = distance_text(np.float32([1e-45]), np.float32([-1e-45]), "float32")
    assert ", 2 ulp;" in around
    assert "ulp" not in distance_text(x, np.float32([1, 2, 3, np.inf]), "float32")

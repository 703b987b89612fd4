"""Sizes of tensors that do not go together: products, sums, joins, views, losses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from math import prod

from clew.analysis.crashes.cause import Cause
from clew.analysis.crashes.fitting import (
    flattening,
    missing_dim,
    ones_inserted,
    swapped_dims,
    to_last,
)
from clew.analysis.crashes.layer_sizes import resized
from clew.analysis.crashes.origins import is_batch, origin_of
from clew.analysis.crashes.scene import GivenTensor, Scene
from clew.analysis.crashes.sides import changed_sides, is_resized, padding_that_fits

_TRANSPOSED = ".transpose(-2, -1)"
_ADDING = ("addmm", "baddbmm", "addbmm")
_PRODUCTS = ("@", "matmul", "mm", "bmm", "linear", *_ADDING)


def product_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which sizes of a matrix product differ, and which transpose makes them equal."""
    floats = [one for one in scene.arguments if len(one.shape) >= 1 and one.is_float]
    function = "" if scene.failed is None else scene.failed.function.rpartition(".")[2]
    if len(floats) < 2 or function not in _PRODUCTS:
        return None
    left, right = floats[-2:] if function in _ADDING else floats[:2]
    if function == "linear":
        return _linear(left, right)
    if len(right.shape) < 2 or left.shape[-1] == right.shape[-2]:
        return None
    says = (
        f"the last dimension of {left.name} is {left.shape[-1]}, "
        f"the second to last of {right.name} is {right.shape[-2]}"
    )
    sides = (left, len(left.shape) - 1), (right, len(right.shape) - 2)
    return Cause((says,), _product_guess(scene, left, right), changed_sides(scene, *sides))


def _linear(given: GivenTensor, weight: GivenTensor) -> Cause | None:
    if len(weight.shape) != 2 or given.shape[-1] == weight.shape[1]:
        return None
    says = f"{weight.name} takes [..., {weight.shape[1]}]; {given.name} is [..., {given.shape[-1]}]"
    flat, turned = flattening(given.shape, weight.shape[1]), to_last(given.shape, weight.shape[1])
    back = given.shape[-1] == weight.shape[0]
    guess = None
    if back and flat is None and turned is None:
        guess = weight.changed(".T")
    elif flat is not None and turned is None and not back:
        guess = given.changed(flat)
    elif turned is not None and flat is None and not back and len(given.shape) > 2:
        guess = given.changed(turned)
    return Cause((says,), guess, ((given, len(given.shape) - 1),))


def _product_guess(scene: Scene, left: GivenTensor, right: GivenTensor) -> str | None:
    if len(left.shape) < 2:
        return None
    rows, inner = left.shape[-2:]
    outer, columns = right.shape[-2:]
    if not _batches_fit(left, right):
        return None
    turned_right, turned_left, swapped = inner == columns, rows == outer, columns == rows
    if left.shape == right.shape:
        # Of two equal shapes it is the second that is transposed: queries and keys.
        turned_left = False
    if turned_right + turned_left + swapped != 1:
        return None
    if swapped:
        return f"{right.name} and {left.name} swapped"
    turned = right if turned_right else left
    if len(turned.shape) == 2 and is_batch(scene.run, turned.number):
        return None
    guess = turned.changed(".T" if len(turned.shape) == 2 else _TRANSPOSED)
    if left.name != right.name:
        return guess
    return f"{left.name} @ {guess}" if turned_right else f"{guess} @ {right.name}"


def _batches_fit(left: GivenTensor, right: GivenTensor) -> bool:
    pairs = zip(reversed(left.shape[:-2]), reversed(right.shape[:-2]), strict=False)
    return all(one == two or 1 in (one, two) for one, two in pairs)


def broadcast_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which dimensions of two tensors differ, and what makes them broadcast."""
    sizes = int(match["one"]), int(match["two"])
    dim = int(match["dim"])
    pairs = _pairs_with(scene.arguments, sizes, dim)
    if not pairs:
        return None
    left, right = pairs[0]
    back = dim - max(len(left.shape), len(right.shape))
    sides = [(one, len(one.shape) + back) for one in (left, right)]
    says = ", ".join(f"dimension {at} of {one.name} is {one.shape[at]}" for one, at in sides)
    if len(left.shape) == len(right.shape):
        says = (
            f"dimension {dim}: {left.name} has {left.shape[dim]}, {right.name} {right.shape[dim]}"
        )
    guess = _widened(left, right) or _widened(right, left)
    if guess is None:
        turned = swapped_dims(right.shape, left.shape)
        guess = right.changed(turned) if turned is not None else None
    if guess is None:
        guess = padding_that_fits(scene, left, right)
    is_only = len(pairs) == 1
    return Cause((says,), guess if is_only else None, changed_sides(scene, *sides))


def _widened(small: GivenTensor, big: GivenTensor) -> str | None:
    if len(small.shape) >= len(big.shape):
        return None
    ones = ones_inserted(small.shape, big.shape)
    return None if ones is None else small.changed(ones)


def _pairs_with(
    arguments: tuple[GivenTensor, ...], sizes: tuple[int, int], dim: int
) -> list[tuple[GivenTensor, GivenTensor]]:
    """Return pairs of arguments that have two sizes at a dimension of the wider one."""
    found = []
    for at, left in enumerate(arguments):
        for right in arguments[at + 1 :]:
            wide = max(len(left.shape), len(right.shape))
            mine = [_at(one.shape, dim - wide) for one in (left, right)]
            if sorted(mine) == sorted(sizes):
                found.append((left, right))
    return found


def _at(shape: tuple[int, ...], back: int) -> int:
    return shape[back] if -back <= len(shape) and back < 0 else -1


def cat_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which tensors of a `cat` do not go together, and where else they would."""
    dim = int(match["dim"])
    shapes = [one.shape for one in scene.arguments]
    if len(shapes) < 2 or len({len(shape) for shape in shapes}) != 1:
        return None
    apart = [d for d in range(len(shapes[0])) if len({shape[d] for shape in shapes}) > 1]
    wrong = [d for d in apart if d != dim]
    if not wrong:
        return None
    sizes = ", ".join(_sizes_at(scene.arguments, wrong[0]))
    says = f"only dimension {dim} may differ; dimension {wrong[0]} does: {sizes}"
    made = [one for one in scene.arguments if is_resized(scene, one, wrong[0])]
    odd = made[0] if made else _odd_one(scene.arguments, wrong[0])
    # Batches that differ are not joined elsewhere: one of them is wrong. So is what a layer made.
    is_elsewhere = len(apart) == 1 and apart[0] > 0 and not made
    guess = f"dim={apart[0]}" if is_elsewhere else None
    if guess is None and len(scene.arguments) == 2:
        guess = _turned_to_join(*scene.arguments, dim)
    if len(scene.arguments) == 2:
        sides = [(one, wrong[0]) for one in scene.arguments]
        return Cause((says,), guess, changed_sides(scene, *sides))
    return Cause((says,), guess, () if odd is None else ((odd, wrong[0]),))


def _sizes_at(arguments: tuple[GivenTensor, ...], dim: int) -> Iterator[str]:
    """Yield the size of each tensor; of many only those that are not as most of them are."""
    sizes = [one.shape[dim] for one in arguments]
    usual = max(set(sizes), key=sizes.count)
    if sizes.count(usual) < 3:
        yield from (f"{one.name} {one.shape[dim]}" for one in arguments)
        return
    yield from (f"{one.name} {one.shape[dim]}" for one in arguments if one.shape[dim] != usual)
    yield f"the others {usual}"


def _turned_to_join(first: GivenTensor, second: GivenTensor, dim: int) -> str | None:
    """Return the one transpose of one of two tensors after which they can be joined."""
    found = [
        one.changed(turned)
        for one, other in ((first, second), (second, first))
        for turned in _transposes(one.shape, other.shape, dim)
    ]
    return found[0] if len(found) == 1 else None


def _transposes(shape: tuple[int, ...], other: tuple[int, ...], free: int) -> Iterator[str]:
    """Yield the transposes after which a shape is another one, but for one free dimension."""
    for one, two in combinations(range(len(shape)), 2):
        turned = list(shape)
        turned[one], turned[two] = turned[two], turned[one]
        pairs = enumerate(zip(turned, other, strict=True))
        if all(mine == theirs or at == free for at, (mine, theirs) in pairs):
            yield f".transpose({one}, {two})"


def _odd_one(arguments: tuple[GivenTensor, ...], dim: int) -> GivenTensor | None:
    """Return the first tensor that has another size than most of them."""
    sizes = [one.shape[dim] for one in arguments]
    usual = max(sizes, key=sizes.count)
    return next((one for one in arguments if one.shape[dim] != usual), None)


def count_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which tensor of a `cat` lacks a dimension."""
    if len(scene.arguments) != 2:
        return None
    small, big = sorted(scene.arguments, key=lambda one: len(one.shape))
    if len(small.shape) + 1 != len(big.shape):
        return None
    says = f"{small.name} has {len(small.shape)} dimensions, {big.name} {len(big.shape)}"
    dim = missing_dim(small.shape, big.shape)
    if dim is None:
        dim = _joined_dim(small.shape, big.shape)
    return Cause((says,), None if dim is None else small.changed(f".unsqueeze({dim})"))


def _joined_dim(small: tuple[int, ...], big: tuple[int, ...]) -> int | None:
    """Return the one dimension without which the bigger shape is the smaller one."""
    found = [dim for dim in range(len(big)) if (*big[:dim], *big[dim + 1 :]) == small]
    return found[0] if len(found) == 1 else None


def stack_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which tensors of a `stack` differ."""
    shapes = {one.shape for one in scene.arguments}
    if len(shapes) < 2:
        return None
    all_shapes = [one.shape for one in scene.arguments]
    usual = max(all_shapes, key=all_shapes.count)
    first = next(one for one in scene.arguments if one.shape == usual)
    other = next(one for one in scene.arguments if one.shape != usual)
    says = f"{other.name} differs from {first.name}: {other.look} and {first.look}"
    turned = swapped_dims(other.shape, first.shape)
    is_only = len(scene.arguments) > 2 or len(first.shape) > 2
    guess = other.changed(turned) if turned and is_only else None
    if len(first.shape) != len(other.shape):
        return Cause((says,), guess)
    dim = next(d for d, size in enumerate(usual) if other.shape[d] != size)
    return Cause((says,), guess, changed_sides(scene, (other, dim), (first, dim)))


def view_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell how many elements a view asks for, and which size of it would fit."""
    asked = tuple(int(size) for size in re.findall(r"-?\d+", match["shape"]))
    count = int(match["count"])
    given = next((one for one in scene.arguments if one.size == count), None)
    known = prod(size for size in asked if size >= 0)
    if -1 in asked:
        says = f"{count} elements cannot be shared out into groups of {known}"
    else:
        says = f"the new shape has {known} elements, the tensor has {count}"
    if given is None or not given.shape:
        return Cause((says,))
    return Cause((says,), _view_guess(asked, given))


def _view_guess(asked: tuple[int, ...], given: GivenTensor) -> str | None:
    batch = given.shape[0]
    each = given.size // batch if batch else 0
    rest = prod(asked[1:])
    if not each or len(asked) < 2 or len(given.shape) < 2 or min(asked[1:]) < 0:
        return None
    if asked[0] not in (-1, batch) and rest == each:
        return f"{batch}, or -1, in place of {asked[0]}: the batch has {batch}"
    if len(asked) == 2 and len(given.shape) > 2 and asked[0] in (-1, batch) and rest != each:
        return f"{each} in place of {asked[1]}: each sample has {each} elements"
    return None


def stride_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell what to do where a view needs memory in another order."""
    says = "the tensor's memory is in another order, as after a transpose or permute"
    return Cause((says,), ".reshape(...) in place of .view(...)")


def target_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell how logits and targets of a loss must go together."""
    floats = [one for one in scene.arguments if one.is_float]
    targets = [one for one in scene.arguments if one.is_integer]
    if len(floats) < 1 or len(targets) != 1:
        return None
    logits, target = floats[0], targets[0]
    count = len(logits.shape)
    wanted = ",".join(str(size) for at, size in enumerate(logits.shape) if at != 1)
    says = (
        f"for {logits.name} {logits.look} a target of classes is [{wanted}], its sizes without "
        f"dimension 1; {target.name} is {target.look}"
    )
    if count == 3 and target.shape == logits.shape[:2] and logits.shape[1] != logits.shape[2]:
        return Cause(
            (says, "the classes must be in dimension 1"), logits.changed(".transpose(1, 2)")
        )
    if count == 2 and len(target.shape) > 1 and target.size == logits.shape[0]:
        return Cause((says,), target.changed(".flatten()"))
    if count == 2 and len(target.shape) == 1 and target.size == 0:
        return Cause((says,))
    if count == 3 and len(target.shape) == 1 and target.size == logits.shape[0] * logits.shape[1]:
        return Cause((says,), logits.changed(".flatten(0, 1)"))
    return Cause((says,))


def same_size_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which of two tensors of a loss lacks a dimension of one."""
    if len(scene.arguments) < 2:
        return None
    one, two = scene.arguments[:2]
    says = f"{one.name} {one.look} and {two.name} {two.look} must have the same sizes"
    small, big = sorted((one, two), key=lambda argument: len(argument.shape))
    dim = missing_dim(small.shape, big.shape)
    if dim is not None and big.shape[dim] == 1:
        change, other = small.changed(f".unsqueeze({dim})"), big.changed(f".squeeze({dim})")
        return Cause((says,), f"{change}, or {other}")
    return Cause((says,))


def hidden_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell that the state of a recurrent layer is of another batch or width."""
    layer = scene.layer
    expected = [int(size) for size in re.findall(r"\d+", match["expected"])]
    got = [int(size) for size in re.findall(r"\d+", match["got"])]
    if layer is None or layer.given is None or len(expected) != len(got):
        return None
    given, first = layer.given, bool(layer.settings.get("batch_first"))
    state = next((one for one in scene.arguments if list(one.shape) == got), None)
    says = f"{'the state' if state is None else state.name} must be {expected} and is {got}"
    if expected[-1] != got[-1]:
        origin = None if state is None else origin_of(scene.run, state.number, len(got) - 1)
        return Cause((says,), resized(layer, "hidden_size", got[-1], origin))
    if len(got) != 3 or len(given.shape) != 3 or got[1] == expected[1]:
        return Cause((says,))
    says += f": {layer.name} has batch_first={first} and reads a batch of {expected[1]}"
    fits = got[1] == given.shape[1 if first else 0]
    return Cause((says,), f"batch_first={not first} in {layer.name}" if fits else None)

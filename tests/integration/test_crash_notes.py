"""Notes of crashes: what failed, its arguments by name, the layer, the cause and the guess.

Each program is real and crashes for real. `note_of` also checks that the saved trace says the same.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import clew
from clew.analysis.crashes import types_and_devices
from clew.cli.main import main
from tests.models import Call
from tests.outcomes import guess


class Convolutional(nn.Module):
    def __init__(self, in_features: int = 8 * 4 * 4, flat: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(in_features, 5)
        self.flat = flat

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.conv(x)))
        if self.flat:
            h = h.flatten(1)
        return self.fc(h)


# Sizes that a layer does not take


def test_a_missing_flatten(note_of: Callable[..., str]) -> None:
    model = Convolutional()
    note = note_of(lambda: model(torch.ones(2, 3, 4, 4)), model)
    for part in (
        "aten.addmm.default failed in fc", "return self.fc(h)", "h f32[2,8,4,4]",
        "fc.weight f32[5,128]", "fc is Linear(in_features=128, out_features=5)",
        "fc takes [..., 128] and was given [..., 4]",
    ):  # fmt: skip
        assert part in note
    assert guess(note) == "h.flatten(1)"


def test_a_wrong_in_features(note_of: Callable[..., str]) -> None:
    model = Convolutional(in_features=100, flat=True)
    note = note_of(lambda: model(torch.ones(2, 3, 4, 4)), model)
    assert guess(note) == "in_features=128 in fc"


def test_layers_in_a_container_that_do_not_follow_each_other(note_of: Callable[..., str]) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(5, 3))
    x = torch.ones(2, 4)
    note = note_of(lambda: model(x), model)
    assert "x f32[2,4], 2:in f32[2,6], 2.weight f32[3,5]" in note
    assert guess(note) == "in_features=6 in 2, or out_features=5 in 0"


def test_the_first_layer_of_a_container_has_what_the_container_was_given(
    note_of: Callable[..., str],
) -> None:
    model, points = nn.Sequential(nn.Conv1d(3, 8, 1), nn.ReLU()), torch.ones(2, 50, 3)
    note = note_of(lambda: model(points), model)
    assert "given: points f32[2,50,3], 0.weight f32[8,3,1]" in note
    assert guess(note) == "points.transpose(1, 2)"


def test_data_of_another_width_is_no_reason_to_guess(note_of: Callable[..., str]) -> None:
    model = nn.Linear(10, 4)
    x = torch.ones(2, 6)
    note = note_of(lambda: model(x), model)
    assert "x f32[2,6]" in note
    assert guess(note) is None


def test_an_image_with_its_channels_last(note_of: Callable[..., str]) -> None:
    model, image = Convolutional(), torch.ones(2, 4, 4, 3)
    note = note_of(lambda: model(image), model)
    assert "conv is Conv2d(in_channels=3, out_channels=8, kernel_size=3)" in note
    assert "conv takes 3 channels in dimension 1 and was given 4" in note
    assert guess(note) == "x.permute(0, 3, 1, 2)"


def test_a_sample_without_a_batch(note_of: Callable[..., str]) -> None:
    model = Convolutional()
    note = note_of(lambda: model(torch.ones(3, 4, 4)), model)
    assert "norm is BatchNorm2d(num_features=8)" in note
    assert guess(note) == "self.conv(x).unsqueeze(0)"


# Sizes of tensors that do not go together


def test_a_product_of_queries_and_keys(note_of: Callable[..., str]) -> None:
    q, k = torch.ones(2, 4, 7, 8), torch.ones(2, 4, 7, 8)
    note = note_of(lambda: torch.softmax(q @ k, -1))
    assert "q f32[2,4,7,8], k f32[2,4,7,8]" in note
    assert guess(note) == "k.transpose(-2, -1)"


def test_joining_along_the_wrong_dimension(note_of: Callable[..., str]) -> None:
    model = Call(lambda self, a, x: torch.cat([a, self.b(x)], 0), b=nn.Linear(4, 4))
    note = note_of(lambda: model(torch.ones(2, 3), torch.ones(2, 4)), model)
    assert "given: a f32[2,3], self.b(x) f32[2,4]" in note
    assert guess(note) == "dim=1"


def test_joining_batches_of_different_sizes(note_of: Callable[..., str]) -> None:
    first, second = torch.ones(8, 6), torch.ones(7, 6)
    note = note_of(lambda: torch.cat([first, second], 1))
    assert "only dimension 1 may differ; dimension 0 does: first 8, second 7" in note
    assert guess(note) is None


def test_stacking_unequal_shapes(note_of: Callable[..., str]) -> None:
    first, second = torch.ones(2, 3), torch.ones(2, 4)
    note = note_of(lambda: torch.stack([first, second]))
    assert "first f32[2,3], second f32[2,4]" in note
    assert guess(note) is None


def test_a_weight_per_row_that_does_not_broadcast(note_of: Callable[..., str]) -> None:
    x, weight = torch.ones(4, 6), torch.ones(4)
    note = note_of(
        lambda: (
            x
            * weight
        )
    )  # fmt: skip
    assert "given: x f32[4,6], weight f32[4]" in note
    assert "dimension 1 of x is 6, dimension 0 of weight is 4" in note
    assert guess(note) == "weight.unsqueeze(1)"


def test_a_view_with_the_size_of_another_batch(note_of: Callable[..., str]) -> None:
    x = torch.ones(3, 2, 4)
    note = note_of(lambda: x.view(8, 2 * 4))
    assert "x f32[3,2,4]" in note
    assert "the new shape has 64 elements, the tensor has 24" in note
    assert guess(note) == "3, or -1, in place of 8: the batch has 3"


def test_a_view_of_transposed_memory(note_of: Callable[..., str]) -> None:
    x = torch.ones(3, 2, 4)
    note = note_of(lambda: x.transpose(0, 1).view(-1))
    assert guess(note) == ".reshape(...) in place of .view(...)"


def test_logits_with_their_classes_last(note_of: Callable[..., str]) -> None:
    logits, target = torch.ones(2, 5, 7), torch.zeros(2, 5, dtype=torch.long)
    note = note_of(lambda: F.cross_entropy(logits, target))
    assert guess(note) == "logits.transpose(1, 2)"


def test_a_state_of_another_batch(note_of: Callable[..., str]) -> None:
    model = nn.LSTM(4, 8)
    x, state = torch.ones(2, 5, 4), (torch.ones(1, 2, 8), torch.ones(1, 2, 8))
    note = note_of(lambda: model(x, state), model)
    assert "batch_first=False" in note
    assert guess(note) == "batch_first=True in the root module"


def test_an_operand_that_no_op_made(note_of: Callable[..., str]) -> None:
    weight, x = torch.ones(4), torch.ones(2, 5)
    note = note_of(lambda: weight * x.to(torch.float32))
    assert "given: weight f32[4], x.to(torch.float32) f32[2,5]" in note


def test_operands_in_a_comprehension_have_no_names(note_of: Callable[..., str]) -> None:
    rows = [torch.ones(2, 4), torch.ones(3, 4)]
    note = note_of(lambda: torch.stack([row + 1 for row in rows]))
    assert "given: tensor 0 of the list f32[2,4], tensor 1 of the list f32[3,4]" in note


# Dtypes and devices


def test_one_layer_of_another_dtype(note_of: Callable[..., str]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4).half())
    assert guess(note_of(lambda: model(torch.ones(2, 4)), model)) == "2.float()"


def test_a_double_for_a_layer_of_floats(note_of: Callable[..., str]) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4, dtype=torch.float64)
    note = note_of(lambda: model[0](x), model)
    assert "x is float64, the parameters of 0 are float32" in note
    assert guess(note) == "x.float()"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_dtype_that_a_convolution_does_not_take(
    dtype: torch.dtype, note_of: Callable[..., str]
) -> None:
    model, x = nn.Conv1d(2, 2, 1), torch.ones(1, 2, 4, dtype=dtype)
    assert guess(note_of(lambda: model(x), model)) == "x.float()"


def test_an_index_of_floats(note_of: Callable[..., str]) -> None:
    model, ids = nn.Embedding(4, 2), torch.ones(3)
    note = note_of(lambda: model(ids), model)
    assert "ids f32[3]" in note
    assert guess(note) == "ids.long()"


def test_a_target_of_floats(note_of: Callable[..., str]) -> None:
    logits, target = torch.ones(2, 4), torch.tensor([0.0, 1.0])
    note = note_of(lambda: F.cross_entropy(logits, target))
    assert guess(note) == "target.long()"


def test_logits_and_target_swapped(note_of: Callable[..., str]) -> None:
    logits, target = torch.ones(2, 4), torch.tensor([0, 1])
    note = note_of(lambda: F.cross_entropy(target, logits))
    assert "target i64[2], logits f32[2,4]" in note


def test_an_input_on_another_device(
    note_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The only other device there is everywhere stands for one with data.
    monkeypatch.setattr(types_and_devices, "_WITHOUT_DATA", "")
    model, x = nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4, device="meta")
    note = note_of(lambda: model(model[0](x)), model)
    assert "x f32[2,4] on meta, 0.weight f32[4,4] on cpu" in note
    assert guess(note) == "x.to('cpu')"


# Indices


def test_an_index_that_an_embedding_does_not_have(note_of: Callable[..., str]) -> None:
    model = nn.ModuleDict({"table": nn.Embedding(10, 4)})
    ids = torch.tensor([[1, 2], [3, 99]])
    note = note_of(lambda: model["table"](ids), model)
    assert "table has 10 rows (0 to 9); ids holds 99 at [1, 1]" in note


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (lambda x, i: x[i], "x has 4 in dimension 0 (0 to 3); the index is 7"),
        (lambda x, i: torch.gather(x, 1, i[None]), "x has 5 in dimension 1 (0 to 4)"),
        (lambda x, i: F.cross_entropy(x, i), "x has 5 classes (0 to 4); a target is 7"),
        (lambda x, i: torch.zeros(4).scatter_add(0, i, x[0, :4]), "4 in dimension 0 (0 to 3)"),
    ],
    ids=["index", "gather", "target", "scatter"],
)
def test_an_index_out_of_bounds(
    program: Callable[..., Tensor], says: str, note_of: Callable[..., str]
) -> None:
    note = note_of(lambda: program(torch.ones(4, 5), torch.tensor([0, 7, 1, 2])))
    assert says in note
    assert "i holds 7 at [1]" in note


# The backward pass


def test_a_write_that_breaks_the_backward(note_of: Callable[..., str]) -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        h = torch.sigmoid(self.fc(x))
        h.add_(1)
        return h

    model = Call(forward, fc=nn.Linear(4, 4))
    note = note_of(lambda: model(torch.ones(2, 4)).sum().backward(), model)
    assert "written by aten.add_.Tensor at" in note
    assert ": h.add_(1)" in note
    assert "kept by aten.sigmoid.default at" in note
    assert guess(note) == "a new tensor in place of the write by add_"


def test_an_optimizer_that_steps_too_early(note_of: Callable[..., str]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def program() -> None:
        first, second = model(torch.ones(2, 4)).sum(), model(torch.ones(2, 4)).sum()
        first.backward()
        optimizer.step()
        second.backward()

    note = note_of(program, model)
    assert ": optimizer.step()" in note
    assert guess(note) == "backward() before optimizer.step()"


@pytest.mark.parametrize(
    ("program", "op", "why"),
    [
        (lambda y: y.detach().sum(), "detach", "without the detach"),
        (lambda y: y.argmax(1).float().sum(), "argmax", None),
        (lambda y: torch.tensor(y.sum().item()), "_local_scalar_dense",
         "the tensor itself in place of .item()"),
    ],
    ids=["detach", "argmax", "item"],
)  # fmt: skip
def test_where_the_graph_was_cut(
    program: Callable[..., Tensor], op: str, why: str | None, note_of: Callable[..., str]
) -> None:
    model = nn.Linear(4, 4)

    def run() -> None:
        loss = program(model(torch.ones(2, 4)))
        loss.backward()

    note = note_of(run, model)
    assert f"the graph was cut by aten.{op}" in note
    assert guess(note) == why


def test_a_forward_without_gradients(note_of: Callable[..., str]) -> None:
    model = nn.Linear(4, 4)

    def run() -> None:
        with torch.no_grad():
            y = model(torch.ones(2, 4))
        loss = y.sum()
        loss.backward()

    note = note_of(run, model)
    assert "gradients were off" in note
    assert guess(note) == "outside of torch.no_grad()"


def test_frozen_parameters(note_of: Callable[..., str]) -> None:
    model = nn.Linear(4, 4).requires_grad_(False)
    loss = None

    def run() -> None:
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()

    assert loss is None
    assert "have requires_grad=False" in note_of(run, model)


def test_backward_through_a_freed_graph(note_of: Callable[..., str]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def run() -> None:
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        loss.backward()

    note = note_of(run, model)
    assert "the first backward ran at" in note
    assert guess(note) == "retain_graph=True in the first backward"


def test_a_state_that_is_carried_over(note_of: Callable[..., str]) -> None:
    model = nn.GRU(4, 4)

    def run() -> None:
        state = torch.zeros(1, 2, 4)
        for _ in range(2):
            y, state = model(torch.ones(3, 2, 4), state)
            y.sum().backward()

    assert guess(note_of(run, model)) == ".detach() on what is carried over"


# Memory


def test_out_of_memory(note_of: Callable[..., str]) -> None:
    model = nn.ModuleDict({"body": nn.Linear(1000, 1000), "head": nn.Linear(1000, 2)})

    def run() -> None:
        h = model["body"](torch.ones(2, 1000))
        model["head"](h).repeat(10**7, 10**7)

    note = note_of(run, model)
    assert "asked for 1455 TiB" in note
    assert "parameters of body 3.82 MiB" in note


# Code of the program, workers, compiled regions


def test_an_exception_of_the_program(note_of: Callable[..., str]) -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        if x.shape[0] != 4:
            raise ValueError(f"4 rows wanted, not {x.shape[0]}")
        return x

    model = nn.Sequential(nn.Sequential(Call(forward)))
    note = note_of(lambda: model(torch.ones(2, 3)), model)
    assert "ValueError raised in 0.0" in note
    assert "with: x f32[2,3]" in note


class Numbers(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        value = torch.ones(4)
        return value.view(3) if index == 3 else value


def test_an_exception_in_a_worker(note_of: Callable[..., str]) -> None:
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=1)
    note = note_of(lambda: list(loader))
    assert "RuntimeError in DataLoader worker 0, sample 3 of Numbers" in note
    assert "test_crash_notes.py" in note
    assert "return value.view(3) if index == 3 else value" in note


@pytest.mark.filterwarnings("ignore::clew.ClewWarning")
def test_what_the_compiler_cannot_run(note_of: Callable[..., str]) -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return self.fc(x) + 1

    model = Call(forward, fc=nn.Linear(3, 3))
    compiled = torch.compile(model, backend="eager")
    note = note_of(lambda: compiled(torch.ones(2, 5)), model)
    assert "torch.compile was working on test_crash_notes.py" in note
    assert "return self.fc(x) + 1" in note


def test_a_compiled_region_that_fails(note_of: Callable[..., str]) -> None:
    model = Call(lambda self, ids: self.table(ids).relu(), table=nn.Embedding(5, 3))
    compiled = torch.compile(model)
    compiled(torch.tensor([1, 2]))
    note = note_of(lambda: compiled(torch.tensor([1, 9])), model)
    assert "clew: compiled failed in the root module" in note
    assert "table.weight f32[5,3]" in note
    assert "clew.trace(compiled='eager') names the op in it" in note


def deeper(depth: int) -> int:
    return deeper(depth + 1)


def test_a_recursion_without_end() -> None:
    with pytest.raises(RecursionError) as caught, clew.trace() as t:
        deeper(0)
    assert caught.value.__notes__ == [t.crash.note]
    assert "RecursionError raised outside any module" in t.crash.note
    assert "return deeper(depth + 1)" in t.crash.note


def test_a_function_that_calls_a_module_for_the_program(note_of: Callable[..., str]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(3, 3))
    x = torch.ones(1, 4)
    note = note_of(lambda: checkpoint(model, x, use_reentrant=False), model)
    assert "given: x f32[1,4], 1:in f32[1,4], 1.weight f32[3,3], 1.bias f32[3]" in note


# What a note must not do


def test_an_exception_that_is_caught_gets_no_note() -> None:
    model = nn.Linear(3, 3)
    with clew.trace(model) as t:
        with pytest.raises(RuntimeError) as caught:
            model(torch.ones(2, 5))
    assert not hasattr(caught.value, "__notes__")
    assert t.crash is None


def test_no_property_of_the_program_runs(note_of: Callable[..., str]) -> None:
    class Holder:
        looked = 0

        @property
        def tensor(self) -> Tensor:
            Holder.looked += 1
            return torch.ones(3)

    holder, x = Holder(), torch.ones(2, 4)
    note = note_of(lambda: x + holder.tensor)
    assert Holder.looked == 1
    assert "x f32[2,4]" in note


def test_nothing_is_kept_alive() -> None:
    import gc
    import weakref

    model, x = nn.Linear(3, 3), torch.ones(2, 5)
    alive = weakref.ref(x)
    with contextlib.suppress(RuntimeError), clew.trace(model) as t:
        model(x)
    del x
    gc.collect()
    assert alive() is None
    assert "f32[2,5]" in t.crash.note


def test_redacted_traces_hold_no_names() -> None:
    secret = torch.ones(2, 5)
    with contextlib.suppress(RuntimeError), clew.trace(redact=True) as t:
        torch.ones(3) + secret
    assert "crash_facts" not in t.env
    assert "secret" not in t.crash.note


def test_names_in_a_note_are_escaped(tmp_path: Path) -> None:
    source = 'def run(x, d):\n    return x + d["\\x1b[31m"]\n'
    program = tmp_path / "odd.py"
    program.write_text(source)
    namespace: dict[str, Any] = {}
    exec(compile(source, str(program), "exec"), namespace)
    with contextlib.suppress(RuntimeError), clew.trace() as t:
        namespace["run"](torch.ones(2), {"\x1b[31m": torch.ones(3)})
    assert "\x1b" not in t.crash.note
    assert "f32[3]" in t.crash.note


def test_damaged_facts_of_a_stranger_are_left_out() -> None:
    from clew.analysis.crashes.facts import crash_facts

    noted = {"tensors": {"x": ["float32", [2, 3], "cpu", True], "y": 3, "z": [1]}, "indices": []}
    facts = crash_facts({"crash_facts": noted})
    assert list(facts.tensors) == ["x"]
    assert crash_facts({"crash_facts": 5}).tensors == {}


# The command


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(3, 3)
    with contextlib.suppress(RuntimeError), clew.trace(model, out=tmp_path / "bad.clew") as t:
        model(torch.ones(2, 5))
    with clew.trace(model, out=tmp_path / "good.clew"):
        model(torch.ones(2, 3))
    assert main(["crash", str(tmp_path / "bad.clew")]) == 1
    assert capsys.readouterr().out == f"{t.crash.exception}\n{t.crash.note}\n"
    assert main(["crash", "--json", str(tmp_path / "bad.clew")]) == 1
    assert json.loads(capsys.readouterr().out)["crash"]["note"] == t.crash.note
    assert main(["crash", str(tmp_path / "good.clew")]) == 0
    assert capsys.readouterr().out == "no crash\n"
    assert main(["crash", str(tmp_path / "none.clew")]) == 2


# Python 3.10 shows no notes

UNSHOWN = """
import sys
from clew import program_errors

class Plain(Exception):
    add_note = property()  # as if there were none

sys.excepthook = lambda cls, error, traceback: print("before", file=sys.stderr)
error = Plain("x")
program_errors.add_note(error, "clew: a note")
program_errors.add_note(Plain("y"), "clew: another")
raise error
"""


def test_without_notes_in_python_the_hook_prints_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNSHOWN], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == "before\nclew: a note\n"


# What was said wrongly of programs that no test had known


def test_a_tensor_without_data_cannot_be_moved(note_of: Callable[..., str]) -> None:
    model = Call(lambda self, x: x * self.scale)
    model.scale = nn.Parameter(torch.ones(3, device="meta"))
    note = note_of(lambda: model(torch.ones(2, 3)), model)
    assert "self.scale has no data: it is on meta" in note
    assert guess(note) is None


def test_a_size_that_a_layer_made_is_not_joined_elsewhere(note_of: Callable[..., str]) -> None:
    up = nn.ConvTranspose2d(4, 4, 2, 2)

    def program() -> None:
        x = torch.rand(1, 4, 8, 9)
        u = up(F.max_pool2d(x, 2))
        torch.cat([u, x], dim=1)

    note = note_of(program, up)
    assert guess(note) is None
    assert "dimension 3 of u is 8:" in note


def flattened(x: Tensor) -> Tensor:
    return x.view(-1)


def in_groups(x: Tensor) -> Tensor:
    return x.reshape(-1, 25)


@pytest.mark.parametrize("change", [flattened, in_groups])
def test_what_was_flattened_with_its_batch(
    change: Callable[[Tensor], Tensor], note_of: Callable[..., str]
) -> None:
    model = Call(lambda self, x: self.fc(change(x)), fc=nn.Linear(400, 10))
    note = note_of(lambda: model(torch.rand(4, 16, 5, 5)), model)
    assert (guess(note) or "").startswith(".flatten(1) in place of view at test_crash_notes.py:")


def test_what_was_joined_along_the_batch(note_of: Callable[..., str]) -> None:
    def forward(self: Any, users: Tensor, items: Tensor) -> Any:
        return self.fc(torch.cat([self.user(users), self.item(items)]))

    parts = {"user": nn.Embedding(9, 16), "item": nn.Embedding(9, 16), "fc": nn.Linear(32, 1)}
    model = Call(forward, **parts)
    some = torch.arange(4)
    note = note_of(lambda: model(some, some), model)
    assert (guess(note) or "").startswith("dim=-1 in cat at test_crash_notes.py:")


def test_a_batch_is_not_transposed(note_of: Callable[..., str]) -> None:
    model = nn.Linear(8, 16)

    def program() -> None:
        weight = torch.rand(4, 8)
        h = model(torch.rand(4, 8))
        h @ weight

    assert guess(note_of(program, model)) is None


def test_a_mask_is_no_input_of_attention(note_of: Callable[..., str]) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    pad = torch.zeros(2, 5, dtype=torch.bool)
    note = note_of(lambda: model(torch.rand(2, 6, 8), src_key_padding_mask=pad), model)
    assert "takes [..., 8]" not in note


def test_only_what_led_to_the_loss_has_kept_a_value(note_of: Callable[..., str]) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def program() -> None:
        used = model(torch.ones(4, 2)).mean()  # it has kept the weight
        other = model(torch.zeros(4, 2)).mean()
        other.backward()
        optimizer.step()
        used.backward()

    note = note_of(program, model)
    (kept,) = (line for line in note.splitlines() if "kept by" in line)
    assert "it has kept the weight" in kept

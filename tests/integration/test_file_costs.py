"""What saving, opening and showing a trace costs, counted: calls of functions, modules imported.

Times are for `make bench`; here is what makes them what they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import clew
from clew.cli.commands import COMMANDS
from tests.no_torch.asking import Interpreter

CORPUS = Path(__file__).parents[1] / "corpus" / "traces"

# Rooms and files that a tree of module calls has no use for.
UNNEEDED = (
    "clew.analysis.graph", "clew.analysis.selection", "clew.analysis.series", "clew.callbacks",
    "clew.observe", "clew.record", "clew.keep",
    "clew.cli.code", "clew.cli.export", "clew.cli.graph", "clew.cli.html",
    "clew.cli.info", "clew.cli.recover", "clew.cli.value", "clew.cli.exist_option", "clew.compat",
    "clew.session", "clew.store.write", "clew.views.export", "clew.views.graph",
    "clew.views.html.", "clew.views.notebook", "clew.views.text.code_text",
    "clew.views.text.table_view", "clew.watching",
)  # fmt: skip


def test_show_imports_only_what_it_needs() -> None:
    with Interpreter() as python:
        program = (
            f"import clew.cli.main as m, sys\nm.main(['show', {str(CORPUS / 'steps.clew')!r}])\n"
            "print('\\n' + ' '.join(n for n in sys.modules if n.split('.')[0] == 'clew'))"
        )
        loaded = python.ask(program).splitlines()[-1].split()
    assert "clew.analysis.tree.tree_build" in loaded
    assert [name for name in loaded if name.startswith(UNNEEDED)] == []
    assert len(loaded) <= 130


@pytest.mark.parametrize("command", ["info", "value", "html", "recover"])
def test_a_command_is_parsed_without_the_others(command: str) -> None:
    program = (
        "import clew.cli.main as m, sys\n"
        "try:\n"
        f"    m.main([{command!r}, '--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "print('\\n' + ' '.join(n for n in sys.modules if n.startswith('clew.cli.')))"
    )
    with Interpreter() as python:
        loaded = python.ask(program).splitlines()[-1].split()
    commands = {f"clew.cli.{name}" for name in COMMANDS}
    assert commands.intersection(loaded) == {f"clew.cli.{command}"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Traces of a few steps, and of six times as many."""
    folder = tmp_path_factory.mktemp("saved")
    return trained(folder / "few.clew", 5), trained(folder / "many.clew", 30)


def trained(path: Path, steps: int) -> Path:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batch = torch.randn(2, 4, 8)
    with clew.trace(model, values="stats") as t:
        for _ in range(steps):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            t.step()
    t.save(path)
    return path


USES: dict[str, Callable[[clew.Trace, Path], object]] = {
    "events": lambda t, _: len(t.events),
    "tree": lambda t, _: str(t.tree()),
    "save": lambda t, folder: t.save(folder / "again.clew"),
    "html": lambda t, folder: t.html(folder / "report.html"),
}


@pytest.mark.parametrize("use", USES)
def test_no_event_is_looked_at_one_by_one(
    use: str, saved: tuple[Path, Path], tmp_path: Path
) -> None:
    few, many = (calls(lambda path=path: USES[use](clew.load(path), tmp_path)) for path in saved)
    more = len(clew.load(saved[1])) - len(clew.load(saved[0]))
    # A few for each step, none for each of its four hundred events; the page folds the calls of
    # modules in every step, which takes some sixty for each of these.
    assert more > 10_000
    limit = 5 * more if use == "html" else more / 2
    assert many - few < limit, f"{many - few} calls more for {more} events more"


def calls(work: Callable[[], Any]) -> int:
    """How many functions are called, Python's own included, once everything is imported."""
    work()
    count = 0

    def told(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(told)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_texts_that_several_rows_of_a_table_share_are_saved_as_they_are(tmp_path: Path) -> None:
    """Tensors that differ in their strides alone look the same, and are two rows of a table."""
    square = torch.randn(3, 3)
    with clew.trace() as t:
        square + torch.randn(3, 3)
        square.t() + torch.randn(3, 3)
        torch.randn(2, 5) + torch.randn(2, 5)
    path = t.save(tmp_path / "run.clew")
    rows = pq.read_table(Path(path) / "rank=00000" / "events-00000.parquet").to_pylist()
    for row, event in zip(rows, t.events, strict=True):
        assert row["outputs"] == [value.look.partition(" ")[0] for value in event.outputs.values()]
        assert row["inputs"] == [value.look.partition(" ")[0] for value in event.inputs.values()]
        assert (row["name"], row["address"]) == (event.name, event.address)


def test_values_without_elements_have_counts_and_no_numbers(tmp_path: Path) -> None:
    with clew.trace(values="stats") as t:
        torch.zeros(0) + 1
        torch.full((2,), 3.0)
    t.save(tmp_path / "run.clew")
    for trace in (t, clew.load(tmp_path / "run.clew")):
        none, some = (op.outputs[""].stats for op in (trace.ops[1], trace.ops[-1]))
        assert none is not None
        assert some is not None
        assert (none.count, none.nan, none.mean) == (0, 0, None)
        assert (some.count, some.mean, some.max) == (2, 3.0, 3.0)
        table = trace.table().columns()
        assert (table["max"][1], table["nan"][1]) == (None, 0)
        assert (table["max"][-1], table["nan"][-1]) == (3.0, 0)

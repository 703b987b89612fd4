"""What the text views print, compared with the files beside this one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clew.views.text.code_view import code_view
from clew.views.text.style import Style
from clew.views.text.table_view import table_view
from clew.views.text.tree import tree_view
from tests.golden import programs

Golden = Callable[[str, str], None]
PLAIN = Style()


@pytest.mark.parametrize(
    "program",
    [
        "training",
        "checkpointed",
        "gated",
        "recurrent",
        "encoder",
        "crash",
        "growing",
        "loops",
        "named",
    ],
)
def test_tree(program: str, golden: Golden) -> None:
    reader = programs.read(getattr(programs, program)())
    golden(f"tree_{program}", tree_view(reader).text(PLAIN))


def test_tree_shows_the_layer_that_differs(golden: Golden) -> None:
    golden("tree_width", tree_view(programs.read(programs.stack(width=16))).text(PLAIN))
    golden("tree_act", tree_view(programs.read(programs.stack(act="tanh"))).text(PLAIN))


def test_tree_on_terminals(golden: Golden) -> None:
    view = tree_view(programs.read(programs.training()))
    golden("tree_80_columns", view.text(Style(width=80, bounded=True)))
    golden("tree_50_columns", view.text(Style(width=50, bounded=True)))
    golden("tree_ascii", view.text(Style(unicode=False)))
    golden("tree_color", view.text(Style(color=True, width=100, bounded=True)))


def test_tree_within_budgets(golden: Golden) -> None:
    reader = programs.read(programs.training())
    golden("tree_depth", tree_view(reader, depth=1).text(PLAIN))
    golden("tree_rows", tree_view(reader, rows=12).text(PLAIN))
    golden("tree_unfolded", tree_view(reader, fold=False).text(PLAIN))


@pytest.mark.parametrize(
    "program",
    ["training", "checkpointed", "gated", "recurrent", "encoder", "crash", "loops", "named"],
)
def test_code(program: str, golden: Golden) -> None:
    reader = programs.read(getattr(programs, program)())
    golden(f"code_{program}", code_view(reader, None).text(PLAIN))


def test_code_in_full(golden: Golden) -> None:
    loops = programs.read(programs.loops())
    golden("code_loops_full", code_view(loops, None, succinct=False).text(PLAIN))
    checkpointed = programs.read(programs.checkpointed())
    golden("code_checkpointed_full", code_view(checkpointed, None, succinct=False).text(PLAIN))
    named = programs.read(programs.named())
    golden("code_named_full", code_view(named, None, succinct=False).text(PLAIN))


def test_code_in_color(golden: Golden) -> None:
    reader = programs.read(programs.crash())
    golden("code_color", code_view(reader, None).text(Style(color=True)))


def test_code_of_one_block(golden: Golden) -> None:
    t = programs.training()
    events = list(t["blocks.1"])[:1]
    golden("code_block", code_view(programs.read(t), events).text(PLAIN))


def test_table(golden: Golden) -> None:
    golden("table_crash", table_view(programs.read(programs.crash())).text(PLAIN))
    golden("table_rows", table_view(programs.read(programs.training()), rows=12).text(PLAIN))
    golden("table_named", table_view(programs.read(programs.named())).text(PLAIN))

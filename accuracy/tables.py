"""Crashes planted in models of tables and graphs: embedding tables, message passing, an MLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.planted import Planted, run_of


class Recommender(nn.Module):
    """Embedding tables, a bottom network and a top network on their products."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, 4) for rows in (10, 20, 5)])
        self.bottom = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.top = nn.Linear(9 if fault == "top" else 16, 1)
        self.fault = fault

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        rows = []
        for at, table in enumerate(self.tables):
            column = sparse[:, at]  # crash: tables-column
            rows.append(table(column))  # crash: tables-row
        bottom = self.bottom(dense)  # crash: tables-dense, tables-long
        if self.fault == "stack":
            first, wide = rows[0], dense
            return torch.stack([first, wide], dim=1)  # crash: tables-stack
        joined = torch.cat([bottom, *rows], dim=1)
        score = self.top(joined)  # crash: tables-top
        if self.fault == "loss":
            target = torch.ones(len(dense))
            return F.binary_cross_entropy_with_logits(score, target)  # crash: tables-loss
        return score


class GraphLayer(nn.Module):
    """Messages along edges, added up at the nodes."""

    def __init__(self, width: int, fault: str = "") -> None:
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.update = nn.Linear(width, width)
        self.fault = fault

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        ends = nodes[source], nodes[target]  # crash: graph-edge
        messages = self.message(torch.cat(ends, dim=-1))
        degree = torch.ones(len(nodes))
        total = torch.zeros_like(nodes)
        if self.fault == "double":
            messages = messages.double()
        total = total.index_add(0, target, messages)  # crash: graph-double
        if self.fault == "degree":
            total = total / degree  # crash: graph-degree
        return nodes + self.update(total)


class Regressor(nn.Module):
    """A network on a table, with its own checks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.register_buffer("mean", torch.zeros(3, device="meta"))

    def forward(self, rows: Tensor) -> Tensor:
        if rows.shape[1] != 3:
            raise ValueError(f"3 columns wanted, not {rows.shape[1]}")  # crash: rows-checked
        return self.layers(rows - self.mean)  # crash: rows-buffer


def _sparse(*last: int) -> Tensor:
    return torch.tensor([[1, 2, 3], [4, 5, *last]])


CRASHES = [
    Planted("tables-row", "index",
            lambda: run_of(Recommender(), torch.ones(2, 6), _sparse(7)), "tables.2",
            ("column", "tables.2.weight"), ("5 rows", "7"), None),
    Planted("tables-column", "index",
            lambda: run_of(Recommender(), torch.ones(2, 6), torch.ones(2, 2, dtype=torch.long)),
            "", ("sparse",), ("[2,2]",), None),
    Planted("tables-dense", "linear size",
            lambda: run_of(Recommender(), torch.ones(2, 7), _sparse(3)), "bottom.0",
            ("dense", "bottom.0.weight"), ("[2,7]", "in_features=6"), None),
    Planted("tables-long", "dtype",
            lambda: run_of(Recommender(), torch.ones(2, 6, dtype=torch.long), _sparse(3)),
            "bottom.0", ("dense", "bottom.0.weight"), ("i64[2,6]",), r"\.float\(\)"),
    Planted("tables-stack", "stack",
            lambda: run_of(Recommender("stack"), torch.ones(2, 6), _sparse(3)), "",
            ("first", "wide"), ("[2,4]", "[2,6]"), None),
    Planted("tables-top", "linear size",
            lambda: run_of(Recommender("top"), torch.ones(2, 6), _sparse(3)), "top",
            ("joined", "top.weight"), ("[2,16]", "in_features=9"), "in_features=16"),
    Planted("tables-loss", "loss size",
            lambda: run_of(Recommender("loss"), torch.ones(2, 6), _sparse(3)), "",
            ("score", "target"), ("[2,1]", "[2]"), r"unsqueeze\(1\)"),
    Planted("graph-edge", "index",
            lambda: run_of(GraphLayer(4), torch.ones(5, 4), torch.tensor([[0, 1], [2, 9]])), "",
            ("nodes", "target"), ("[5,4]", "9"), None),
    Planted("graph-double", "dtype",
            lambda: run_of(GraphLayer(4, "double"), torch.ones(5, 4),
                           torch.tensor([[0, 1], [2, 3]])), "",
            ("total", "messages"), ("f32[5,4]", "f64[2,4]"), r"messages\.float\(\)"),
    Planted("graph-degree", "broadcast",
            lambda: run_of(GraphLayer(4, "degree"), torch.ones(5, 4),
                           torch.tensor([[0, 1], [2, 3]])), "",
            ("total", "degree"), ("[5,4]", "[5]"), r"degree\.unsqueeze\(1\)"),
    Planted("rows-checked", "the program's own",
            lambda: run_of(Regressor(), torch.ones(2, 4)), "", ("rows",), ("[2,4]",), None),
    Planted("rows-buffer", "device", lambda: run_of(Regressor(), torch.ones(2, 3)), "",
            ("rows", "self.mean"), ("on cpu", "on meta"), None),
]  # fmt: skip

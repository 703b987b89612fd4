"""`make demo`: one training step of a small transformer under `clew.trace`, and what can be read.

Run it yourself with `python examples/demo.py`; the model is in `tiny_lm.py`.
"""

from __future__ import annotations

import torch
from tiny_lm import TinyLM, batch, loss_of

import clew

# Each is run and shown with its answer.
QUESTIONS = (
    't["blocks.0.attn"].output',
    't["blocks.*.attn:in"].values',
    't["op:aten._softmax.default#0"].inputs["0"].producer',
    't["op:aten._softmax_backward_data.default#0"].one.source.text',
    't.find("silu")',
)

NEXT = """\
    print(t.code("blocks.0.attn"))                 one module's lines
    print(t.tree(depth=1)), t.tree(fold=False)     less, or every layer by itself
    t.table(), t.to_pandas()                       one row per event
    t.save("run.clew"), clew.load("run.clew")      keep it, read it elsewhere, without torch
    clew.trace(model, values="stats")              min, max, mean, NaN counts of every tensor
    clew.trace(model, capture=["blocks.*.attn"])   keep what these return: t["blocks.0.attn"].value
    clew.trace(model, capture=["blocks.*.attn.forward.q", "head.weight:grad"])   locals, gradients
    clew.trace(model, live=True)                   print while it runs
    clew html run.clew                             the same page from a saved trace

docs/getting-started.md goes on from here; docs/addresses.md has the whole address language."""


def main() -> None:
    torch.set_num_threads(1)  # a model this small only waits for more
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, targets = batch()

    with clew.trace(model) as t:
        loss = loss_of(model, tokens, targets)
        loss.backward()
        optimizer.step()

    heading("One training step: print(t)")
    print(t)
    heading('The lines of one block: print(t.code("blocks.0"))')
    print(t.code("blocks.0"))
    heading("Ask it")
    for question in QUESTIONS:
        print(f">>> {question}")
        print(repr(eval(question, {"t": t})))
    heading("Look at it: open these files in a browser")
    t.graph(depth=2).svg("demo.svg")
    print("demo.svg: what flows from module to module")
    # A second step with numbers: statistics of every tensor, the data of a few.
    with clew.trace(model, values="stats", capture=["blocks.*.attn", "op:_softmax", "head"]) as t:
        loss_of(model, tokens, targets).backward()
        optimizer.step()
    print(t.html("demo.html"))
    heading("Try next")
    print(NEXT)


def heading(text: str) -> None:
    print(f"\n── {text} " + "─" * max(3, 92 - len(text)) + "\n")


if __name__ == "__main__":
    main()

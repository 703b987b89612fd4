"""Changes of the training programs that make a run part, and changes that must not.

A `Change` replaces text of a program. What has to be named is the line of the first replacement, in
either version, unless `said` gives a pattern that the answer must have.
"""

from __future__ import annotations

from dataclasses import dataclass

DATA, RANDOM, PARAMETERS, FORWARD, LOSS, GRADIENT, OPTIMIZER, MODE, STEPS = (
    "data", "random", "parameters", "forward", "loss", "gradient", "optimizer", "mode", "steps",
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A changed program: `edits` are pairs of old and new text.

    `cause` and `step` are where the run must part, None for a change that does no harm. `whole`
    says that making the model is recorded too. `base` are edits of both versions.
    """

    name: str
    program: str
    edits: tuple[tuple[str, str], ...]
    cause: str | None = None
    step: int = 0
    said: str = ""
    whole: bool = False
    base: tuple[tuple[str, str], ...] = ()


def _edit(name: str, program: str, old: str, new: str, *facts: object, **more: object) -> Change:
    return Change(name, program, ((old, new),), *facts, **more)  # type: ignore[arg-type]


_LOOP = "        optimizer.zero_grad()\n"
_STEP = "        optimizer.step()\n"
_TANH = """
class Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (1 - y)


class Classifier("""


def _before(step: int, statement: str, program: str) -> tuple[str, str]:
    """Return an edit that runs a statement in one step, before its gradients are cleared."""
    number = {"classifier": "step", "language": "step"}[program]
    return _LOOP, f"        if {number} == {step}:\n            {statement}\n{_LOOP}"


FAULTS = (
    # Data
    _edit("other order", "classifier", "order = torch.Generator().manual_seed(2)",
          "order = torch.Generator().manual_seed(22)", DATA, 0, "drew other random numbers"),
    _edit("two batches swapped", "classifier", "    yield from loader\n",
          "    held = list(loader)\n    held[3], held[5] = held[5], held[3]\n    yield from held\n",
          DATA, 3, "batch of step 5"),
    _edit("a sample changed", "classifier", "    yield from loader\n",
          "    for n, (x, y) in enumerate(loader):\n"
          "        yield [x * 1.01 if n == 2 else x, y]\n", DATA, 2),
    _edit("rows of a batch permuted", "classifier", "    yield from loader\n",
          "    for n, (x, y) in enumerate(loader):\n"
          "        yield [x.flip(0), y.flip(0)] if n == 2 else [x, y]\n", DATA, 2, "another order"),
    _edit("labels permuted", "classifier", "    yield from loader\n",
          "    for n, (x, y) in enumerate(loader):\n"
          "        yield [x, y.flip(0)] if n == 2 else [x, y]\n", DATA, 2),
    _edit("other pictures", "convnet", "torch.Generator().manual_seed(1)",
          "torch.Generator().manual_seed(11)", DATA, 0, "batch of step 0"),
    _edit("a batch left out", "convnet", "pictures()[:STEPS]",
          "[p for n, p in enumerate(pictures()) if n != 2][:STEPS]", DATA, 2, "batch of step 3"),
    _edit("labels off by one", "convnet", "torch.arange(6) % 4", "torch.arange(1, 7) % 4",
          DATA, 0),
    _edit("other text", "language", "manual_seed(100 + step)",
          "manual_seed(100 + step + (step > 3))", DATA, 4, "batch of step 4"),
    _edit("other curves", "recurrent", "0.4 * t + 0.9 * n", "0.4 * t + 0.9 * n + (n == 2)",
          DATA, 2, "batch of step 2"),
    _edit("curves in another order", "recurrent", "in curves(STEPS)",
          "in [list(curves(STEPS))[n] for n in (0, 1, 3, 2, 4, 5)]", DATA, 2, "batch of step 3"),
    # Random numbers
    _edit("other seed", "classifier", "torch.manual_seed(3)", "torch.manual_seed(33)", RANDOM, 0,
          "another seed"),
    Change("a draw more", "classifier", (_before(2, "torch.rand(1)", "classifier"),), RANDOM, 2,
           r"only b draws.*:\d+"),
    _edit("other augmentation", "convnet", "torch.manual_seed(3)", "torch.manual_seed(33)",
          DATA, 0, "another seed"),
    Change("a draw more", "language", (_before(3, "torch.randn(3)", "language"),), RANDOM, 3,
           r"only b draws.*:\d+"),
    _edit("other seed", "language", "torch.manual_seed(3)", "torch.manual_seed(4)", RANDOM, 0,
          "another seed"),
    # Parameters at the beginning
    _edit("other initial seed", "classifier", "torch.manual_seed(0)", "torch.manual_seed(10)",
          PARAMETERS, 0, r"up\.weight"),
    _edit("other initial seed", "recurrent", "torch.manual_seed(0)", "torch.manual_seed(10)",
          PARAMETERS, 0, r"cell\.weight"),
    _edit("other initial seed, recorded", "language", "torch.manual_seed(0)",
          "torch.manual_seed(10)", PARAMETERS, 0, "another seed", whole=True),
    _edit("a bias set to zero", "convnet", "self.head = nn.Linear(8, 4)",
          "self.head = nn.Linear(8, 4)\n        nn.init.zeros_(self.head.bias)", PARAMETERS, 0,
          r"head\.bias"),
    _edit("a norm's weight", "language", "self.norm = nn.LayerNorm(WIDTH)",
          "self.norm = nn.LayerNorm(WIDTH)\n        nn.init.constant_(self.norm.weight, 1.1)",
          PARAMETERS, 0, r"norm\.weight"),
    # Forward
    _edit("other dropout", "classifier", "nn.Dropout(0.1)", "nn.Dropout(0.2)", FORWARD, 0,
          r"p is 0\.1 in a, 0\.2 in b"),
    _edit("sum for mean", "classifier", "F.cross_entropy(model(x), y)",
          'F.cross_entropy(model(x), y, reduction="sum")', LOSS, 0),
    _edit("label smoothing", "convnet", "F.cross_entropy(model(x), y)",
          "F.cross_entropy(model(x), y, label_smoothing=0.1)", LOSS, 0),
    _edit("other momentum of a norm", "convnet", "nn.BatchNorm2d(width)",
          "nn.BatchNorm2d(width, momentum=0.2)", FORWARD, 0, r"momentum is 0\.1 in a, 0\.2 in b"),
    _edit("weight of a loss", "recurrent", "0.1 * smooth", "0.2 * smooth", LOSS, 0),
    _edit("scale of scores", "language", "(WIDTH // HEADS) ** -0.5", "WIDTH ** -0.5", FORWARD, 0),
    _edit("statistics updated twice", "convnet", "            h = block(h)\n",
          "            h = torch.utils.checkpoint.checkpoint(block, h, use_reentrant=False)\n",
          FORWARD, 0, r"blocks\.\d\.norm"),
    # Gradients
    _edit("detached", "classifier", "torch.tanh(self.mid(h))", "torch.tanh(self.mid(h.detach()))",
          GRADIENT, 0),
    Change("wrong backward", "classifier",
           (("torch.tanh(self.mid(h))", "Tanh.apply(self.mid(h))"),
            ("\nclass Classifier(", _TANH)), GRADIENT, 0,
           r"g \* \(1 - y\)|Tanh\.apply"),
    _edit("gradients never cleared", "classifier", _LOOP, "", GRADIENT, 1, "add"),
    Change("gradients never cleared", "recurrent",
           (("            weight.grad = None\n", ""),), GRADIENT, 1, "add"),
    _edit("a hook on a gradient", "convnet", "self.head = nn.Linear(8, 4)",
          "self.head = nn.Linear(8, 4)\n"
          "        self.head.weight.register_hook(lambda g: g * 0.5)", GRADIENT, 0,
          r"g \* 0\.5|head\.weight"),
    _edit("a hook on a gradient", "classifier", "self.head = nn.Linear(32, 5)",
          "self.head = nn.Linear(32, 5)\n"
          "        self.head.weight.register_hook(lambda g: g * 0.5)", GRADIENT, 0,
          r"g \* 0\.5|head\.weight"),
    _edit("other clipping", "convnet", "clip_grad_norm_(model.parameters(), 1.0)",
          "clip_grad_norm_(model.parameters(), 0.5)", GRADIENT, 0),
    _edit("no clipping", "convnet",
          "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", "", GRADIENT, 0,
          "clip_grad_norm_"),
    _edit("clipping added", "classifier", _STEP,
          f"        nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n{_STEP}", GRADIENT, 0),
    _edit("parts not averaged", "language", "(loss / 2).backward()", "loss.backward()",
          LOSS, 0, r"loss / 2"),
    _edit("scaled, not unscaled", "recurrent", "loss.backward()", "(8 * loss).backward()",
          LOSS, 0),
    _edit("one part only", "language", "in ids.chunk(2)", "in ids.chunk(2)[:1]", GRADIENT, 0,
          r"a runs 2 forward passes .* b 1"),
    _edit("a frozen layer", "classifier", "self.mid = nn.Linear(32, 32)",
          "self.mid = nn.Linear(32, 32).requires_grad_(False)", GRADIENT, 0, r"mid"),
    # The optimizer's update
    _edit("other rate", "classifier", "lr=1e-2", "lr=2e-2", OPTIMIZER, 0, r"lr.*0\.01.*0\.02"),
    _edit("slightly other rate", "language", "lr=3e-3", "lr=3.01e-3", OPTIMIZER, 0,
          r"lr.*0\.0007.*0\.0007"),
    _edit("other rate by hand", "recurrent", "velocity, 0.1)", "velocity, 0.12)", OPTIMIZER, 0,
          r"rate \* velocity"),
    Change("a rate set later", "classifier",
           (_before(3, 'optimizer.param_groups[0]["lr"] = 1e-3', "classifier"),), OPTIMIZER, 3,
           r"lr.*0\.01.*0\.001.*step 3"),
    _edit("other betas", "classifier", "betas=(0.9, 0.99)", "betas=(0.9, 0.999)", OPTIMIZER, 0,
          r"betas.*0\.99.*0\.999"),
    _edit("no weight decay", "classifier", "weight_decay=0.1", "weight_decay=0.0", OPTIMIZER, 0,
          r"weight_decay.*0\.1.*0\.0"),
    _edit("other weight decay", "convnet", "weight_decay=1e-3", "weight_decay=1e-2", OPTIMIZER, 0,
          r"weight_decay.*0\.001.*0\.01"),
    _edit("another optimizer", "classifier", "torch.optim.AdamW(", "torch.optim.Adam(",
          OPTIMIZER, 0, r"AdamW.*Adam|decoupled"),
    _edit("other momentum", "convnet", "momentum=0.9, ", "momentum=0.8, ", OPTIMIZER, 1,
          r"momentum.*0\.9.*0\.8"),
    _edit("Nesterov", "convnet", "momentum=0.9, ", "momentum=0.9, nesterov=True, ", OPTIMIZER, 0,
          "nesterov"),
    _edit("other schedule", "convnet", "gamma=0.5", "gamma=0.1", OPTIMIZER, 3,
          r"lr.*0\.025.*0\.005.*step 3"),
    _edit("other warm-up", "language", "(n + 1) / 4", "(n + 1) / 6", OPTIMIZER, 0, r"lr"),
    _edit("no schedule", "convnet", "        schedule.step()\n", "", OPTIMIZER, 3,
          r"lr.*0\.025.*0\.05"),
    _edit("a group left out", "convnet", "SGD(model.parameters()",
          "SGD([p for n, p in model.named_parameters() if not n.startswith('stem')]", OPTIMIZER, 0,
          r"stem\.weight"),
    _edit("momentum by hand", "recurrent", "0.9 * velocity.get", "0.8 * velocity.get",
          OPTIMIZER, 1),
    # Modes and steps
    _edit("eval mode", "classifier", "model.train()", "model.eval()", MODE, 0,
          "training is True in a, False in b"),
    _edit("eval mode", "convnet", "model.train()", "model.eval()", MODE, 0,
          "training is True in a, False in b"),
    Change("eval mode later", "language", (_before(3, "model.eval()", "language"),), MODE, 3,
           "training is True in a, False in b"),
    _edit("a step fewer", "classifier", "STEPS = 6", "STEPS = 5", STEPS, 5, "step 5"),
    _edit("two steps more", "convnet", "STEPS = 6", "STEPS = 8", STEPS, 6, "step 6"),
    _edit("a step fewer", "recurrent", "STEPS = 6", "STEPS = 5", STEPS, 5, "step 5"),
)  # fmt: skip

_EVALUATION = (
    "        if step % 2:\n            model.eval()\n            with torch.no_grad():\n"
    "                print(end=str(model(x).argmax(-1).eq(y).sum().item())[:0])\n"
    "            model.train()\n"
)

CLEAN = (
    *(Change("re-run", program, ()) for program in
      ("classifier", "convnet", "language", "recurrent")),
    Change("re-run, recorded from the beginning", "language", (), whole=True),
    _edit("log softmax by hand", "classifier", "F.cross_entropy(model(x), y)",
          "F.nll_loss(F.log_softmax(model(x), dim=-1), y)"),
    _edit("logging", "classifier", _STEP,
          f"        norm = sum(p.grad.norm() for p in model.parameters()).item()\n"
          f"        _ = loss.item() + norm\n{_STEP}"),
    _edit("evaluation between steps", "classifier", _STEP, _STEP + _EVALUATION),
    _edit("gradients kept as zeros", "classifier", "optimizer.zero_grad()",
          "optimizer.zero_grad(set_to_none=False)"),
    _edit("foreach", "classifier", "weight_decay=0.1)", "weight_decay=0.1, foreach=True)"),
    _edit("fused", "language", "eps=1e-8)", "eps=1e-8, fused=True)"),
    _edit("batches made before", "classifier", "    yield from loader\n",
          "    held = list(loader)\n    yield from held\n"),
    _edit("addends swapped", "classifier", "h + torch.tanh(self.mid(h))",
          "torch.tanh(self.mid(h)) + h"),
    _edit("mean in two parts", "convnet", "h.mean(dim=(2, 3))", "h.mean(dim=3).mean(dim=2)"),
    _edit("blocks unrolled", "convnet",
          "        for block in self.blocks:\n            h = block(h)\n",
          "        h = self.blocks[0](h)\n        h = self.blocks[1](h)\n"),
    _edit("batch norm kept in a variable", "convnet",
          "        y = self.norm(self.conv(x))\n        return x + F.relu(y)",
          "        return x + self.norm(self.conv(x)).relu()"),
    _edit("scale before the product", "language",
          "scores = q @ k.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5",
          "scores = (q * (WIDTH // HEADS) ** -0.5) @ k.transpose(-2, -1)"),
    _edit("mask made first", "language",
          "        scores = q @ k.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5\n"
          "        future = torch.ones(length, length, dtype=torch.bool).triu(1)\n",
          "        future = torch.ones(length, length, dtype=torch.bool).triu(1)\n"
          "        scores = q @ k.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5\n"),
    _edit("checkpointing", "language", "            h = layer(h)\n",
          "            h = torch.utils.checkpoint.checkpoint(layer, h, use_reentrant=False)\n"),
    _edit("halved by a factor", "language", "(loss / 2).backward()", "(0.5 * loss).backward()"),
    _edit("scaled and unscaled", "recurrent", "        loss.backward()\n",
          "        (1024 * loss).backward()\n"
          "        for weight in model.parameters():\n            weight.grad /= 1024\n"),
    _edit("update in two lines", "recurrent", "            weight -= rate * velocity[name]\n",
          "            change = velocity[name] * rate\n            weight.sub_(change)\n"),
    _edit("weights one rounding off", "classifier", "    return Classifier()\n",
          "    model = Classifier()\n    for weight in model.parameters():\n"
          "        weight.data *= 1 + 1.2e-7\n    return model\n"),
    _edit("weights one rounding off", "language", "    return Decoder()\n",
          "    model = Decoder()\n    for weight in model.parameters():\n"
          "        weight.data *= 1 + 1.2e-7\n    return model\n"),
)  # fmt: skip

# Longer runs, in which rounding grows from step to step.
_MANY = ("STEPS = 6", "STEPS = 30")
_PICTURES = ("for _ in range(8)]", "for _ in range(STEPS)]")
# A bias before a norm has no gradient but rounding, which Adam makes as large as any other.
_ADAM = (
    "torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)",
    "torch.optim.Adam(model.parameters(), lr=0.01)",
)


def _rounded(program: str) -> tuple[str, str]:
    """Return an edit that moves all first weights by one unit in the last place."""
    made = {"convnet": "ConvNet()", "language": "Decoder()", "recurrent": "Follower()"}[program]
    return (
        f"    return {made}\n",
        f"    model = {made}\n    for weight in model.parameters():\n"
        "        weight.data *= 1 + 1.2e-7\n    return model\n",
    )


NOISY = (
    *(Change("one rounding off, many steps", program, (_rounded(program),), base=base)
      for program, base in (
          ("convnet", (_MANY, _PICTURES)), ("convnet", (_MANY, _PICTURES, _ADAM)),
          ("language", (_MANY,)), ("recurrent", (_MANY,)))),
    Change("products in other parts", "language",
           (("scores = q @ k.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5",
             "scores = torch.cat([(one @ k.transpose(-2, -1)) for one in q.split(5, dim=2)], dim=2)"
             " * (WIDTH // HEADS) ** -0.5"),), base=(_MANY,)),
    Change("rounding, and other clipping", "convnet",
           (("model.parameters(), 1.0)", "model.parameters(), 0.5)"), _rounded("convnet")),
           GRADIENT, 0, base=(_MANY, _PICTURES)),
    Change("rounding, and other text", "language",
           (("manual_seed(100 + step)", "manual_seed(100 + step + (step > 20))"),
            _rounded("language")), DATA, 21, "batch of step 21", base=(_MANY,)),
    Change("rounding, and a draw more", "language",
           (_before(12, "torch.randn(3)", "language"), _rounded("language")), RANDOM, 12,
           r"only b draws.*:\d+", base=(_MANY,)),
    Change("rounding, and a schedule", "convnet",
           (("gamma=0.5", "gamma=0.4"), _rounded("convnet")), OPTIMIZER, 3, r"lr.*step 3",
           base=(_MANY, _PICTURES)),
    Change("rounding, and a scale", "language",
           (("(WIDTH // HEADS) ** -0.5", "WIDTH ** -0.5"), _rounded("language")), FORWARD, 0,
           base=(_MANY,)),
    Change("rounding, and other curves", "recurrent",
           (("0.4 * t + 0.9 * n", "0.4 * t + 0.9 * n + (n == 17)"), _rounded("recurrent")),
           DATA, 17, "batch of step 17", base=(_MANY,)),
)  # fmt: skip

"""Every difference that an engine may show, each with its reason; anything else is a defect.

A rule is about one fact (`tests/conformance/oracle.py` lists them) of one engine. `shows` is what
differs, as `compare` names it: `-op` is missing and `+op` is extra in a list of ops, a bare name is
an op that is told otherwise; all of it comes together, as often as it comes. A rule must be seen:
in each program it names or, if it holds for any program, in the one that shows it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from tests.conformance.compare import Difference

# What coverage says where results may differ in their last bits.
OTHER_KERNELS = "the kernels of an untraced run"

# All of a fact of a program. Only for what is written down by another fact as well.
ANYTHING = ("*",)


@dataclass(frozen=True)
class Rule:
    """A difference that is allowed, and what coverage has to say of it."""

    engine: str
    fact: str
    shows: tuple[str, ...]
    reason: str
    programs: tuple[str, ...]
    holds_for_any: bool = False
    gap: str | None = None

    def concerns(self, engine: str, program: str, fact: str) -> bool:
        """Whether the rule allows something here."""
        return (self.engine, self.fact) == (engine, fact) and (
            self.holds_for_any or program in self.programs
        )


def explain(
    engine: str, program: str, differences: list[Difference]
) -> tuple[list[Difference], list[Rule]]:
    """The differences that no rule allows, and the rules that allowed the others."""
    left: list[Difference] = []
    used: list[Rule] = []
    for fact in dict.fromkeys(difference.fact for difference in differences):
        mine = [difference for difference in differences if difference.fact == fact]
        rest = Counter(difference.what for difference in mine)
        rules = [rule for rule in RULES if rule.concerns(engine, program, fact)]
        for rule in sorted(rules, key=lambda rule: rule.holds_for_any):
            wanted = rest if rule.shows == ANYTHING else Counter(rule.shows)
            while wanted and wanted <= rest:
                rest = rest - wanted
                used.append(rule)
        for difference in mine:
            if rest[difference.what]:
                rest[difference.what] -= 1
                left.append(difference)
    return left, list(dict.fromkeys(used))


def _mode(fact: str, shows: tuple[str, ...], reason: str, *programs: str, **more: object) -> Rule:
    return Rule("python", fact, shows, reason, programs, **more)  # type: ignore[arg-type]


_SAFE = "while a mode is on, torch writes to no tensor that might be of a class of its own"
_THREADS = "the mode of a thread is pushed when it calls a module, and sees no other"
_WHOLE = "in inference mode, torch hands composite ops to a mode before taking them apart"
_TRANSFORMED = "the profiler sees the function's ops, a mode what a transformation makes of them"
_BELOW = "it runs where modes are switched off"

RULES = [
    # What any dispatch mode changes, in any program.
    _mode("kernels", ("-aten.add_.Tensor", "+aten.add.Tensor"), f"sums of gradients: {_SAFE}",
          "one_tensor_used_three_times", holds_for_any=True),
    _mode("kernels", ("-aten._reshape_alias.default", "+aten.view.default"),
          "while a mode is on, torch makes views by ops that any tensor class has",
          "products_with_gradients", holds_for_any=True),
    _mode("kernels", ("-aten.empty.memory_format", "-aten.detach_.default"),
          f"how torch.tensor puts a tensor together: {_BELOW}", "factories", holds_for_any=True),
    # Formulas of backward that are careful while a mode is on.
    *[
        _mode("kernels", (f"-aten.{written}", f"+aten.{made}"), _SAFE,
              "backward_of_picked_elements")
        for written, made in (
            ("put_.default", "put.default"),
            ("masked_scatter_.default", "masked_scatter.default"),
            ("scatter_add_.default", "scatter_add.default"),
            ("index_add_.default", "index_add.default"),
            ("_index_put_impl_.default", "index_put.default"),
        )
    ],
    _mode("kernels", ("-aten.zeros.default", "-aten.scatter_.src", "+aten.new_zeros.default",
                      "+aten.scatter.src"), _SAFE, "backward_of_picked_elements"),
    _mode("kernels", ("-aten._local_scalar_dense.default", "-aten.new_zeros.default",
                      "-aten.masked_fill_.Tensor", "+aten.isnan.default",
                      "+aten.logical_and.default", "+aten.logical_or_.default",
                      "+aten.mul.Tensor"),
          "the median: while a mode is on, torch reads no number out of a tensor",
          "backward_of_picked_elements"),
    _mode("kernels", ("-aten.sub_.Tensor", "-aten.mul_.Tensor", "+aten.sub.Tensor",
                      "+aten.mul.Tensor"), _SAFE, "losses"),
    _mode("kernels", ANYTHING, "cumprod looks for zeros by ops where it would read a number",
          "backward_of_running_products"),
    _mode("kernels", ANYTHING, "prod takes the formula that is safe for zeros",
          "backward_of_products", gap=OTHER_KERNELS),
    _mode("results", ("bits",), "prod takes the formula that is safe for zeros",
          "backward_of_products", gap=OTHER_KERNELS),
    # Functions that take another way while a mode is on.
    _mode("kernels", ("-aten.ge.Scalar", "-aten.le.Scalar", "-aten.logical_and_.default",
                      "-aten.all.default", "-aten.new_ones.default", "-aten.equal.default"),
          "quantile checks its argument only where no mode is on", "reductions"),
    _mode("kernels", ("-aten._ctc_loss.default", "-aten._ctc_loss_backward.default",
                      "-aten.empty.memory_format", "-aten.clamp_min.default",
                      "-aten.div.Tensor", "-aten.div.Tensor", "+aten._ctc_loss.Tensor",
                      "+aten._ctc_loss_backward.Tensor", "+aten.clamp_min.default",
                      "+aten.div.Tensor", "+aten.div.Tensor"),
          "ctc_loss reads lengths out of their tensors only where no mode is on", "ctc_loss"),
    _mode("kernels", ("-aten._linalg_eigvals.default", "+aten.linalg_eig.default"),
          "while a mode is on, eigenvalues come with their vectors", "eigenvalues",
          gap=OTHER_KERNELS),
    _mode("results", ("bits",), "while a mode is on, values come with their vectors",
          "eigenvalues", "singular_values", gap=OTHER_KERNELS),
    # Inference mode.
    _mode("kernels", ("-aten.t.default", "-aten.clone.default", "-aten._unsafe_view.default",
                      "-aten.mm.default", "-aten._unsafe_view.default", "+aten.linear.default"),
          f"{_WHOLE}; inside, a weight that needs a gradient no longer looks so",
          "inference_of_a_layer_on_a_transposed_input", gap=OTHER_KERNELS),
    _mode("results", ("bits",), "linear multiplies by bmm where it would by mm",
          "inference_of_a_layer_on_a_transposed_input", gap=OTHER_KERNELS),
    _mode("kernels", ANYTHING, _WHOLE, "inference_of_an_encoder", gap=OTHER_KERNELS),
    # What the profiler sees, and a mode does not.
    _mode("kernels", ("-aten.addmm.default",),
          "a recomputation that has all it needs ends inside an op, before it reaches a kernel",
          "checkpoint_without_reentry", "checkpoint_of_a_sequence"),
    _mode("kernels", ("-aten.add_.Tensor",), "autograd refuses the op before it reaches a kernel",
          "errors_that_the_program_catches"),
    _mode("kernels", ("-aten.alias.default",), f"a result becomes one of a subclass: {_BELOW}",
          "subclass_by_name", "lazy_modules"),
    _mode("kernels", ("-aten.detach.default",), f"how a new parameter is made: {_BELOW}",
          "copies_of_modules"),
    _mode("kernels", ("-aten._local_scalar_dense.default", "-aten.cos.default", "+cond"),
          "a mode is given torch.cond as one op", "higher_order_operator",
          gap="the ops inside of cond"),
    _mode("producers", ("aten.mul.Tensor",),
          "its branch is a module call, and what came out of it is credited to that",
          "higher_order_operator", gap="the ops inside of cond"),
    # What a mode sees, and the profiler does not.
    _mode("kernels", ("+aten.clone.default",),
          "a copy that an op makes of its arguments on the way to its kernel is a part of it",
          "complex_numbers", "gru_on_packed_sequences", "losses"),
    _mode("kernels", ("+aten.detach.default",),
          "what a checkpoint does with a tensor that is saved is a part of the op that saves it",
          "checkpoint_without_reentry", "checkpoint_of_a_sequence"),
    _mode("kernels", ("+aten.mul.Tensor",), "what a mode of the program adds is a part of its op",
          "dispatch_mode_of_the_program"),
    _mode("kernels", ANYTHING, _TRANSFORMED, "gradients_of_samples_by_vmap", "random_vmap",
          "transformations_of_functions", "forward_mode"),
    *[
        _mode("kernels", (f"shapes of aten.{op}",), "the profiler has no shape of a jagged tensor",
              "jagged_tensors")
        for op in ("_nested_view_from_jagged.default", "mul.Tensor", "_nested_get_values.default",
                   "sum.dim_IntList")
    ],
    # Threads.
    *[
        _mode(fact, ("-aten.exp.default", "-aten.add.Tensor"), _THREADS, "ops_in_threads",
              gap="ops outside module calls")
        for fact in ("kernels", "ops")
    ],
    *[
        _mode(fact, ("-aten.ones_like.default", "-aten.expand.default", "-aten.mul.Tensor",
                     *["-aten.t.default"] * 3, "-aten.mm.default", "-aten.sum.dim_IntList",
                     "-aten.view.default", *["-aten.detach.default"] * 2),
              _THREADS, "backward_in_threads", gap="ops outside module calls")
        for fact in ("kernels", "ops")
    ],
    _mode("producers", ("aten.mul.Tensor",), _THREADS, "ops_in_threads", "backward_in_threads",
          gap="ops outside module calls"),
    # Who made it, and where.
    _mode("producers", ("aten.mul.Tensor",),
          "torch counts another shape of a view as a write, and so does an alias of it",
          "memory_that_changes_its_shape"),
    _mode("modules", ("aten.view.default",),
          "torch puts backward hooks on a result after all forward hooks, so for the caller",
          "hooks_of_modules_and_tensors"),
]  # fmt: skip


def _mirrored(rule: Rule) -> Rule:
    """What a mode sees and the profiler does not is, for the native engine, the other way round.

    It sees the kernels that the profiler sees; who made what is told by a mode.
    """
    swap = str.maketrans("+-", "-+")
    shows = tuple(what[0].translate(swap) + what[1:] for what in rule.shows)
    return replace(rule, engine="native", fact="ops", shows=shows, gap=None)


# Where the two lists are matched otherwise; random transformations differ in shapes only.
_NOT_MIRRORED = {"ctc_loss", "random_vmap"}


def _native(fact: str, shows: tuple[str, ...], reason: str, *programs: str, **more: object) -> Rule:
    return Rule("native", fact, shows, reason, programs, **more)  # type: ignore[arg-type]


def _same_names(reason: str, program: str, *facts: str) -> list[Rule]:
    """Where other kernels run, ops of the same name that are not the same are compared."""
    return [_native(fact, ANYTHING, reason, program) for fact in facts]


_CHECKPOINTED = (
    "what a checkpoint makes of a saved tensor, inside the op that saves it, is an alias"
)
_OTHER_FORMULA = "a mode makes torch take another formula, with ops of the same names"
_ELEMENTS = "a write to other elements of its memory does not make a view a new value"
_GIVEN_DATA = "memory that is given to a tensor, by `.data` or a copy, is still that of its maker"
_NO_LINE = "on a thread that runs nothing but backward, torch's own line is the only one"
_EMPTY_VECTORS = "without a mode, torch does not ask for vectors that are not wanted"
_OUTSIDE_IN = "it sees an op where the program calls it, before a mode of the program does"
_AS_BASE = "the alias of a subclass is an op of its own, which no mode sees"

RULES += [
    *[
        _mirrored(rule)
        for rule in RULES
        if rule.fact == "kernels"
        and rule.shows[0][0] in "+-*"
        and rule.reason != _THREADS
        and not _NOT_MIRRORED.intersection(rule.programs)
    ],
    _native("ops", ANYTHING, _TRANSFORMED, "gradients_of_samples_by_vmap",
            "transformations_of_functions", "forward_mode"),
    _native("ops", ANYTHING, "ctc_loss reads lengths out of their tensors where no mode is on",
            "ctc_loss"),
    # Ops of the same name that are not the same.
    *_same_names(_WHOLE, "inference_of_an_encoder", "arguments", "shapes", "results of ops",
                 "producers"),
    *[
        rule
        for program in ("gradients_of_samples_by_vmap", "transformations_of_functions")
        for rule in _same_names(_TRANSFORMED, program, "arguments", "shapes", "results of ops",
                                "producers")
    ],
    *_same_names(_TRANSFORMED, "random_vmap", "shapes", "results of ops"),
    *_same_names(_TRANSFORMED, "forward_mode", "arguments", "shapes", "producers"),
    *_same_names(_OTHER_FORMULA, "backward_of_products", "shapes", "results of ops", "producers"),
    *_same_names(_OTHER_FORMULA, "backward_of_running_products", "producers"),
    *_same_names(_OTHER_FORMULA, "backward_of_picked_elements", "arguments", "shapes",
                 "results of ops", "producers", "lines"),
    _native("ops", ("+aten.masked_fill.Scalar", "-aten.masked_fill.Scalar"), _OTHER_FORMULA,
            "backward_of_picked_elements"),
    *_same_names(_OTHER_FORMULA, "ctc_loss", "shapes", "results of ops", "producers"),
    *[
        _native(fact, (f"aten.{op}.default",) * times, _EMPTY_VECTORS, program)
        for fact in ("arguments", "results of ops")
        for op, times, program in (("_linalg_svd", 3, "singular_values"),
                                   ("_linalg_eigh", 1, "eigenvalues"))
    ],
    # Who made it.
    _native("producers", ("aten.t.default", "aten.mm.default"), _CHECKPOINTED,
            "checkpoint_without_reentry", "checkpoint_of_a_sequence"),
    _native("producers", ("aten.tanh_backward.default",), _CHECKPOINTED,
            "checkpoint_without_reentry"),
    _native("producers", ("aten.sub.Tensor",), _ELEMENTS, "writes_through_views"),
    _native("producers", ("aten._foreach_add_.Scalar",), _ELEMENTS,
            "writes_through_lists_of_views"),
    _native("producers", ("aten.t_.default", "aten.mul.Tensor", "aten.mul.Tensor"),
            "a change of shape in place is a new value of its memory, by that op",
            "memory_that_changes_its_shape"),
    _native("producers", ("aten.t.default", "aten.mul_.Tensor"), _GIVEN_DATA,
            "tensors_given_other_data"),
    _native("producers", ("aten.copy_.default", "aten.copy_.default", "aten.t.default",
                          "aten.addmm.default"), _GIVEN_DATA, "copies_of_modules"),
    _native("producers", ("aten.uniform_.default", "aten.zero_.default", "aten.fill_.Scalar"),
            _GIVEN_DATA, "lazy_modules"),
    _native("producers", ("aten.exp.default", "aten.select.int"), _AS_BASE, "subclass_by_name"),
    _native("producers", ("aten.add.Tensor",), _OUTSIDE_IN, "dispatch_mode_of_the_program"),
    _native("producers", ("aten.mul.Tensor",),
            "a copy that an op makes of its arguments on the way to its kernel is a part of it",
            "complex_numbers"),
    _native("producers", ("aten.ge.Scalar",),
            "a copy that an op makes of its arguments on the way to its kernel is a part of it",
            "losses"),
    # Where it ran.
    _native("lines", ("aten.ones_like.default", "aten.detach.default", "aten.detach.default"),
            _NO_LINE, "backward_in_threads"),
    _native("lines", ("aten.sin.default", "aten.add.Tensor"), _OUTSIDE_IN,
            "dispatch_mode_of_the_program"),
    *[
        _native("kernels", (f"shapes of aten.{op}",) * times,
                "the profiler has no shape of a jagged tensor", "jagged_tensors")
        for op, times in (("_nested_view_from_jagged.default", 1), ("mul.Tensor", 1),
                          ("_nested_get_values.default", 2), ("sum.dim_IntList", 1))
    ],
]  # fmt: skip

"""`t.health` and `clew health`: rules about training and data, on runs with a fault and without."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import clew
from accuracy.clean import clean_programs
from accuracy.health import alarms, found_in, recorded
from accuracy.health_faults import FAULTS, Cnn, Encoder, Residual, images, named, rows, trained
from clew.cli.main import main

ENGINE = os.environ.get("CLEW_ENGINE", "python")
# Of each rule some; `make accuracy` has all.
SAMPLE = (
    "captured-gradients-that-explode", "deep-sigmoid-mlp",
    "mlp-with-a-dead-layer", "cnn-with-many-dead-channels",
    "gate-with-large-inputs", "embedding-with-rate-zero",
    "detached-features", "parameter-that-nothing-uses",
    "head-replaced-after-the-optimizer", "sgd-with-tiny-rate",
    "one-batch-far-out", "spike-of-a-model-that-returns-its-loss", "cnn-trained-in-eval-mode",
    "batch-norm-evaluated-in-train-mode", "dropout-as-a-function",
    "first-batch-again-and-again", "relu-in-place-on-the-input",
    "nan-in-a-batch", "bytes-into-a-convolution", "unscaled-images-of-an-array",
    "image-viewed-to-channels-first", "heads-by-view", "rows-taken-for-channels",
)  # fmt: skip
CLEAN = ("lenet", "adversarial")


@lru_cache
def recorded_once(name: str) -> clew.Trace:
    """Record a planted fault, for all tests that ask about it."""
    return recorded(named(name), ENGINE)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_rule_finds_the_fault_it_is_for(name: str) -> None:
    one = found_in(named(name), recorded_once(name))
    assert (one.is_found, one.is_there) == (True, True), one.said


def test_every_rule_has_faults_that_it_must_find() -> None:
    rules = {rule.name for rule in recorded_once("heads-by-view").health().rules}
    assert {fault.rule for fault in FAULTS} == rules
    assert {named(name).rule for name in SAMPLE} == rules
    assert len(FAULTS) == len({fault.name for fault in FAULTS}) >= 50


def _healthy() -> clew.Trace:
    """Train and evaluate a model as one should, with all that the rules look at."""
    torch.manual_seed(0)

    class Gated(Cnn):
        def forward(self, images: Tensor) -> Tensor:
            hidden = F.relu(self.norm1(self.conv1(images / 255)))
            hidden = F.relu(self.conv2(hidden))
            return self.head(self.drop(hidden * torch.sigmoid(hidden)).mean((2, 3)))

    def pixels(step: int) -> tuple[Tensor, Tensor]:
        given = torch.randint(0, 256, (8, 16, 16, 3), dtype=torch.uint8)
        return given.permute(0, 3, 1, 2).float(), torch.randint(4, (8,))

    model = Gated()
    _, run = trained(model, pixels, steps=7)
    with clew.trace(model, values="full") as t:
        run()
        model.eval()
        with torch.no_grad():
            model(pixels(0)[0]).argmax(1).tolist()
    return t


def test_every_rule_is_checked_and_fine_on_a_healthy_run(tmp_path: Path) -> None:
    trace = _healthy()
    health = trace.health()
    assert [(rule.name, rule.verdict) for rule in health.rules if rule.verdict != "fine"] == []
    assert health.is_fine
    assert repr(health) == "<Health of 8 steps: 0 found, 16 fine, 0 not checked>"
    trace.save(tmp_path / "run.clew")
    assert clew.load(tmp_path / "run.clew").health().to_dict() == health.to_dict()


def test_clean_programs_raise_no_alarm() -> None:
    known = dict(clean_programs())
    chosen = [(name, known[name]) for name in CLEAN]
    assert [(name, said) for name, said in alarms(ENGINE, chosen, steps=3) if said] == []


# Programs that look like a fault and are none


def frozen_backbone() -> tuple[nn.Module, Any]:
    model = Encoder()
    model.layers.requires_grad_(False)
    model.words.requires_grad_(False)
    return trained(model, _words)


def head_trained_while_the_rest_is_in_eval_mode() -> tuple[nn.Module, Any]:
    model = Cnn().eval()
    model.requires_grad_(False)
    model.drop.train()
    model.head.requires_grad_(True)
    model.head.train()

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: Tensor) -> Tensor:
            return self.model(images)

    whole = Whole()
    whole.training = True
    return trained(whole, images)


def generator_without_gradients() -> tuple[nn.Module, Any]:
    maker, judge = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), nn.Linear(8, 1)
    both = nn.ModuleDict({"maker": maker, "judge": judge})
    first, second = (torch.optim.Adam(part.parameters(), lr=1e-3) for part in (maker, judge))

    def run() -> None:
        for _ in range(4):
            with torch.no_grad():
                made = maker(torch.randn(4, 8))
            second.zero_grad()
            (judge(made).mean() - judge(torch.randn(4, 8)).mean()).backward()
            second.step()
            first.zero_grad()
            (-judge(maker(torch.randn(4, 8))).mean()).backward()
            first.step()

    return both, run


def teacher_in_train_mode() -> tuple[nn.Module, Any]:
    student, teacher = Residual(), nn.Sequential(Residual(), nn.Dropout(0.2))
    both = nn.ModuleDict({"student": student, "teacher": teacher})
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)

    def run() -> None:
        for _ in range(4):
            given = torch.randn(16, 8)
            with torch.no_grad():
                wanted = teacher(given)
            optimizer.zero_grad()
            F.mse_loss(student(given), wanted).backward()
            optimizer.step()

    return both, run


def two_epochs_of_two_batches() -> tuple[nn.Module, Any]:
    kept = [rows(step) for step in range(2)]
    return trained(Residual(), lambda step: kept[step % 2])


def passes_over_one_batch() -> tuple[nn.Module, Any]:
    kept = rows(0)
    return trained(Residual(), lambda step: kept)


def line_search() -> tuple[nn.Module, Any]:
    model = Residual(depth=1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)

    def run() -> None:
        for step in range(3):
            given, wanted = rows(step)

            def closure(given: Tensor = given, wanted: Tensor = wanted) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(given), wanted)
                loss.backward()
                return loss

            optimizer.step(closure)

    return model, run


def cache_that_the_model_fills() -> tuple[nn.Module, Any]:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keys = nn.Linear(8, 8)

        def forward(self, word: Tensor, cache: Tensor, at: int) -> Tensor:
            cache[:, at] = self.keys(word)
            return (word[:, None] * cache[:, : at + 1]).sum(-1).softmax(-1)

    model = Cached().eval()

    def run() -> None:
        cache = torch.zeros(2, 4, 8)
        with torch.no_grad():
            for at in range(4):
                model(torch.randn(2, 8), cache, at).sum().item()

    return model, run


def accumulated_gradients() -> tuple[nn.Module, Any]:
    model = Residual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run() -> None:
        for _ in range(4):
            optimizer.zero_grad(set_to_none=False)
            for _ in range(3):
                given, wanted = rows(0)
                (F.cross_entropy(model(given), wanted) / 3).backward()
            optimizer.step()

    return model, run


def scaled_loss() -> tuple[nn.Module, Any]:
    model = Residual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)

    def run() -> None:
        for _ in range(4):
            given, wanted = rows(0)
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(given), wanted)).backward()
            scaler.step(optimizer)
            scaler.update()

    return model, run


def warm_up_from_rate_zero() -> tuple[nn.Module, Any]:
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 3))
    return trained(model, _words, optimizer, after=lambda step: rate.step())


def input_edited_and_not_used_again() -> tuple[nn.Module, Any]:
    return trained(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 4)), rows)


def attacked_in_eval_mode() -> tuple[nn.Module, Any]:
    model = Cnn()
    _, train = trained(model, images, steps=3)

    def run() -> None:
        train()
        model.eval()
        given = images(0)[0].requires_grad_()
        model(given).sum().backward()

    return model, run


def attacked_in_each_step() -> tuple[nn.Module, Any]:
    model = Cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        for step in range(4):
            given, wanted = images(step)
            model.eval()
            given.requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(model(given), wanted), given)
            model.train()
            loss = F.cross_entropy(model((given + 0.1 * slope.sign()).detach()), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


def critic_in_eval_mode_while_the_generator_is_trained() -> tuple[nn.Module, Any]:
    maker: Any = nn.Linear(4, 8)
    critic: Any = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))
    makers = torch.optim.Adam(maker.parameters(), lr=1e-3)
    critics = torch.optim.Adam(critic.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(4):
            critic.train()
            made = maker(torch.randn(16, 4))
            loss = (critic(made.detach()) - critic(torch.randn(16, 8))).mean()
            critics.zero_grad()
            loss.backward()
            critics.step()
            critic.eval()
            makers.zero_grad()
            (-critic(made).mean()).backward()
            makers.step()

    return nn.ModuleDict({"maker": maker, "critic": critic}), run


def positions_made_anew_in_each_step() -> tuple[nn.Module, Any]:
    model = nn.ModuleDict({"words": nn.Embedding(30, 8), "places": nn.Embedding(6, 8)})
    model["head"] = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for step in range(5):
            given, wanted = _words(step)
            place = model["places"](torch.arange(6)[None].expand(8, 6))
            loss = F.cross_entropy(model["head"]((model["words"](given) + place).mean(1)), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


def confident_prediction() -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())
    with torch.no_grad():
        model[0].weight.mul_(1e4)
    return model, lambda: model(torch.randn(32, 8))


def missing_values_left_out() -> tuple[nn.Module, Any]:
    def holed(step: int) -> tuple[Tensor, Tensor]:
        given, wanted = rows(step)
        array = given.numpy().copy()
        array[array < -1] = float("nan")
        return torch.from_numpy(array), wanted

    class Filled(Residual):
        def forward(self, rows: Tensor) -> Tensor:
            return super().forward(torch.nan_to_num(rows))

    return trained(Filled(), holed)


def one_hot_bytes() -> tuple[nn.Module, Any]:
    def boards(step: int) -> tuple[Tensor, Tensor]:
        return torch.randint(0, 2, (8, 3, 16, 16), dtype=torch.uint8).float(), torch.arange(8) % 4

    return trained(Cnn(), boards, steps=2)


def _words(step: int) -> tuple[Tensor, Tensor]:
    return torch.randint(30, (8, 6)), torch.randint(4, (8,))


@pytest.mark.parametrize(
    "program",
    [
        frozen_backbone, head_trained_while_the_rest_is_in_eval_mode, generator_without_gradients,
        teacher_in_train_mode, two_epochs_of_two_batches, accumulated_gradients, scaled_loss,
        passes_over_one_batch, line_search, cache_that_the_model_fills,
        warm_up_from_rate_zero, input_edited_and_not_used_again, attacked_in_eval_mode,
        attacked_in_each_step, critic_in_eval_mode_while_the_generator_is_trained,
        positions_made_anew_in_each_step, confident_prediction,
        missing_values_left_out, one_hot_bytes,
    ],
)  # fmt: skip
def test_what_only_looks_like_a_fault_is_none(program: Callable[[], tuple[nn.Module, Any]]) -> None:
    torch.manual_seed(0)
    model, run = program()
    with clew.trace(model, values="stats") as t:
        run()
    assert [f"{one.rule}: {one}" for one in t.health().found] == []
    assert [str(one) for one in t.findings if one.kind == "health"] == []


def test_training_that_goes_on_in_eval_mode_after_an_evaluation() -> None:
    model: Any = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
    _, train = trained(model, rows, steps=3)
    with clew.trace(model, values="stats") as t:
        train()
        model.eval()
        with torch.no_grad():
            model(rows(9)[0]).argmax(-1).sum().item()
        train()
    (one,) = t.health()["wrong mode"].findings
    assert one.text.startswith("the model was trained in eval mode in steps 3 to 5: Dropout 2 did")
    assert "also after an evaluation" in one.advice
    assert one.certain


def test_what_a_layer_gets_from_broken_weights_is_no_repeated_batch() -> None:
    model = nn.ModuleDict({"body": nn.Linear(8, 8), "head": nn.Linear(8, 4)})
    with torch.no_grad():
        model["body"].weight.fill_(torch.nan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with clew.trace(model, values="stats") as t:
        for step in range(4):
            given, wanted = rows(step)
            optimizer.zero_grad()
            F.cross_entropy(model["head"](model["body"](given)), wanted).backward()
            optimizer.step()
    assert t.health()["repeated batches"].findings == ()


def test_random_numbers_in_fresh_memory_are_a_batch() -> None:
    model: Any = nn.Linear(8, 4)

    def same(step: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        return torch.empty(32, 8).normal_(), rows(step)[1]

    _, train = trained(model, same, steps=4)
    with clew.trace(model, values="stats") as t:
        train()
    assert len(t.health()["repeated batches"].findings) == 1


def test_a_flat_sigmoid_has_no_slope_below_zero() -> None:
    model: Any = nn.Sequential(nn.Linear(8, 4), nn.Sigmoid(), nn.Linear(4, 4))
    with torch.no_grad():
        model[0].bias.fill_(30.0)
    _, train = trained(model, rows, steps=2)
    with clew.trace(model, values="stats") as t:
        train()
    (one,) = t.health()["saturated activations"].findings
    assert one.figure == 0


# What a verdict says


def test_findings_have_address_step_figure_threshold_and_advice() -> None:
    health = recorded_once("one-batch-far-out").health()
    (one,) = health["loss spikes"].findings
    assert (one.rule, one.step, one.rank, one.threshold) == ("loss spikes", 8, 0, 3.0)
    assert one.address == one.event.address
    assert one.figure > 3
    assert one.source is not None
    assert one.source.file.endswith("health_faults.py")
    assert str(one).startswith(f"the loss was 121 in step 8, {one.figure:.1f} times the median")
    assert "look at the batch of this step" in one.advice
    assert one.to_dict()["source"]["line"] == one.source.line


def test_thresholds_can_be_set() -> None:
    trace = recorded_once("one-batch-far-out")
    assert trace.health(loss_jump=1000)["loss spikes"].verdict == "fine"
    assert trace.health(loss_jump=1000).thresholds["loss_jump"] == 1000
    with pytest.raises(clew.ClewError, match="no threshold 'los_jump'; did you mean loss_jump"):
        trace.health(los_jump=3)
    with pytest.raises(clew.ClewError, match="the threshold loss_jump is a number, not 'high'"):
        trace.health(loss_jump="high")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="there are: wrong mode"):
        trace.health()["loss"]


def test_rules_without_their_facts_say_what_to_record() -> None:
    model, run = trained(Residual(), rows, steps=2)
    with clew.trace(model, level="modules") as t:
        run()
    notes = {rule.name: rule.note for rule in t.health().rules if rule.verdict == "not checked"}
    assert "record with level='ops', values='stats'" in notes["vanishing gradients"]
    assert "values='stats'" in notes["dead units"]
    assert "values='stats'" in notes["repeated batches"]
    assert t.health()["wrong mode"].note == "dropout as a function is seen with level='ops' only"
    text = str(t.health())
    assert text.count("record with level='ops', values='stats'") < 5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cnn-trained-in-eval-mode", "the model was trained in eval mode in steps 0 to 5"),
        ("dropout-as-a-function", "dropout ran in the root module in eval mode"),
        ("bytes-into-a-convolution", "bytes became floats at health_faults.py:"),
        ("image-viewed-to-channels-first", r"use permute(0, 3, 1, 2) in its place"),
        ("optimizer-of-another-model", "no optimizer that made a step has it"),
    ],
)
def test_what_is_certain_is_a_finding_to_read_first(name: str, said: str) -> None:
    findings = [one for one in recorded_once(name).findings if one.kind == "health"]
    assert [one.severity for one in findings] == ["warning"]
    assert said in findings[0].text


def test_what_may_be_meant_is_no_finding_to_read_first() -> None:
    for name in ("heads-by-view", "unscaled-images-of-an-array", "deep-sigmoid-mlp"):
        assert [one for one in recorded_once(name).findings if one.kind == "health"] == []


def test_the_command_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "run.clew")
    recorded_once("deep-sigmoid-mlp").save(path)
    assert main(["health", path, "--rows", "1"]) == 1
    text = capsys.readouterr().out
    assert "vanishing gradients (vanishing)\n  the gradient of 0.weight is at most" in text
    assert "more; --rows 5 shows all" in text
    assert main(["health", path, "--set", "vanishing=1e-12", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["found"], data["thresholds"]["vanishing"]) == (0, 1e-12)
    with pytest.raises(SystemExit) as caught:
        main(["health", path, "--set", "vanishing"])
    assert caught.value.code == 2
    assert "'vanishing' is not a name, =, and a number" in capsys.readouterr().err
    assert main(["health", path, "--set", "vanish=1"]) == 2
    assert "did you mean vanishing" in capsys.readouterr().err


# Samples


class Clips(Dataset[dict[str, Any]]):
    """Sample 6 is longer than the others."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"clip": torch.zeros(3, 5 if index == 6 else 4), "label": index}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_ragged_batch_names_its_sample(workers: int) -> None:
    loader = DataLoader(Clips(), batch_size=4, num_workers=workers)
    with pytest.raises(RuntimeError), clew.trace() as t:
        list(loader)
    assert t.crash is not None
    assert "sample 6 is f32[3,5] at clip; the other 3 are f32[3,4]" in t.crash.note


class Divided(Dataset[Tensor]):
    """Sample 6 is divided by zero."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        clip = torch.zeros(8) / (0.0 if index == 6 else 1.0)
        return clip


class Sums(Dataset[dict[str, Tensor]]):
    """A row of the table has a NaN, which the sample takes."""

    def __init__(self) -> None:
        self.table = torch.ones(8, 8)
        self.table[6, 3] = torch.nan

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"label": torch.tensor(index), "row": self.table[index] + 1}


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (Divided(), "8 NaN in 8 numbers, entry 2 of its batch of 4, while a batch was loaded at"),
        (Sums(), "1 NaN in 8 numbers in row 6 of [8,8], entry 2 of its batch of 4, while a batch"),
    ],
)
def test_nan_in_the_data_names_the_sample_without_workers(dataset: Any, said: str) -> None:
    model = Residual()
    with clew.trace(model, values="stats") as t:
        for batch in DataLoader(dataset, batch_size=4):
            model(batch if isinstance(batch, Tensor) else batch["row"])
    (one,) = t.health()["NaN in the data"].findings
    assert one.text.startswith(said)


def test_nan_in_the_data_names_worker_and_sample() -> None:
    model = Residual()
    with clew.trace(
        model, values="stats", capture=["test_health.py:Divided.__getitem__.clip"]
    ) as t:
        for batch in DataLoader(Divided(), batch_size=4, num_workers=1):
            model(batch)
    (one,) = t.health()["NaN in the data"].findings
    assert one.text == "clip held 8 NaN in 8 numbers in sample 6, made by worker 0"
    assert one.address == "test_health.py:Divided.__getitem__.clip#6"

"""Training loops of others, unchanged: Hugging Face's Trainer, Lightning, accelerate."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import clew

accelerate = pytest.importorskip("accelerate")
lightning = pytest.importorskip("pytorch_lightning")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # the loops themselves set off several
]

SCHEDULE = clew.schedule(wait=2, active=1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.fc(x)
        return {"loss": (logits - labels).square().mean(), "logits": logits}


class Rows(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        return {"x": torch.full((2,), float(at)), "labels": torch.ones(1)}


def batches() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(8, 2), torch.ones(8, 1)), batch_size=2)


def passes(t: clew.Trace) -> dict[int, int]:
    """How often the layer ran in each step."""
    return dict(Counter(e.step for e in t.modules if e.name == "Linear"))


def check(t: clew.Trace, schedule: Any, modes: str, counts: list[int]) -> None:
    """Compare the steps of a trace with all there are: their modes, as letters, and passes."""
    steps = [step for step in range(len(counts)) if schedule is None or schedule(step)]
    names = {"t": "train", "e": "eval"}
    assert t.modes == {step: names[modes[step]] for step in steps}
    assert passes(t) == {step: counts[step] for step in steps}
    assert t.env["steps"] == "automatic"
    assert not t.coverage


@pytest.mark.parametrize("schedule", [None, SCHEDULE])
@pytest.mark.parametrize("named", [True, False])
def test_the_trainer_of_transformers(named: bool, schedule: Any, tmp_path: Path) -> None:
    net = Net()
    arguments = transformers.TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, per_device_eval_batch_size=2,
        gradient_accumulation_steps=2, num_train_epochs=2, eval_strategy="epoch", report_to=[],
        save_strategy="no", logging_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(net, arguments, train_dataset=Rows(), eval_dataset=Rows())
    with clew.trace(net if named else None, schedule=schedule) as t:
        trainer.train()
    check(t, schedule, "ttette", [2, 2, 4, 2, 2, 4])


@pytest.mark.parametrize("schedule", [None, SCHEDULE])
@pytest.mark.parametrize("named", [True, False])
def test_accelerate_with_gradient_accumulation(named: bool, schedule: Any) -> None:
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2, cpu=True)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    model, optimizer, loader = accelerator.prepare(net, optimizer, batches())
    with clew.trace(net if named else None, schedule=schedule) as t:
        for _ in range(2):
            for x, y in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(x, y)["loss"])
                    optimizer.step()
                    optimizer.zero_grad()
    check(t, schedule, "tttt", [2, 2, 2, 2])


class Lit(lightning.LightningModule):  # type: ignore[misc]
    """Lightning runs the forward inside `optimizer.step(closure)`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: Any, number: int) -> Tensor:
        return self.net(*batch)["loss"]

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("loss", self.net(*batch)["loss"])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters())


class TwoOptimizers(Lit):
    """A GAN's way: each optimizer makes a step after a forward of its own."""

    automatic_optimization = False

    def training_step(self, batch: Any, number: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.net(*batch)["loss"])
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD([p], 0.1) for p in self.parameters()]


def fit(model: Lit, where: Path, **settings: Any) -> None:
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=str(where),
        num_sanity_val_steps=1, **settings,
    )  # fmt: skip
    trainer.fit(model, batches(), batches())


@pytest.mark.parametrize("schedule", [None, SCHEDULE])
@pytest.mark.parametrize("named", [True, False])
def test_lightning(named: bool, schedule: Any, tmp_path: Path) -> None:
    model = Lit()
    with clew.trace(model if named else None, schedule=schedule) as t:
        fit(model, tmp_path, accumulate_grad_batches=2)
    check(t, schedule, "ettette", [1, 2, 2, 4, 2, 2, 4])


@pytest.mark.parametrize("schedule", [None, SCHEDULE])
def test_lightning_with_two_optimizers(schedule: Any, tmp_path: Path) -> None:
    model = TwoOptimizers()
    with clew.trace(model, schedule=schedule) as t:
        fit(model, tmp_path)
    modes = "e" + 2 * ("t" * 8 + "e")
    check(t, schedule, modes, [1, *[1] * 8, 4, *[1] * 8, 4])


def test_a_step_callback_of_the_program_takes_over(tmp_path: Path) -> None:
    model = Lit()

    class Marks(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, *of: Any) -> None:
            t.step()

    with clew.trace(model) as t:
        fit(model, tmp_path, callbacks=[Marks()], limit_val_batches=0)
    assert passes(t) == dict.fromkeys(range(8), 1)
    assert t.env["steps"] == "step()"


# The flight recorder


class OneBroken(Rows):
    """Sample 5 has a NaN, so the third batch of two in each epoch has one."""

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        x = torch.full((2,), float("nan") if at == 5 else 0.1 * at)
        return {"x": x, "labels": torch.ones(1)}


def in_order(rows: Dataset[dict[str, Tensor]], where: Path, net: Net) -> None:
    """Train with Hugging Face's Trainer, four steps of one batch each."""

    class InOrder(transformers.Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *of: Any) -> Any:
            return torch.utils.data.SequentialSampler(rows)  # type: ignore[arg-type]

    arguments = transformers.TrainingArguments(
        str(where), per_device_train_batch_size=2, num_train_epochs=1, report_to=[],
        save_strategy="no", logging_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    InOrder(net, arguments, train_dataset=rows).train()


def with_lightning(rows: Dataset[dict[str, Tensor]], where: Path, net: Net) -> None:
    """Train with Lightning, four steps of one batch each, and evaluate."""
    model = Lit()
    model.net = net
    data = [rows[at] for at in range(8)]
    pairs = TensorDataset(*(torch.stack([one[key] for one in data]) for key in ("x", "labels")))
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=str(where),
    )  # fmt: skip
    trainer.fit(model, DataLoader(pairs, batch_size=2))


@pytest.mark.parametrize("train", [in_order, with_lightning])
def test_a_recorder_around_a_loop_of_others(train: Any, tmp_path: Path) -> None:
    """Nobody calls `rec.step`: steps are found, and a batch with NaN is written in its own."""
    net = Net()
    with clew.recorder(net, out=tmp_path / "clean") as quiet:
        train(Rows(), tmp_path, net)
    assert quiet.dumps == []
    with clew.recorder(net, out=tmp_path / "flight") as rec:
        train(OneBroken(), tmp_path, net)
    (dump,) = rec.dumps
    assert (dump.step, dump.fired[0].trigger) == (2, "nonfinite")
    t = clew.load(dump.path)
    assert t.steps == [0, 1, 2]
    norms = [stats.norm for stats in t["fc.weight:grad"].stats]
    assert [norm is not None and norm == norm for norm in norms] == [True, True, False]

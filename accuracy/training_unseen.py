"""Changes of programs that nothing is tuned on: two optimizers, a scaled loss, an LSTM.

All are recorded from the beginning, as `clew run` does. Each of the two optimizers of one program
makes steps of its own.
"""

from __future__ import annotations

from accuracy.training_faults import (
    DATA,
    FORWARD,
    GRADIENT,
    LOSS,
    MODE,
    OPTIMIZER,
    PARAMETERS,
    RANDOM,
    STEPS,
    Change,
)


def _edit(name: str, program: str, old: str, new: str, *facts: object) -> Change:
    return Change(name, program, ((old, new),), *facts, whole=True)  # type: ignore[arg-type]


_PLAIN_LOSS = "        scaler.unscale_(optimizer)\n"

UNSEEN = (
    _edit("other seed", "adversarial", "torch.manual_seed(1)", "torch.manual_seed(2)", DATA, 0,
          "another seed"),
    _edit("other data", "adversarial", "* 0.5 + centre", "* 0.5 + 1.01 * centre", DATA, 0),
    _edit("gradients of one never cleared", "adversarial", "        by_critic.zero_grad()\n", "",
          GRADIENT, 2, "not cleared"),
    _edit("other betas of one", "adversarial", "lr=4e-3, betas=(0.5, 0.99)",
          "lr=4e-3, betas=(0.9, 0.99)", OPTIMIZER, 0, r"betas.*0\.5.*0\.9"),
    _edit("other slope", "adversarial", "nn.LeakyReLU(0.2)", "nn.LeakyReLU(0.3)", FORWARD, 0,
          "negative_slope"),
    _edit("other loss", "adversarial", "fooled = F.softplus(-critic(fake)).mean()",
          "fooled = -critic(fake).mean()", LOSS, 1),
    _edit("a draw more later", "adversarial", "        by_generator.step()\n",
          "        by_generator.step()\n        if step == 1:\n            torch.rand(2)\n",
          DATA, 4, r"only b draws.*:\d+"),
    _edit("a step fewer", "adversarial", "STEPS = 4", "STEPS = 3", STEPS, 6, "steps"),
    _edit("noise of half the size", "autoencoder", "noise = torch.randn_like(mean)",
          "noise = 0.5 * torch.randn_like(mean)", FORWARD, 0),
    _edit("seeded in each step", "autoencoder", "        out, mean, spread = model(x)\n",
          "        torch.manual_seed(11)\n        out, mean, spread = model(x)\n",
          RANDOM, 0),
    _edit("weight of a loss", "autoencoder", "0.05 * kl", "0.1 * kl", LOSS, 0),
    _edit("not unscaled before clipping", "autoencoder", _PLAIN_LOSS, "", GRADIENT, 0,
          "unscale|clip_grad_value_"),
    _edit("other clipping", "autoencoder", "model.parameters(), 0.05)", "model.parameters(), 0.01)",
          GRADIENT, 0),
    _edit("other rate of a group", "autoencoder", '"lr": 4e-3', '"lr": 5e-3', OPTIMIZER, 0,
          r"lr of group 1 is 0\.004 in a, 0\.005 in b"),
    _edit("other pictures", "autoencoder", "torch.rand(40, 1, 8, 8)", "torch.rand(41, 1, 8, 8)",
          DATA, 0),
    _edit("other first weights", "autoencoder", "torch.manual_seed(0)", "torch.manual_seed(8)",
          PARAMETERS, 0, "another seed"),
    _edit("other shuffle", "tagger", "random.seed(7)", "random.seed(8)", DATA, 0,
          "batch of step 0"),
    _edit("one sentence changed", "tagger", "    data = sentences()\n",
          "    data = sentences()\n    data[4] = data[4][::-1]\n", DATA, 2, "batch of step"),
    _edit("padding counts", "tagger", "ids % TAGS, -100)", "ids % TAGS, 0)", DATA, 0),
    _edit("schedule each step", "tagger", "            optimizer.step()\n        schedule.step()\n",
          "            optimizer.step()\n            schedule.step()\n", OPTIMIZER, 1, r"lr is"),
    _edit("other alpha", "tagger", "alpha=0.9", "alpha=0.95", OPTIMIZER, 0, r"alpha is"),
    _edit("left in eval mode", "tagger", "        model.train()\n        random.shuffle(data)\n",
          "        random.shuffle(data)\n", MODE, 3, "training is True in a, False in b"),
    _edit("sum for mean", "tagger", "ignore_index=-100)", "ignore_index=-100, reduction='sum')",
          LOSS, 0),
    _edit("no dropout", "tagger", "self.drop = nn.Dropout(0.2)",
          "self.drop = nn.Dropout(0.0)", FORWARD, 0, "drop"),
    *(Change("re-run", program, (), whole=True)
      for program in ("adversarial", "autoencoder", "tagger")),
    _edit("graph kept", "adversarial", "        loss.backward()\n",
          "        loss.backward(retain_graph=False)\n"),
    _edit("losses apart", "adversarial",
          "F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()",
          "(F.softplus(-critic(real)) + F.softplus(critic(fake.detach()))).mean()"),
    _edit("no scaling", "autoencoder", "init_scale=256.0)", "init_scale=1.0)"),
    _edit("written otherwise", "autoencoder", "z = mean + noise * torch.exp(0.5 * spread)",
          "z = torch.addcmul(mean, noise, (0.5 * spread).exp())"),
    _edit("one rounding off", "autoencoder", "    return Autoencoder()\n",
          "    model = Autoencoder()\n    for weight in model.parameters():\n"
          "        weight.data *= 1 + 1.2e-7\n    return model\n"),
    _edit("no evaluation", "tagger", "            model(padded(data[:4])[0])\n",
          "            pass\n"),
    _edit("a layer by hand", "tagger", "self.head(self.drop(states))",
          "F.linear(self.drop(states), self.head.weight, self.head.bias)"),
)  # fmt: skip

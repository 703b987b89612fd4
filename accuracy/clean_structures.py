"""Clean architectures of graphs, sets, tables and decisions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from accuracy.clean import ClassBatches, Task, one_loss

NODES, WIDTH = 12, 16


def _graph() -> tuple[Tensor, Tensor, Tensor]:
    """Return the features of nodes in two groups, edges within them, and the groups."""
    groups = torch.arange(NODES) % 2
    features = groups[:, None] + 0.5 * torch.randn(NODES, 6)
    source = torch.arange(NODES).repeat_interleave(3)
    target = (source + 2 * torch.randint(1, 6, source.shape)) % NODES
    return features, torch.stack([source, target]), groups


def _node_classes(model: nn.Module) -> Task:
    def loss() -> Tensor:
        features, edges, groups = _graph()
        return F.cross_entropy(model(features, edges), groups)

    return one_loss(model, loss)


class _GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        loops = torch.arange(len(x)).repeat(2, 1)
        edges = torch.cat([edges, loops], 1)
        degree = torch.zeros(len(x)).index_add(0, edges[1], torch.ones(edges.shape[1]))
        scale = degree.pow(-0.5)
        weights = scale[edges[0]] * scale[edges[1]]
        adjacency = torch.sparse_coo_tensor(
            edges.flip(0), weights, (len(x), len(x)), check_invariants=True
        )
        with torch.autocast("cpu", enabled=False):
            x = F.relu(torch.sparse.mm(adjacency, self.first(x)))
            return torch.sparse.mm(adjacency, self.second(x))


def graph_convolution() -> Task:
    """A sparse adjacency with self loops, so that no degree is 0."""
    return _node_classes(_GCN())


class _GAT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.score = nn.Linear(6, WIDTH), nn.Linear(2 * WIDTH, 1)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.into(x)
        source, target = edges
        scores = F.leaky_relu(self.score(torch.cat([h[source], h[target]], -1)), 0.2)[:, 0].float()
        most = torch.full((len(x),), float("-inf")).scatter_reduce(0, target, scores, "amax")
        raised = torch.exp(scores - most.detach()[target])
        total = torch.zeros(len(x)).index_add(0, target, raised)
        weights = (raised / (total[target] + 1e-16)).to(h.dtype)
        sent = torch.zeros_like(h).index_add(0, target, weights[:, None] * h[source])
        return self.head(F.elu(sent))


def graph_attention() -> Task:
    """A softmax over the edges of a node; nodes without edges keep -inf as their maximum."""
    return _node_classes(_GAT())


class _Messages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(12, WIDTH), nn.Linear(WIDTH + 6, 2)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        sent = F.relu(self.message(torch.cat([x[source], x[target]], -1)))
        total = sent.new_zeros(len(x), WIDTH).index_add(0, target, sent)
        count = torch.bincount(target, minlength=len(x)).clamp(min=1)[:, None]
        return self.update(torch.cat([total / count, x.to(total.dtype)], -1))


def message_passing() -> Task:
    """Messages averaged over neighbours, with the count clamped."""
    return _node_classes(_Messages())


class _PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(
            nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1)
        )
        self.head = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, points: Tensor) -> Tensor:
        return self.head(self.each(points).amax(-1))


def point_net() -> Task:
    """Points, each by itself, and their maximum."""
    model = _PointNet()
    batches = ClassBatches(3, 32)

    def loss() -> Tensor:
        x, y = batches()
        return F.cross_entropy(model(x), y)

    return one_loss(model, loss)


class _Sets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.seed, self.head = nn.Parameter(torch.randn(1, 1, 32)), nn.Linear(32, 1)

    def forward(self, x: Tensor, missing: Tensor) -> Tensor:
        h = self.into(x)
        seed = self.seed.expand(len(x), -1, -1)
        pooled, _ = self.attention(seed, h, h, key_padding_mask=missing)
        return self.head(pooled)[:, 0, 0]


def set_transformer() -> Task:
    """Sets of different sizes, pooled by attention."""
    model = _Sets()

    def loss() -> Tensor:
        x = torch.randn(8, 6, 4)
        missing = torch.arange(6) >= torch.randint(1, 7, (8, 1))
        wanted = x.masked_fill(missing[..., None], 0).sum((1, 2)) / (~missing).sum(1)
        return F.mse_loss(model(x, missing), wanted)

    return one_loss(model, loss)


class _DeepFM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factors = nn.Embedding(30, 1), nn.Embedding(30, 8)
        self.deep = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, fields: Tensor) -> Tensor:
        v = self.factors(fields)
        pairs = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(-1)
        return self.linear(fields).sum((1, 2)) + pairs + self.deep(v.flatten(1))[:, 0]


def factorization_machine() -> Task:
    """Recommendations from pairs of features."""
    model = _DeepFM()

    def loss() -> Tensor:
        fields = torch.randint(10, (16, 3)) + torch.tensor([0, 10, 20])
        clicked = (fields[:, 0] % 2 == 0).float()
        return F.binary_cross_entropy_with_logits(model(fields), clicked)

    return one_loss(model, loss)


class _MatrixFactors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, 8), nn.Embedding(20, 8)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return F.cosine_similarity(self.users(user), self.items(item), eps=1e-6) + self.bias


def matrix_factors() -> Task:
    """Users and items by the cosine between them."""
    model = _MatrixFactors()

    def loss() -> Tensor:
        user, item = torch.randint(20, (32,)), torch.randint(20, (32,))
        return F.mse_loss(model(user, item), ((user + item) % 2).float())

    return one_loss(model, loss)


class _TabTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fields = nn.ModuleList(nn.Embedding(5, 16) for _ in range(3))
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Sequential(nn.Linear(52, 16), nn.SELU(), nn.Linear(16, 1))

    def forward(self, kinds: Tensor, numbers: Tensor) -> Tensor:
        x = torch.stack([f(kinds[:, i]) for i, f in enumerate(self.fields)], 1)
        h = self.encoder(x).flatten(1)
        return self.head(torch.cat([h, self.norm(numbers).to(h.dtype)], 1))[:, 0]


def tab_transformer() -> Task:
    """Columns of a table as tokens; the target is logged with log1p."""
    model = _TabTransformer()

    def loss() -> Tensor:
        kinds, numbers = torch.randint(5, (16, 3)), torch.randn(16, 4)
        return F.l1_loss(model(kinds, numbers), torch.log1p(numbers.square().sum(1)))

    return one_loss(model, loss)


def triplets() -> Task:
    """Distances between three samples, with a margin."""
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 8))
    middle, other = 0.3 * torch.randn(2, 12)

    def loss() -> Tensor:
        noise = 0.3 * torch.randn(3, 8, 12)
        one, near, far = middle + noise[0], middle + noise[1], other + noise[2]
        return F.triplet_margin_loss(model(one), model(near), model(far))

    return one_loss(model, loss)


def q_learning() -> Task:
    """Values of actions, with a target network that follows."""
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    target = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    target.load_state_dict(model.state_dict())

    def loss() -> Tensor:
        state, action = torch.randn(16, 4), torch.randint(3, (16,))
        with torch.no_grad():
            future = target(state + 0.1).amax(1)
        wanted = state[:, 0] + 0.9 * future * (action != 0)
        return F.smooth_l1_loss(model(state).gather(1, action[:, None])[:, 0], wanted)

    def follow() -> None:
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)

    return Task(model, [(loss, None)], follow)


class _ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, 5), nn.Linear(32, 1)

    def forward(self, state: Tensor, legal: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(state)
        return self.actor(h).masked_fill(~legal, float("-inf")), self.critic(h)[:, 0]


def policy_gradient() -> Task:
    """A clipped policy gradient; actions that are not legal have logits of -inf."""
    model = _ActorCritic()

    def loss() -> Tensor:
        state, legal = torch.randn(16, 4), torch.rand(16, 5) > 0.3
        legal[:, 0] = True
        logits, value = model(state, legal)
        policy = Categorical(logits=logits.float())
        action = policy.sample()
        reward = (action == 0).float() + 0.1 * state[:, 0]
        gain = reward - reward.mean()
        now = policy.log_prob(action)
        ratio = (now - now.detach()).exp()
        clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        spread = policy.probs * torch.where(legal, policy.logits, 0)
        return F.mse_loss(value, reward) - clipped + 0.01 * spread.sum(-1).mean()

    return one_loss(model, loss)


class _Squashed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 32), nn.Linear(32, 4)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.head(F.silu(self.body(state))).float().chunk(2, -1)
        policy = Normal(mean, log_std.clamp(-5, 2).exp())
        raw = policy.rsample()
        action = raw.tanh()
        chance = policy.log_prob(raw) - torch.log(1 - action.square() + 1e-6)
        return action, chance.sum(-1)


def soft_actor() -> Task:
    """A squashed Gaussian policy with entropy."""
    model = _Squashed()

    def loss() -> Tensor:
        state = torch.randn(16, 4)
        action, chance = model(state)
        return (0.1 * chance + (action - state[:, :2].tanh()).square().sum(-1)).mean()

    return one_loss(model, loss)


class _MixtureDensity(nn.Module):
    def __init__(self, parts: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 32), nn.Tanh())
        self.weight, self.mean, self.log_std = (nn.Linear(32, parts) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.body(x)
        weight = F.log_softmax(self.weight(h).float(), -1)
        policy = Normal(self.mean(h).float(), F.softplus(self.log_std(h).float()) + 1e-3)
        return -torch.logsumexp(weight + policy.log_prob(y), -1).mean()


def mixture_density() -> Task:
    """Several Gaussians for one target."""
    model = _MixtureDensity()

    def loss() -> Tensor:
        y = torch.rand(32, 1)
        return model(y + 0.3 * torch.sin(6 * y) + 0.02 * torch.randn_like(y), y)

    return one_loss(model, loss)


class _LowRank(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(0.1 * torch.randn(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T


def low_rank_adapter() -> Task:
    """A frozen layer with a trained correction that begins at 0."""
    model = nn.Sequential(_LowRank(nn.Linear(12, 32)), nn.ReLU(), nn.Linear(32, 4))
    batches = ClassBatches(12)

    def loss() -> Tensor:
        x, y = batches()
        return F.cross_entropy(model(x), y)

    return one_loss(model, loss)


def distillation() -> Task:
    """A student that follows a teacher's probabilities."""
    student = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
    teacher = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4)).requires_grad_(False)
    batches = ClassBatches(12)

    def loss() -> Tensor:
        x, y = batches()
        said = student(x)
        wanted = F.softmax(teacher(x) / 2, -1)
        soft = F.kl_div(F.log_softmax(said / 2, -1), wanted, reduction="batchmean")
        return soft + F.cross_entropy(said, y)

    return one_loss(student, loss)


class _Hyper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 4 * 4 + 4))

    def forward(self, context: Tensor, x: Tensor) -> Tensor:
        made = self.weights(context)
        w, b = made[:, :16].view(-1, 4, 4), made[:, 16:]
        return torch.tanh(torch.bmm(w, x[..., None].to(w.dtype))[..., 0] + b)


def hyper_network() -> Task:
    """A network that makes the weights of another."""
    model = _Hyper()

    def loss() -> Tensor:
        context, x = torch.randn(16, 4), torch.randn(16, 4)
        return F.mse_loss(model(context, x), (context * x).tanh())

    return one_loss(model, loss)


class _Ode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.change = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(6):
            middle = x + 0.05 * self.change(x)
            x = x + 0.1 * self.change(middle)
        return x


def neural_ode() -> Task:
    """A flow integrated with the midpoint rule."""
    model = _Ode()
    turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]])

    def loss() -> Tensor:
        x = torch.randn(16, 2)
        return F.mse_loss(model(x), x @ turn.to(x.dtype))

    return one_loss(model, loss)


def physics_informed() -> Task:
    """A differential equation as a loss: gradients of gradients."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))

    def loss() -> Tensor:
        x = torch.rand(16, 1, requires_grad=True)
        y = model(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return (slope + y).square().mean() + (model(torch.zeros(1, 1)) - 1).square().mean()

    return Task(model, [(loss, None)], differentiates=True)


BUILDS = [
    graph_convolution, graph_attention, message_passing, point_net, set_transformer,
    factorization_machine, matrix_factors, tab_transformer, triplets, q_learning, policy_gradient,
    soft_actor, mixture_density, low_rank_adapter, distillation, hyper_network, neural_ode,
    physics_informed,
]  # fmt: skip

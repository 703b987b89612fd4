"""Programs about numbers: linear algebra, reductions, random numbers, sparse and nested tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import distributions, nn

from tests.conformance.programs.registry import Prepared, program


@program
def products_of_every_rank() -> Prepared:
    a, b, v = torch.randn(2, 3, 4), torch.randn(4, 3), torch.randn(4)

    def run() -> Any:
        return (
            a @ b, a @ v, v @ v, torch.einsum("bij,jk->bik", a, b), torch.tensordot(a, b, 1),
            torch.outer(v, v), torch.bmm(a, a.mT), torch.kron(b, b), torch.addmv(v[:3], b.t(), v),
            torch.baddbmm(torch.ones(2, 3, 3), a, a.mT, beta=0.5),
            torch.linalg.multi_dot([b, b.t(), b]),
        )  # fmt: skip

    return Prepared(run)


@program
def products_with_gradients() -> Prepared:
    a = torch.randn(2, 3, 4, requires_grad=True)
    b = torch.randn(4, 3, requires_grad=True)

    def run() -> Any:
        out = torch.einsum("bij,jk->bk", a, b) + (a @ b).sum(1)
        out.sum().backward()
        return out, a.grad, b.grad

    return Prepared(run)


@program
def factorisations() -> Prepared:
    root = torch.randn(4, 4)
    a = root @ root.t() + torch.eye(4)

    def run() -> Any:
        u, s, v = torch.linalg.svd(a)
        values, vectors = torch.linalg.eigh(a)
        q, r = torch.linalg.qr(a)
        lu, pivots = torch.linalg.lu_factor(a)
        return (
            u, s, v, values, vectors, q, r, lu, pivots, torch.linalg.cholesky(a),
            torch.linalg.solve(a, root), torch.linalg.inv(a), torch.linalg.det(a),
            torch.linalg.matrix_power(a, 3), torch.linalg.matrix_exp(root), torch.linalg.norm(a),
        )  # fmt: skip

    return Prepared(run)


@program
def factorisations_with_gradients() -> Prepared:
    root = torch.randn(3, 3)
    a = (root @ root.t() + torch.eye(3)).requires_grad_()

    def run() -> Any:
        out = torch.linalg.slogdet(a).logabsdet + torch.linalg.svdvals(a).sum()
        (out + torch.linalg.solve(a, torch.ones(3)).sum()).backward()
        return out, a.grad

    return Prepared(run)


@program
def singular_values() -> Prepared:
    a = torch.randn(4, 16, 16)

    def run() -> Any:
        with torch.no_grad():
            return torch.linalg.svdvals(a), torch.linalg.cond(a), torch.linalg.matrix_norm(a, "nuc")

    return Prepared(run)


@program
def eigenvalues() -> Prepared:
    a = torch.randn(2, 12, 12)

    def run() -> Any:
        return torch.linalg.eigvalsh(a + a.mT), torch.linalg.eigvals(a).abs().sort().values

    return Prepared(run)


@program
def singular_vectors_dropped_by_the_program() -> Prepared:
    a = torch.randn(3, 3)

    def run() -> Any:
        return torch.linalg.svd(a, full_matrices=False)[1], torch.linalg.eigh(a @ a.t()).eigenvalues

    return Prepared(run)


@program
def reductions() -> Prepared:
    x = torch.randn(3, 4)

    def run() -> Any:
        return (
            x.sum(), x.mean(0), x.std(), x.var(1), x.max(), x.min(1), x.argmax(), x.prod(), x.any(),
            x.norm(), x.logsumexp(1), x.median(), x.amax(1), x.aminmax(), x.count_nonzero(),
            x.nansum(), x.quantile(0.3), x.histc(4), torch.std_mean(x), x.all(), x.kthvalue(2),
        )  # fmt: skip

    return Prepared(run)


@program
def running_sums() -> Prepared:
    x = torch.randn(3, 4, requires_grad=True)

    def run() -> Any:
        out = x.cumsum(0) + x.logcumsumexp(1) + torch.diff(x, prepend=x[:, :1])
        out.sum().backward()
        return out, x.grad

    return Prepared(run)


@program
def sorting_and_searching() -> Prepared:
    x = torch.tensor([3.0, 1.0, 2.0, 1.0])

    def run() -> Any:
        return (
            x.sort(), x.topk(2), x.argsort(), torch.unique(x, return_counts=True),
            torch.searchsorted(x.sort().values, x), torch.bucketize(x, x.sort().values),
            torch.isin(x, x[:2]), x.roll(1), x.flip(0), torch.combinations(x),
        )  # fmt: skip

    return Prepared(run)


@program
def shapes_that_depend_on_data() -> Prepared:
    x = torch.tensor([[1.0, -1.0], [2.0, 0.0]])

    def run() -> Any:
        found = x.nonzero()
        many = int((x > 0).sum())
        if x.sum().item() > 0:
            found = found.repeat(many, 1)
        return found, x[x > 0], torch.where(x > 0), x.repeat_interleave(torch.tensor([1, 2]), 0)

    return Prepared(run)


@program
def fourier_transforms() -> Prepared:
    x = torch.randn(2, 8, requires_grad=True)

    def run() -> Any:
        spectrum = torch.fft.rfft(x)
        out = torch.fft.irfft(spectrum * 2)
        out.sum().backward()
        window = torch.hann_window(4)
        short = torch.stft(x.detach(), 4, window=window, return_complex=True)
        return out, x.grad, short, torch.fft.fftshift(torch.fft.fft2(x.detach()))

    return Prepared(run)


@program
def elementwise_functions() -> Prepared:
    x = torch.rand(4) + 0.1

    def run() -> Any:
        y = torch.where(x > 0.5, x, x.neg())
        return (
            y, x.log1p(), x.erf(), torch.special.digamma(x), x.lerp(y, 0.5), x.addcdiv(y, x),
            torch.atan2(x, y), x.floor().to(torch.int32) // 2, x.bool() & True, x.pow(2.5), 2**x,
            x.frac(), torch.maximum(x, y), x.clamp(0.2, 0.8), x.nan_to_num(), 1 - x, 3 / x,
        )  # fmt: skip

    return Prepared(run)


@program
def factories() -> Prepared:
    def run() -> Any:
        return (
            torch.zeros(2), torch.ones(2, dtype=torch.int8), torch.full((2,), 3.5), torch.eye(2),
            torch.arange(3), torch.linspace(0, 1, 3), torch.tensor([1.0, 2.0]),
            torch.tril_indices(2, 2), torch.zeros_like(torch.ones(2)), torch.scalar_tensor(2.0),
            torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij"),
        )  # fmt: skip

    return Prepared(run)


@program
def random_numbers() -> Prepared:
    def run() -> Any:
        own = torch.Generator().manual_seed(7)
        x = torch.randn(3)
        return (
            x, torch.rand(2, generator=own), torch.randint(0, 9, (3,), generator=own),
            torch.randperm(5), torch.empty(3).normal_(), torch.empty(3).uniform_(generator=own),
            torch.bernoulli(torch.full((3,), 0.5)), torch.multinomial(x.exp(), 2),
            torch.randn_like(x), torch.normal(x, 1.0), torch.poisson(x.exp()),
            torch.empty(2).exponential_(),
        )  # fmt: skip

    return Prepared(run)


@program
def random_states_put_back() -> Prepared:
    def run() -> Any:
        state = torch.get_rng_state()
        first = torch.rand(2)
        torch.set_rng_state(state)
        with torch.random.fork_rng():
            torch.manual_seed(5)
            inside = torch.rand(2)
        return first, inside, torch.rand(2)

    return Prepared(run)


@program
def dropouts() -> Prepared:
    model = nn.Sequential(nn.Dropout(0.5), nn.AlphaDropout(0.2), nn.Dropout1d(0.3))
    x = torch.randn(2, 3, 4, requires_grad=True)

    def run() -> Any:
        out = model(x) + F.rrelu(x, training=True) + F.gumbel_softmax(x.detach())
        out.sum().backward()
        return out, x.grad

    return Prepared(run, model)


@program
def random_distributions() -> Prepared:
    mean = torch.zeros(3, requires_grad=True)
    # Said here: the first `torch.compile` of a process switches the checks off for all.
    checks = {"validate_args": True}

    def run() -> Any:
        normal = distributions.Normal(mean, torch.ones(3), **checks)
        sample = normal.rsample((2,))
        loss = normal.log_prob(sample.detach()).sum() + sample.sum()
        loss.backward()
        picked = distributions.Categorical(logits=torch.zeros(4), **checks).sample((3,))
        gamma = distributions.Gamma(torch.ones(2), torch.ones(2), **checks).sample()
        return sample, loss, mean.grad, picked, gamma

    return Prepared(run)


@program
def sparse_tensors() -> Prepared:
    places = torch.tensor([[0, 1, 1], [1, 0, 1]])
    dense = torch.randn(2, 2, requires_grad=True)

    def run() -> Any:
        x = torch.sparse_coo_tensor(places, torch.ones(3), (2, 2), check_invariants=False)
        out = torch.sparse.mm(x, dense)
        out.sum().backward()
        return out, dense.grad, x.coalesce().values() * 2, x.to_dense(), (x * 2).to_dense()

    return Prepared(run)


@program
def sparse_rows() -> Prepared:
    def run() -> Any:
        x = torch.eye(3).to_sparse_csr()
        return x @ torch.ones(3, 2), x.values() + 1, x.to_dense()

    return Prepared(run)


@program
def nested_tensors() -> Prepared:
    parts = [torch.randn(2, 3), torch.randn(4, 3)]

    def run() -> Any:
        x = torch.nested.as_nested_tensor(parts)
        return (x * 2).to_padded_tensor(0.0), *x.unbind()

    return Prepared(run)


@program
def jagged_tensors() -> Prepared:
    parts = [torch.randn(2, 3), torch.randn(4, 3)]

    def run() -> Any:
        x = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
        return (x * 2).values(), x.sum(-1).values()

    return Prepared(run)


@program
def meta_tensors() -> Prepared:
    def run() -> Any:
        x = torch.empty(3, 4, device="meta")
        return str((x @ x.t()).relu().shape)

    return Prepared(run)

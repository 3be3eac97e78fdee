"""Tensors of a module that begin where a device reads them fast: gaps in its values."""

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch modules need torch")

from torch import nn  # noqa: E402

from dask_ma import MPCAClassifier  # noqa: E402
from dask_ma.mpca import Torch  # noqa: E402
from dask_ma.mpca.networks._anchors import ProximalTerm  # noqa: E402
from dask_ma.mpca.torch import _solver  # noqa: E402
from dask_ma.mpca.torch._placement import Placement  # noqa: E402
from dask_ma.mpca.torch._spec import TorchSpec  # noqa: E402
from dask_ma.mpca.torch._values import Values  # noqa: E402

CPU = torch.device("cpu")
SIZES = [3, 4, 0, 8, 1, 1, 4, 9]


class Odd(nn.Module):
    """Convolutions and normalisations of odd sizes, a layer that is not trained."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 3, kernel_size=3)
        self.norm = nn.BatchNorm2d(3)
        self.frozen = nn.Conv2d(3, 5, kernel_size=1).requires_grad_(False)
        self.second = nn.Conv2d(5, 3, kernel_size=2)
        self.last_norm = nn.BatchNorm2d(3)
        self.last = nn.Linear(3, 3)

    def forward(self, X):
        X = torch.relu(self.norm(self.first(X.view(-1, 1, 6, 6))))
        X = torch.relu(self.last_norm(self.second(self.frozen(X))))
        return self.last(X.mean(dim=(2, 3)))


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 36)).astype(np.float32)
    return X, (X[:, :18].sum(axis=1) > 0).astype(int) + (X[:, 18:].sum(axis=1) > 0)


# Where values lie ---------------------------------------------------------------------


def places(sizes, alignment):
    """Slow reference: where each value of the vector lies."""
    found, end = [], 0
    for size in sizes:
        while end % alignment:
            end += 1
        found += range(end, end + size)
        end += size
    return found, end


@pytest.mark.parametrize("alignment", [1, 2, 4, 32])
def test_each_part_begins_at_a_round_place(alignment):
    placement = Placement(SIZES, alignment)
    expected, length = places(SIZES, alignment)
    assert (placement.n_values, placement.length) == (sum(SIZES), length)
    assert all(start % alignment == 0 for start in placement.starts)
    for start in range(sum(SIZES) + 1):
        for stop in range(start, sum(SIZES) + 1):
            runs = placement.between(start, stop)
            ours = [i for run in runs for i in range(*run.tensor.indices(length))]
            vector = [i for run in runs for i in range(*run.vector.indices(length))]
            assert ours == expected[start:stop]
            assert vector == list(range(stop - start))
            around = range(*placement.around(start, stop).indices(length))
            assert list(around) == (list(range(ours[0], ours[-1] + 1)) if ours else [])


def test_parts_without_gaps_are_one_run():
    assert len(Placement(SIZES, 1).between(0, 30)) == 1
    assert len(Placement([4, 8, 3, 4], 4).between(0, 19)) == 2


# Values -------------------------------------------------------------------------------


def test_values_without_gaps_are_memory_of_the_module():
    values = Values(Odd(), CPU)
    assert values.flat.shape == (values.n_values,)
    assert np.shares_memory(values.to_numpy(values.flat, 3, 9), values.flat.numpy())


@pytest.mark.parametrize("alignment", [4, 32])
def test_values_with_gaps_come_and_go_through_other_memory(alignment):
    module = Odd()
    expected = Values(module, CPU).read(0, 10**6)
    values = Values(module, CPU, alignment)
    assert len(values.flat) > values.n_values == len(expected)
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            assert tensor.data_ptr() % 16 == values.flat.data_ptr() % 16
    np.testing.assert_array_equal(values.read(0, values.n_values), expected)
    part = values.read(20, 60)
    before = part.copy()
    values.write(25, np.arange(30))
    expected[25:55] = np.arange(30)
    np.testing.assert_array_equal(values.read(0, values.n_values), expected)
    assert values.read(5, 5).shape == (0,)
    np.testing.assert_array_equal(part, before)
    # Gaps stay empty: norms and distances of the whole tensor are those of the vector.
    assert np.linalg.norm(values.flat) == pytest.approx(np.linalg.norm(expected))


def network_of(alignment, monkeypatch, **params):
    with monkeypatch.context() as patched:
        patched.setattr(_solver, "Values", partial(Values, alignment=alignment))
        spec = TorchSpec(Odd, device="cpu", learning_rate_init=0.01, **params)
        random_state = np.random.RandomState(3)
        return spec.build(36, 3, np.dtype(np.float32), random_state)


@pytest.mark.parametrize("form", ["shift", "loss"])
def test_steps_do_not_know_of_gaps(images, monkeypatch, form):
    """Steps, proximal terms, clipped gradients: the same with gaps and without."""
    X, y = images
    plain, gaps = (
        network_of(alignment, monkeypatch, clip_grad_norm=0.5, clip_grad_value=0.2)
        for alignment in (1, 4)
    )
    sizes = (plain.n_values, plain.n_parameters)
    assert (gaps.n_values, gaps.n_parameters) == sizes
    assert len(gaps._values.flat) > plain.n_values
    joint = np.random.default_rng(1).standard_normal(plain.n_values).astype(np.float32)
    terms = [ProximalTerm(0, 31, 0.3), ProximalTerm(31, plain.n_values, 0.05)]
    for network in (plain, gaps):
        network.set_anchor(10, joint[10:70])
        network.set_anchor(90, joint[90:])
    same = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    for rows in np.arange(90).reshape(3, 30):
        for network in (plain, gaps):
            network.step(
                X[rows], y[rows], None,
                learning_rate=0.01, proximal_terms=terms, form=form,
            )  # fmt: skip
        same(gaps.read(0, sizes[0]), plain.read(0, sizes[0]))
    found = [network.gradient(X, y, None)[1].copy() for network in (plain, gaps)]
    assert found[0].shape == (sizes[1],)
    same(found[1], found[0])
    for network in (plain, gaps):
        network.descend(found[0] + 1, 0.01)
    same(gaps.read(0, sizes[0]), plain.read(0, sizes[0]))
    assert abs(np.delete(gaps._values.flat.numpy(), taken(gaps))).max() == 0


def test_a_gradient_may_come_back_in_its_own_memory(images):
    """A rank that is alone gets from a sum over the ranks what it has put in."""
    X, y = images
    networks = [
        TorchSpec(Odd, device="cpu", optimizer="SGD", learning_rate_init=0.1).build(
            36, 3, np.dtype(np.float32), np.random.RandomState(3)
        )
        for _ in range(3)
    ]
    before = networks[0].read(0, networks[0].n_values)
    own = networks[0].gradient_part(X, y, None, 1).gradient
    copied = networks[1].gradient_part(X, y, None, 1).gradient.copy()
    networks[0].descend(own, 0.1)
    networks[1].descend(copied, 0.1)
    networks[2].descend(copied, 0.1)  # a rank without rows
    first, second, third = (each.read(0, each.n_parameters) for each in networks)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(third, second)
    assert abs(first - before[: len(first)]).max() > 1e-3


def test_parameters_without_a_part_in_the_loss_have_a_gradient_of_zeros(images):
    """Their weights decay, as in steps that all ranks make together."""

    class Spare(Odd):
        def __init__(self):
            super().__init__()
            self.spare = nn.Linear(3, 3)

    params = {"optimizer": "SGD", "optimizer_params": {"weight_decay": 0.5}}
    spec = TorchSpec(Spare, device="cpu", learning_rate_init=0.1, **params)
    network = spec.build(36, 3, np.dtype(np.float32), np.random.RandomState(3))
    before = network._module.spare.weight.detach().clone()
    network.step(*images, None, learning_rate=0.1)
    decayed = network._module.spare.weight.detach()
    np.testing.assert_allclose(decayed, 0.95 * before, rtol=1e-6)


@pytest.mark.parametrize("optimizer", ["auto", "SGD", "Adam"])
def test_gradients_of_an_embedding_may_be_sparse(optimizer):
    class Words(nn.Module):
        def __init__(self, sparse):
            super().__init__()
            self.embedding = nn.EmbeddingBag(20, 4, sparse=sparse)
            self.last = nn.Linear(4, 3)

        def forward(self, X):
            return self.last(self.embedding(X))

    rng = np.random.default_rng(0)
    X, y = rng.integers(20, size=(40, 5)), rng.integers(3, size=40)
    found = []
    for sparse in (False, True):
        network = Torch(
            Words, module_params={"sparse": sparse}, device="cpu", optimizer=optimizer
        )
        params = {"max_iter": 3, "tol": None, "random_state": 0, "n_ranks": 1}
        found.append(MPCAClassifier(module=network, **params).fit(X, y).vector_)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6, atol=1e-7)


def taken(network):
    """Places of a network's values."""
    runs = network._values._placement.between(0, network.n_values)
    return np.concatenate(
        [np.arange(run.tensor.start, run.tensor.stop) for run in runs]
    )


# On a GPU -----------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
@pytest.mark.parametrize("strategy", ["mpca", "synchronous", "parameter_server"])
def test_convolutions_train_on_a_gpu(images, strategy, precision):
    if (strategy, precision) == ("parameter_server", "fp16"):
        pytest.skip("steps are made where the model lies, which takes no fp16")
    network = Torch(Odd, device="cuda:0", precision=precision)
    model = MPCAClassifier(
        module=network, strategy=strategy, n_ranks=2, batch_size=16, max_iter=20,
        learning_rate_init=0.02, tol=None, random_state=0,
    ).fit(*images)  # fmt: skip
    assert model.loss_curve_[-1] < 0.9 * model.loss_curve_[0]
    assert np.isfinite(model.predict_proba(images[0])).all()

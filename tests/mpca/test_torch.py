"""Torch modules as networks: the vector, steps, proximal terms, criteria, results."""

import copy
import pickle
import re
import sys
import threading
from functools import partial

import cloudpickle
import numpy as np
import pytest
from scipy import sparse

torch = pytest.importorskip("torch", reason="torch modules need torch")

from torch import nn  # noqa: E402

from dask_ma import MPCAClassifier  # noqa: E402
from dask_ma.mpca import Torch  # noqa: E402
from dask_ma.mpca.networks._anchors import ProximalTerm  # noqa: E402
from dask_ma.mpca.torch._module import make_module, pack_module  # noqa: E402
from dask_ma.mpca.torch._spec import TorchSpec  # noqa: E402

RATE = 0.01
N_ROWS, N_FEATURES, N_CLASSES = 40, 6, 3


class Perceptron(nn.Module):
    """Two layers, for any number of outputs."""

    def __init__(self, n_hidden=5, n_outputs=N_CLASSES, n_features=N_FEATURES):
        super().__init__()
        self.first = nn.Linear(n_features, n_hidden)
        self.second = nn.Linear(n_hidden, n_outputs)

    def forward(self, X):
        return self.second(torch.tanh(self.first(X)))


class Normalised(Perceptron):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(5)

    def forward(self, X):
        return self.second(torch.relu(self.norm(self.first(X))))


class Shared(nn.Module):
    """One weight in two layers, and one layer that is not trained."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(N_FEATURES, 4).requires_grad_(False)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.last = nn.Linear(4, N_CLASSES)

    def forward(self, X):
        return self.last(
            torch.tanh(self.second(torch.tanh(self.first(self.frozen(X)))))
        )


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(2, 3, kernel_size=2)
        self.last = nn.Linear(3 * 2 * 3, N_CLASSES)

    def forward(self, X):
        assert X.shape[1:] == (2, 3, 4)
        return self.last(self.convolution(X).flatten(1))


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, N_FEATURES)).astype(np.float32)
    return X, rng.integers(N_CLASSES, size=N_ROWS)


def spec_of(module=Perceptron, **params):
    params = {"device": "cpu", "learning_rate_init": RATE, **params}
    return TorchSpec(module, **params)


def build(spec, n_features=N_FEATURES, n_classes=N_CLASSES, seed=3, **options):
    random_state = np.random.RandomState(seed)
    return spec.build(
        n_features, n_classes, np.dtype(np.float32), random_state, **options
    )


def plain(module, seed=3):
    """The module of a plain loop in torch, after the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(np.random.RandomState(seed).randint(2**31 - 1))
        return module()


def vector_of(network):
    return network.read(0, network.n_values)


def plain_vector(module):
    parts = [parameter.detach().numpy().ravel() for parameter in module.parameters()]
    return np.concatenate(parts)


def batches(X, y, size=8):
    return [(X[i : i + size], y[i : i + size]) for i in range(0, len(X), size)]


def plain_step(module, optimizer, criterion, X, y):
    module.train()
    optimizer.zero_grad()
    loss = criterion(module(torch.tensor(X)), torch.tensor(y))
    loss.backward()
    optimizer.step()
    return loss.item()


# Steps

# What "auto" stands for: the steps of Adam to the last few bits.
FUSED = partial(torch.optim.Adam, fused=True)


def test_the_optimiser_by_default_makes_the_steps_of_adam(problem):
    one, other = (build(spec_of(optimizer=name)) for name in ("auto", "Adam"))
    for X, y in batches(*problem):
        for network in (one, other):
            network.step(X, y, None, learning_rate=RATE)
    np.testing.assert_allclose(vector_of(one), vector_of(other), rtol=1e-4, atol=1e-6)
    kept = build(spec_of(optimizer_params={"foreach": True}))
    groups = [n._optimizer.optimizer.param_groups[0] for n in (one, other, kept)]
    assert [group["fused"] for group in groups] == [True, None, None]


@pytest.mark.parametrize(
    ("optimizer", "params", "kind"),
    [
        ("auto", {}, FUSED),
        ("SGD", {"momentum": 0.9, "nesterov": True}, torch.optim.SGD),
        (torch.optim.AdamW, {"lr": 0.3, "weight_decay": 0.1}, torch.optim.AdamW),
    ],
)
def test_steps_are_those_of_a_plain_loop(problem, optimizer, params, kind):
    network = build(spec_of(optimizer=optimizer, optimizer_params=params))
    module = plain(Perceptron)
    np.testing.assert_array_equal(vector_of(network), plain_vector(module))
    theirs = kind(module.parameters(), **{"lr": RATE, **params})
    for X, y in batches(*problem):
        loss = network.step(X, y, None, learning_rate=RATE)
        assert loss == plain_step(module, theirs, nn.CrossEntropyLoss(), X, y)
        np.testing.assert_array_equal(vector_of(network), plain_vector(module))


@pytest.mark.parametrize("given", [{}, {"lr": 0.5}])
def test_learning_rate_sets_the_size_of_each_step(problem, given):
    network = build(spec_of(optimizer="SGD", optimizer_params=given))
    for rate in (RATE, RATE / 4):
        _, gradient = network.gradient(*problem, None)
        before, gradient = vector_of(network), gradient.copy()
        network.step(*problem, None, learning_rate=rate)
        size = given.get("lr", RATE) * rate / RATE
        expected = before - np.float32(size) * gradient
        np.testing.assert_allclose(vector_of(network), expected, rtol=1e-5, atol=1e-7)


def test_gradient_is_that_of_finite_differences(problem):
    network = build(spec_of())
    loss, gradient = network.gradient(*problem, None)
    start = vector_of(network)
    assert gradient.shape == (network.n_parameters,)
    for position in (0, 17, network.n_parameters - 1):
        losses = []
        for sign in (1, -1):
            moved = start.copy()
            moved[position] += sign * np.float32(1e-2)
            network.write(0, moved)
            losses.append(network.gradient(*problem, None)[0])
        expected = (losses[0] - losses[1]) / 2e-2
        network.write(0, start)
        again, gradient = network.gradient(*problem, None)
        assert again == loss
        assert gradient[position] == pytest.approx(expected, abs=2e-4)


def test_sparse_and_double_rows_count_like_dense_float32_ones(problem):
    X, y = problem
    ends = []
    for rows in (X, X.astype(np.float64), sparse.csr_matrix(X), sparse.csr_array(X)):
        network = build(spec_of())
        network.step(rows, y, None, learning_rate=RATE)
        ends.append((vector_of(network), network.outputs(rows)))
    for vector, outputs in ends[1:]:
        np.testing.assert_array_equal(vector, ends[0][0])
        np.testing.assert_array_equal(outputs, ends[0][1])


def test_rows_that_may_not_be_written_to_are_taken(problem):
    X, y = (part.copy() for part in problem)
    X.flags.writeable = y.flags.writeable = False
    network = build(spec_of())
    assert np.isfinite(network.step(X, y, None, learning_rate=RATE))


def test_images_reach_the_module_in_their_shape():
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((9, 24)), rng.integers(N_CLASSES, size=9)
    spec = spec_of(Convolution, input_shape=(2, 3, 4))
    network = build(spec, n_features=24)
    network.step(X, y, None, learning_rate=RATE)
    assert spec.forward(vector_of(network), X, N_CLASSES).shape == (9, N_CLASSES)
    with pytest.raises(ValueError, match=r"has 24 values, a row of X has 25"):
        build(spec, n_features=25)


def test_threads_of_torch_follow_the_argument():
    before = torch.get_num_threads()
    try:
        build(spec_of(n_threads=2))
        assert torch.get_num_threads() == 2
        build(spec_of())
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


# Proximal terms


def pulled_network(problem, **params):
    """A network after a step, a joint model and the plain gradient."""
    network = build(spec_of(optimizer="SGD", **params))
    network.step(*problem, None, learning_rate=RATE)
    joint = np.random.default_rng(2).standard_normal(network.n_values)
    return network, joint.astype(np.float32), vector_of(network)


def test_shift_moves_the_values_before_the_gradient(problem):
    network, joint, start = pulled_network(problem)
    network.set_anchor(0, joint)
    shifted = start.copy()
    shifted[4:30] -= np.float32(0.25) * (start - joint)[4:30]
    second = build(spec_of())
    second.write(0, shifted)
    loss, gradient = second.gradient(*problem, None)
    found = network.step(
        *problem, None, learning_rate=RATE, proximal_terms=[ProximalTerm(4, 30, 0.25)]
    )
    assert found == pytest.approx(loss, rel=1e-6)
    expected = shifted - np.float32(RATE) * gradient
    np.testing.assert_allclose(vector_of(network), expected, rtol=1e-5, atol=1e-7)


def test_loss_form_adds_to_the_gradient(problem):
    network, joint, start = pulled_network(problem)
    network.set_anchor(0, joint)
    loss, gradient = network.gradient(*problem, None)
    gradient = gradient.copy()
    gradient[4:30] += np.float32(0.25) * (start - joint)[4:30]
    proximal_terms = [ProximalTerm(4, 30, 0.25)]
    assert loss == network.step(
        *problem, None, learning_rate=RATE, proximal_terms=proximal_terms, form="loss"
    )
    expected = start - np.float32(RATE) * gradient
    np.testing.assert_allclose(vector_of(network), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("form", ["shift", "loss"])
def test_only_parameters_with_a_joint_model_are_pulled(problem, form):
    """Spans come in any order, touch and overlap; running means are no parameters."""
    ends = []
    for is_pulled in (False, True):
        network = build(spec_of(Normalised, optimizer="SGD"))
        n_values, n_parameters = network.n_values, network.n_parameters
        if is_pulled:
            for a, b in [(10, 20), (2, 4), (20, 22), (18, 21), (30, n_values)]:
                network.set_anchor(a, np.full(b - a, 5.0, np.float32))
        proximal_terms = [ProximalTerm(0, n_values, 0.5)] if is_pulled else []
        # Of no effect on the values: what is seen is the pull alone.
        rate = 0.0 if form == "shift" else RATE
        network.step(
            *problem, None, learning_rate=rate, proximal_terms=proximal_terms, form=form
        )
        ends.append(vector_of(network))
    moved = np.flatnonzero(ends[0][:n_parameters] != ends[1][:n_parameters])
    known = [*range(2, 4), *range(10, 22), *range(30, n_parameters)]
    assert moved.tolist() == known
    if form == "loss":  # the shift changes the batch's means, the other does not
        np.testing.assert_array_equal(ends[0][n_parameters:], ends[1][n_parameters:])


def test_joint_model_may_change(problem):
    network, joint, _ = pulled_network(problem)
    network.set_anchor(0, joint)
    network.set_anchor(3, joint[3:6] + 1)
    joint[3:6] += 1
    proximal_terms = [ProximalTerm(0, network.n_parameters, 1.0)]
    network.step(*problem, None, learning_rate=0.0, proximal_terms=proximal_terms)
    np.testing.assert_allclose(vector_of(network), joint, rtol=1e-6, atol=1e-6)


def test_unknown_form_is_refused(problem):
    with pytest.raises(ValueError, match="form must be 'shift' or 'loss', got 'pull'"):
        build(spec_of()).step(*problem, None, learning_rate=RATE, form="pull")


# The vector


def test_running_means_are_values_after_the_parameters(problem):
    network = build(spec_of(Normalised))
    module = plain(Normalised)
    assert network.n_parameters == len(plain_vector(module))
    assert network.n_values == network.n_parameters + 10
    theirs = FUSED(module.parameters(), lr=RATE)
    for X, y in batches(*problem):
        network.step(X, y, None, learning_rate=RATE)
        network.outputs(X)  # as a score on other rows would, between two steps
        plain_step(module, theirs, nn.CrossEntropyLoss(), X, y)
    means = [module.norm.running_mean.numpy(), module.norm.running_var.numpy()]
    found = network.read(network.n_parameters, network.n_values)
    np.testing.assert_array_equal(found, np.concatenate(means))
    module.eval()
    with torch.no_grad():
        expected = module(torch.tensor(problem[0])).numpy()
    np.testing.assert_array_equal(network.outputs(problem[0]), expected)
    network.write(network.n_parameters, np.full(5, 7.0, np.float32))
    assert np.abs(network.outputs(problem[0]) - expected).max() > 0.1


def test_buffers_that_forward_replaces_stay_in_the_vector(problem):
    class Counting(Perceptron):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, X):
            if self.training:
                self.seen = self.seen + 1
            return super().forward(X)

    network = build(spec_of(Counting))
    for X, y in batches(*problem)[:3]:
        network.step(X, y, None, learning_rate=RATE)
    assert network.read(network.n_parameters, network.n_values).tolist() == [3, 3]
    network.write(network.n_parameters, np.array([8, 9], np.float32))
    network.step(*problem, None, learning_rate=RATE)
    assert network.read(network.n_parameters, network.n_values).tolist() == [9, 10]


def test_shared_parameters_come_once_and_frozen_ones_last(problem):
    network = build(spec_of(Shared))
    module = plain(Shared)
    assert network.n_parameters == 16 + 4 + 4 + 4 * N_CLASSES + N_CLASSES
    assert network.n_values == network.n_parameters + 4 * N_FEATURES + 4
    theirs = FUSED([p for p in module.parameters() if p.requires_grad], lr=RATE)
    for X, y in batches(*problem):
        loss = network.step(X, y, None, learning_rate=RATE)
        assert loss == plain_step(module, theirs, nn.CrossEntropyLoss(), X, y)
    frozen = network.read(network.n_parameters, network.n_values)
    np.testing.assert_array_equal(frozen, plain_vector(module.frozen))


def test_a_module_keeps_its_values_and_is_left_alone(problem):
    module = Perceptron().double()
    given = copy.deepcopy(module.state_dict())
    network = build(spec_of(module))
    expected = plain_vector(module).astype(np.float32)
    np.testing.assert_array_equal(vector_of(network), expected)
    predictions = spec_of(module).forward(expected, problem[0], N_CLASSES)
    network.step(*problem, None, learning_rate=RATE)
    assert all(torch.equal(given[name], v) for name, v in module.state_dict().items())
    theirs = module(torch.tensor(problem[0]).double()).softmax(1).detach().numpy()
    np.testing.assert_allclose(predictions, theirs, rtol=1e-5)


def test_building_leaves_random_numbers_of_others_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, second, other = (vector_of(build(spec_of(), seed=s)) for s in (4, 4, 5))
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_a_module_may_leave_layers_out_of_training(problem):
    """By a `train` of its own, from the first step on and after predictions."""

    class Frozen(Normalised):
        def train(self, mode=True):
            super().train(mode)
            self.norm.eval()
            return self

    network = build(spec_of(Frozen))
    network.step(*problem, None, learning_rate=RATE)
    network.outputs(problem[0])
    network.step(*problem, None, learning_rate=RATE)
    assert network._module.training
    assert network._module.norm.num_batches_tracked == 0


# Criteria and weights


@pytest.mark.parametrize(
    "criterion", ["auto", "NLLLoss", nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0]))]
)
def test_unit_weights_are_no_weights(problem, criterion):
    ends = []
    for weight in (None, np.ones(N_ROWS)):
        network = build(spec_of(criterion=criterion))
        loss = network.step(*problem, weight, learning_rate=RATE)
        ends.append((loss, vector_of(network)))
    assert ends[0][0] == pytest.approx(ends[1][0], rel=1e-6)
    # Adam's first steps are of one size, whatever the rounding of the gradient.
    np.testing.assert_allclose(ends[0][1], ends[1][1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_criterion_is_left_alone(problem, reduction):
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    criterion = nn.CrossEntropyLoss(weight, reduction=reduction)
    network = build(spec_of(criterion=criterion))
    first, _ = network.gradient(*problem, None)
    weighted, _ = network.gradient(*problem, np.full(N_ROWS, 2.0))
    assert weighted == pytest.approx(first * (2 if reduction == "sum" else 1))
    assert network.gradient(*problem, None)[0] == first
    assert criterion.weight is weight and criterion.reduction == reduction


@pytest.mark.parametrize("n_classes", [N_CLASSES, None])
def test_a_weight_of_two_is_a_row_twice_and_of_zero_none(problem, n_classes):
    X, y = problem
    weight = np.arange(N_ROWS) % 3
    outputs = {"n_outputs": N_CLASSES if n_classes else 1}
    network = build(spec_of(module_params=outputs), n_classes=n_classes)
    loss, gradient = network.gradient(X, y, weight)
    gradient = gradient.copy()
    rows = np.repeat(np.arange(N_ROWS), weight)
    expected, repeated = network.gradient(X[rows], y[rows], None)
    assert loss == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(gradient, repeated, rtol=1e-4, atol=1e-6)


def test_rows_without_any_weight_change_nothing(problem):
    network = build(spec_of(optimizer="SGD"))
    start = vector_of(network)
    assert network.step(*problem, np.zeros(N_ROWS), learning_rate=RATE) == 0
    np.testing.assert_array_equal(vector_of(network), start)


def test_weights_need_a_criterion_that_can_leave_rows_apart(problem):
    def worst(output, target):
        return nn.functional.cross_entropy(output, target, reduction="none").max()

    class Pretending(nn.CrossEntropyLoss):
        def forward(self, output, target):
            return worst(output, target)

    weight = np.ones(N_ROWS)
    for criterion, reason in [(worst, "has no `reduction`"), (Pretending, "each row")]:
        network = build(spec_of(criterion=criterion))
        assert network.step(*problem, None, learning_rate=RATE) > 0
        with pytest.raises(ValueError, match=reason):
            network.step(*problem, weight, learning_rate=RATE)


def test_one_unit_tells_two_classes_apart(problem):
    X, y = problem[0], problem[1] % 2
    spec = spec_of(module_params={"n_outputs": 1}, criterion="BCEWithLogitsLoss")
    network = build(spec, n_classes=2)
    losses = [network.step(X, y, None, learning_rate=0.1) for _ in range(60)]
    assert losses[-1] < losses[0] / 2
    outputs = network.outputs(X)
    predictions = spec.forward(vector_of(network), X, 2)
    expected = 1 / (1 + np.exp(-outputs))
    np.testing.assert_allclose(predictions[:, 1], expected, rtol=1e-5)
    np.testing.assert_allclose(predictions.sum(1), 1, rtol=1e-6)
    assert (predictions.argmax(1) == y).mean() > 0.9
    with pytest.raises(ValueError, match="out of range .* and there are 3"):
        build(spec)


@pytest.mark.parametrize(
    ("criterion", "last", "expected"),
    [
        ("BCELoss", nn.Sigmoid(), lambda found: np.stack([1 - found, found], 1)),
        ("NLLLoss", nn.LogSoftmax(1), np.exp),
        ("MultiMarginLoss", nn.Identity(), None),
    ],
)
def test_predictions_are_probabilities(problem, criterion, last, expected):
    X, y = problem[0], problem[1] % 2
    n_outputs = 1 if criterion == "BCELoss" else 2
    module = nn.Sequential(nn.Linear(N_FEATURES, n_outputs), last)
    spec = spec_of(module, criterion=criterion)
    network = build(spec, n_classes=2)
    network.step(X, y, None, learning_rate=RATE)
    vector = vector_of(network)
    predictions = spec.forward(vector, X, 2)
    np.testing.assert_allclose(predictions.sum(1), 1, rtol=1e-6)
    outputs = network.outputs(X)
    second = outputs > 0 if outputs.ndim == 1 else outputs.argmax(1)
    np.testing.assert_array_equal(predictions.argmax(1), second)
    if expected is not None:
        with torch.no_grad():
            found = spec.load(vector)(torch.tensor(X)).numpy()
        np.testing.assert_allclose(predictions, expected(found.squeeze()), rtol=1e-6)


def test_regression(problem):
    X = problem[0]
    y = X[:, 0] - X[:, 1]
    spec = spec_of(module_params={"n_outputs": 1})
    network = build(spec, n_classes=None)
    losses = [network.step(X, y, None, learning_rate=0.05) for _ in range(80)]
    predictions = spec.forward(vector_of(network), X, None)
    assert predictions.shape == (N_ROWS,)
    np.testing.assert_array_equal(predictions, network.outputs(X))
    assert np.mean((predictions - y) ** 2) < losses[0] / 10


def test_predictions_of_many_rows_and_of_none(problem):
    X = np.tile(problem[0], (60, 1))
    spec = spec_of(Normalised)
    network = build(spec)
    vector = vector_of(network)
    predictions = spec.forward(vector, X, N_CLASSES)
    assert predictions.shape == (2400, N_CLASSES)
    np.testing.assert_allclose(predictions[:N_ROWS], predictions[-N_ROWS:], rtol=1e-5)
    np.testing.assert_array_equal(network.outputs(X).argmax(1), predictions.argmax(1))
    assert spec.forward(vector, X[:0], N_CLASSES).shape == (0, N_CLASSES)
    assert spec.forward(vector, X[:0], None).shape == (0,)


@pytest.mark.parametrize(
    ("n_outputs", "n_classes", "reason"),
    [
        (2, 3, r"labels out of range .* has shape \(40, 2\), not \(40, 3\)"),
        (
            5,
            3,
            "^the module has 5 outputs for each row, expected 3, one for each class",
        ),
        (2, None, r"has shape \(40, 2\), not \(40,\) or \(40, 1\)"),
        (1, 2, r"an output for each class: .* \(40, 1\).*=\"BCEWithLogitsLoss\""),
    ],
)
def test_outputs_of_a_wrong_shape_are_named(problem, n_outputs, n_classes, reason):
    spec = spec_of(module_params={"n_outputs": n_outputs})
    network = build(spec, n_classes=n_classes)
    with pytest.raises(ValueError, match=reason):
        network.step(*problem, None, learning_rate=RATE)
    with pytest.raises(ValueError, match=reason):
        spec.forward(vector_of(network), problem[0], n_classes)


def test_an_output_that_is_no_tensor_is_named(problem):
    class Pair(Perceptron):
        def forward(self, X):
            return super().forward(X), X

    with pytest.raises(ValueError, match=r"returned a tuple, .* shape \(40, 3\)"):
        build(spec_of(Pair)).step(*problem, None, learning_rate=RATE)


def test_a_loss_that_is_not_finite_is_returned(problem):
    network = build(spec_of(optimizer="SGD"))
    network.write(0, np.full(network.n_values, np.nan, np.float32))
    assert np.isnan(network.step(*problem, None, learning_rate=RATE))


# Optimisers


@pytest.mark.parametrize(
    ("optimizer", "params"),
    [
        ("Adam", {"lr": 0.05}),
        ("SGD", {"momentum": 0.9}),
        ("SGD", {}),
        ("RMSprop", {"centered": True}),
        ("Adadelta", {}),
    ],
)
def test_optimisers_of_slices_equal_that_of_the_whole(problem, optimizer, params):
    network = build(spec_of(optimizer=optimizer, optimizer_params=params))
    cuts = [0, 7, 30, network.n_parameters]
    slices = [slice(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    optimizers = [network.slice_optimizer(s.stop - s.start) for s in slices]
    values = vector_of(network)
    for rate, (X, y) in zip([RATE, RATE / 2, RATE], batches(*problem), strict=False):
        _, gradient = network.gradient(X, y, None)
        gradient = gradient.copy()
        for part, ours in zip(slices, optimizers, strict=True):
            ours.step(values[part], gradient[part], rate)
        network.step(X, y, None, learning_rate=rate)
        np.testing.assert_allclose(values, vector_of(network), rtol=1e-5, atol=1e-7)
    again = network.slice_optimizer(7)
    again.load_state_dict(pickle.loads(pickle.dumps(optimizers[0].state_dict())))
    twins = values[:7].copy(), values[:7].copy()
    for ours, second in zip((again, optimizers[0]), twins, strict=True):
        ours.step(second, gradient[:7], RATE)
    np.testing.assert_array_equal(*twins)
    with pytest.raises(ValueError, match=r"vectors of shape \(7,\), got \(1,\)"):
        again.step(values[:1], gradient[:1], RATE)


@pytest.mark.parametrize("optimizer", ["Adam", "SGD", "NAdam", "Adafactor"])
def test_optimisers_go_on_from_their_state(problem, optimizer):
    params = {"momentum": 0.9} if optimizer == "SGD" else {}
    spec = spec_of(optimizer=optimizer, optimizer_params=params)
    first, second = build(spec), build(spec, seed=9)
    parts = batches(*problem)
    for X, y in parts[:2]:
        first.step(X, y, None, learning_rate=RATE)
    state = pickle.loads(pickle.dumps(first.optimizer_state()))
    kinds = {type(value) for value in state.values()}
    assert kinds <= {np.ndarray, float, int}
    second.write(0, vector_of(first))
    second.set_optimizer_state(state)
    for X, y in parts[2:]:
        for network in (first, second):
            network.step(X, y, None, learning_rate=RATE)
    np.testing.assert_array_equal(vector_of(first), vector_of(second))


def test_numbers_that_an_optimiser_remembers_keep_their_kind(problem):
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter].setdefault("count", 0)
                self.state[parameter]["count"] += 1

    first, second = (build(spec_of(optimizer=Counting)) for _ in range(2))
    first.step(*problem, None, learning_rate=RATE)
    second.set_optimizer_state(first.optimizer_state())
    second.step(*problem, None, learning_rate=RATE)
    count = second.optimizer_state()["3.count"]
    assert count == 2 and isinstance(count, int)


def test_state_of_an_optimiser_is_a_copy(problem):
    network = build(spec_of())
    network.step(*problem, None, learning_rate=RATE)
    state = network.optimizer_state()
    assert state["0.step"] == 1.0
    kept = state["0.exp_avg"].copy()
    network.step(*problem, None, learning_rate=RATE)
    np.testing.assert_array_equal(state["0.exp_avg"], kept)


# In and out


def test_a_spec_travels(problem):
    class Local(Perceptron):
        pass

    spec = spec_of(Local, module_params={"n_hidden": 4}, criterion="NLLLoss")
    expected = vector_of(build(spec))
    for there in (
        pickle.loads(pickle.dumps(spec)),
        cloudpickle.loads(cloudpickle.dumps(spec)),
    ):
        assert there.criterion == "NLLLoss"
        np.testing.assert_array_equal(vector_of(build(there)), expected)
    made = cloudpickle.loads(pack_module(Local, {"n_hidden": 4}))
    assert make_module(made, {"n_hidden": 4}, seed=0).first.out_features == 4


@pytest.mark.parametrize("module", [Shared, Normalised, lambda: Perceptron(3)])
def test_state_dict_and_module_come_out(problem, module):
    spec = spec_of(module)
    network = build(spec)
    for X, y in batches(*problem):
        network.step(X, y, None, learning_rate=RATE)
    vector = vector_of(network)
    state = spec.state_dict(vector)
    theirs = module()
    assert list(state) == list(theirs.state_dict())
    theirs.load_state_dict(state)
    theirs.eval()
    X = torch.tensor(problem[0])
    with torch.no_grad():
        expected = theirs(X)
        assert torch.equal(spec.load(vector)(X), expected)
    predictions = spec.forward(vector, problem[0], N_CLASSES)
    np.testing.assert_array_equal(predictions, expected.softmax(1).numpy())
    with pytest.raises(ValueError, match="values, the vector has shape"):
        spec.state_dict(vector[:-1])


@pytest.mark.parametrize("module", [Shared, Normalised])
def test_safetensors_come_out(problem, module, tmp_path):
    pytest.importorskip("safetensors", reason="the format needs safetensors")
    from safetensors.torch import load_model

    spec = spec_of(module)
    network = build(spec)
    network.step(*problem, None, learning_rate=RATE)
    spec.save_safetensors(vector_of(network), tmp_path / "model.safetensors")
    theirs = module()
    load_model(theirs, tmp_path / "model.safetensors")
    for name, value in spec.state_dict(vector_of(network)).items():
        assert torch.equal(theirs.state_dict()[name], value)


def test_absent_safetensors_are_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    spec = spec_of()
    with pytest.raises(ImportError, match=r'pip install "\.\[torch\]"'):
        spec.save_safetensors(vector_of(build(spec)), tmp_path / "model.safetensors")


# Bad input


class NotPicklable(Perceptron):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("module", "params", "error", "reason"),
    [
        (NotPicklable(), {}, TypeError, "module=<NotPicklable instance> cannot be pic"),
        (nn.ReLU, {}, ValueError, "ReLU has no parameters to train"),
        (nn.ReLU(), {}, ValueError, "ReLU has no parameters to train"),
        (lambda: Perceptron().requires_grad_(False), {}, ValueError, "requires_grad"),
        (nn.LazyLinear, {"out_features": 3}, ValueError, "lazy layers"),
        (Complex, {}, TypeError, "module Complex has complex values"),
        (int, {}, TypeError, "module=int must be a torch.nn.Module, .* got a int"),
        (3, {}, TypeError, "module=3 must be a torch.nn.Module"),
        (Perceptron(), {"n_hidden": 3}, ValueError, "module_params need a class"),
    ],
)
def test_modules_that_cannot_be_trained_are_named(module, params, error, reason):
    with pytest.raises(error, match=reason):
        pack_module(module, params)
    with pytest.raises(error, match=reason):
        spec_of(module, module_params=params).check(N_FEATURES, N_CLASSES)


@pytest.mark.parametrize(
    ("params", "error", "reason"),
    [
        ({"criterion": "Loss"}, ValueError, "'Loss' is no class in torch.nn"),
        ({"criterion": 3}, TypeError, "neither a class nor callable"),
        (
            {"criterion": nn.CrossEntropyLoss(), "criterion_params": {"x": 1}},
            ValueError,
            "criterion_params need a class",
        ),
        ({"optimizer": "Best"}, ValueError, "'Best' is no class in torch.optim"),
        ({"optimizer": 3}, TypeError, "must be a class, or a name"),
        ({"optimizer": "LBFGS"}, ValueError, "LBFGS evaluates the loss several times"),
        ({"device": "abacus"}, ValueError, "device='abacus' is unknown to torch"),
        ({"criterion": threading.Lock()}, TypeError, "criterion=.* cannot be pickled"),
        ({"device": 1.5}, ValueError, "device=1.5 is unknown to torch"),
        pytest.param(
            {"device": "cuda"},
            ValueError,
            "device='cuda' .* cannot be used by the process .*device='auto' takes",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="it has a GPU"),
        ),
        ({"input_shape": (2, 4)}, ValueError, "has 8 values, a row of X has 6"),
    ],
)
def test_parameters_that_do_not_fit_are_named(params, error, reason):
    spec_of().check(N_FEATURES, N_CLASSES)
    with pytest.raises(error, match=reason):
        spec_of(**params).check(N_FEATURES, N_CLASSES)


def biased():
    """Groups of parameters as a script makes them."""
    first, *others = Perceptron().parameters()
    return [{"params": [first], "weight_decay": 0.1}, {"params": others}]


class OwnSGD(torch.optim.SGD):
    """Not a class of torch."""


@pytest.mark.parametrize(
    ("optimizer", "remedy"),
    [
        (
            torch.optim.SGD(Perceptron().parameters(), lr=0.1, momentum=0.9),
            "optimizer='SGD', optimizer_params={'lr': 0.1, 'momentum': 0.9})",
        ),
        (
            torch.optim.AdamW(biased()),
            "optimizer='AdamW', optimizer_params={}), with \"param_groups\": [(",
        ),
        (OwnSGD(Perceptron().parameters(), lr=0.1), "optimizer=OwnSGD"),
    ],
)
def test_of_an_optimiser_that_has_been_made_the_remedy_is_told(optimizer, remedy):
    X, y = np.zeros((8, N_FEATURES)), np.arange(8) % N_CLASSES
    model = MPCAClassifier(module=Torch(Perceptron, optimizer=optimizer), n_ranks=2)
    with pytest.raises(TypeError, match=re.escape(remedy)):
        model.fit(X, y)


def test_absent_torch_is_named(monkeypatch):
    name = "dask_ma.mpca.torch._spec"
    for module in [key for key in sys.modules if key.startswith("dask_ma.mpca.torch")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "\.\[torch\]"'):
        __import__(name)

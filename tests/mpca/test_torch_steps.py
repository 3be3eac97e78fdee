"""How a module is trained: schedules, limits to gradients, precision, parts, hooks."""

import copy
import warnings
from functools import partial

import cloudpickle
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch modules need torch")

from sklearn.base import clone  # noqa: E402
from torch import nn  # noqa: E402
from torch.optim import lr_scheduler as schedulers  # noqa: E402

from dask_ma import MPCAClassifier  # noqa: E402
from dask_ma.mpca import Torch, TrainingState  # noqa: E402
from dask_ma.mpca.networks._network import FitOutlook  # noqa: E402
from dask_ma.mpca.torch._gradients import StepOptions  # noqa: E402
from dask_ma.mpca.torch._spec import TorchSpec  # noqa: E402

RATE = 0.05
QUICK = {"tol": None, "random_state": 0, "batch_size": 16}


class Perceptron(nn.Module):
    def __init__(self, n_outputs=4):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.second = nn.Linear(5, n_outputs)

    def forward(self, X):
        return self.second(torch.tanh(self.first(X)))


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    return rng.normal(size=(24, 6)).astype(np.float32), rng.integers(4, size=24)


def build(module=Perceptron, n_epochs=4, n_steps=3, begins=True, **params):
    spec = TorchSpec(module, learning_rate_init=RATE, device="cpu", **params)
    network = spec.build(6, 4, np.dtype(np.float32), np.random.RandomState(3))
    if begins:
        network.begin(FitOutlook(0, 1, n_epochs, n_steps), [])
    return network


def twin_of(network):
    """The same module for a plain loop."""
    return copy.deepcopy(network._module)


def vector_of(network):
    return network.read(0, network.n_values)


def flat(module):
    with torch.no_grad():
        return nn.utils.parameters_to_vector(module.parameters()).numpy()


def plain_step(module, optimizer, X, y, criterion=None, clip=lambda parameters: None):
    optimizer.zero_grad()
    criterion = criterion or nn.CrossEntropyLoss()
    loss = criterion(module(torch.tensor(X)), torch.tensor(y))
    loss.backward()
    clip(module.parameters())
    optimizer.step()
    return loss.item()


# Schedules ----------------------------------------------------------------------------


def warmed_up(optimizer):
    """A scheduler of one's own."""
    parts = [
        schedulers.LinearLR(optimizer, 0.1, total_iters=3),
        schedulers.ExponentialLR(optimizer, 0.8),
    ]
    return schedulers.SequentialLR(optimizer, parts, milestones=[3])


@pytest.mark.parametrize(
    ("chosen", "params", "plain"),
    [
        ("StepLR", {"step_size": 2, "gamma": 0.3}, partial(schedulers.StepLR)),
        (schedulers.ExponentialLR, {"gamma": 0.7}, schedulers.ExponentialLR),
        (
            "OneCycleLR",
            {"max_lr": 0.5, "total_steps": "auto"},
            partial(schedulers.OneCycleLR, max_lr=0.5, total_steps=12),
        ),
        (warmed_up, {}, warmed_up),
    ],
)
def test_steps_follow_the_scheduler(problem, chosen, params, plain):
    network = build(
        optimizer="SGD",
        optimizer_params={"lr": RATE, "momentum": 0.9},
        lr_scheduler=chosen,
        lr_scheduler_params=params,
        lr_scheduler_step="batch",
    )
    module = twin_of(network)
    optimizer = torch.optim.SGD(module.parameters(), RATE, 0.9)
    known = {k: v for k, v in params.items() if v != "auto"}
    scheduler = plain(optimizer, **(known if chosen != "OneCycleLR" else {}))
    for _ in range(11):
        # What the estimator's own schedule says is of no account.
        network.step(*problem, None, learning_rate=123.0)
        plain_step(module, optimizer, *problem)
        scheduler.step()
        np.testing.assert_array_equal(vector_of(network), flat(module))


@pytest.mark.parametrize(
    ("chosen", "params"),
    [
        (schedulers.StepLR, {"step_size": 1}),
        (schedulers.ReduceLROnPlateau, {}),
        ("StepLR", {"step_size": 1}),
    ],
)
def test_a_fit_takes_a_scheduler_by_its_class(problem, chosen, params):
    """It is its estimator that tells fits apart by what objects have come to."""
    X, y = problem
    network = Torch(
        Perceptron, lr_scheduler=chosen, lr_scheduler_params=params, device="cpu"
    )
    model = MPCAClassifier(module=network, max_iter=2, tol=None, random_state=0)
    assert model.fit(X, y).n_iter_ == 2


MAKERS = {
    "step": partial(schedulers.StepLR, step_size=2, gamma=0.3),
    "one_cycle": partial(schedulers.OneCycleLR, max_lr=0.5, total_steps=12),
    "cyclic": partial(schedulers.CyclicLR, base_lr=0.01, max_lr=0.2, step_size_up=3),
    "lambda": partial(schedulers.LambdaLR, lr_lambda=lambda n: 0.5**n),
    "restarts": partial(schedulers.CosineAnnealingWarmRestarts, T_0=4),
    "sequential": warmed_up,
    "chained": lambda optimizer: schedulers.ChainedScheduler(
        [
            schedulers.ConstantLR(optimizer, 0.1, total_iters=4),
            schedulers.ExponentialLR(optimizer, 0.8),
        ]
    ),
}


def momentum_of(module):
    return torch.optim.SGD(module.parameters(), RATE, 0.9)


@pytest.mark.each
@pytest.mark.parametrize("n_before", [0, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_an_object_is_bound_to_the_optimiser_of_the_rank(problem, name, n_before):
    """Its own optimiser stays as it is, and its steps so far count."""
    own = momentum_of(Perceptron())
    given = MAKERS[name](own)
    for _ in range(n_before):
        own.step()
        given.step()
    params = {
        "optimizer": "SGD",
        "optimizer_params": {"lr": RATE, "momentum": 0.9},
        "lr_scheduler": given,
        "lr_scheduler_step": "batch",
    }
    before = copy.deepcopy(own.param_groups[0]["lr"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = build(n_epochs=3, **params)
        module = twin_of(network)
        optimizer = momentum_of(module)
        scheduler = MAKERS[name](optimizer)
        for _ in range(n_before):
            optimizer.step()
            scheduler.step()
        for _ in range(8):
            network.step(*problem, None, learning_rate=123.0)
            plain_step(module, optimizer, *problem)
            scheduler.step()
            np.testing.assert_array_equal(vector_of(network), flat(module))
    assert own.param_groups[0]["lr"] == before
    assert given.optimizer is own


def test_an_object_takes_no_values_of_its_module_along():
    module = nn.Linear(1000, 1000)
    given = schedulers.StepLR(momentum_of(module), 2)
    spec = TorchSpec(Perceptron, optimizer="SGD", lr_scheduler=given)
    assert len(cloudpickle.dumps(spec)) < 50_000
    kept = cloudpickle.loads(cloudpickle.dumps(spec)).lr_scheduler
    assert kept.state_dict() == given.state_dict()
    assert kept.optimizer.param_groups[0]["momentum"] == 0.9


def test_a_plateau_that_has_been_made_goes_on(problem):
    own = momentum_of(Perceptron())
    given = schedulers.ReduceLROnPlateau(own, patience=0)
    for loss in (1.0, 1.0):
        given.step(loss)
    network = build(
        optimizer="SGD", optimizer_params={"momentum": 0.9}, lr_scheduler=given
    )
    (group,) = network._optimizer.optimizer.param_groups
    assert group["lr"] == pytest.approx(RATE * 0.1)
    network.end_epoch(1.0)
    assert group["lr"] == pytest.approx(RATE * 0.01)
    assert own.param_groups[0]["lr"] == pytest.approx(RATE * 0.1)


def adam_step(**params):
    return schedulers.StepLR(torch.optim.Adam(Perceptron().parameters(), **params), 2)


# Made in the test: the first optimiser imports what compiles modules.
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: {"lr_scheduler": schedulers.StepLR(momentum_of(Perceptron()), 2)},
            "made for an optimiser SGD, expected one for Adam.*lambda optimizer",
        ),
        (
            lambda: {"lr_scheduler": adam_step(lr=0.1)},
            r"lr=0\.1, expected 0\.05.*optimizer_params={'lr': 0\.1}",
        ),
        (
            lambda: {"lr_scheduler": adam_step(lr=RATE, betas=(0.5, 0.9))},
            r"betas=\(0\.5, 0\.9\), expected",
        ),
        (
            lambda: {
                "lr_scheduler": adam_step(lr=RATE),
                "optimizer_params": {"param_groups": [("first.*", {})]},
            },
            "with 1 groups of parameters, expected 2",
        ),
        (
            lambda: {
                "lr_scheduler": adam_step(lr=RATE),
                "lr_scheduler_params": {"gamma": 0.5},
            },
            "lr_scheduler_params need a class, a name or a function, not a StepLR",
        ),
        (
            lambda: {
                "lr_scheduler": "ChainedScheduler",
                "lr_scheduler_params": {"schedulers": [adam_step(lr=RATE)]},
            },
            r"'schedulers'\] has a StepLR that has been made.*the whole scheduler",
        ),
    ],
    ids=["kind", "lr", "betas", "groups", "params", "parts"],
)
def test_an_object_of_another_optimiser_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        build(**make())


@pytest.mark.parametrize(
    ("chosen", "params"),
    [
        ("SequentialLR", {"milestones": [3]}),
        (schedulers.ChainedScheduler, {}),
    ],
    ids=["sequential", "chained"],
)
def test_parts_of_a_scheduler_are_made_for_the_same_optimiser(problem, chosen, params):
    parts = [
        partial(schedulers.ConstantLR, factor=0.1, total_iters=3),
        lambda optimizer: schedulers.ExponentialLR(optimizer, 0.8),
    ]
    network = build(
        optimizer="SGD",
        optimizer_params={"momentum": 0.9},
        lr_scheduler=chosen,
        lr_scheduler_params={"schedulers": parts, **params},
        lr_scheduler_step="batch",
    )
    (group,) = network._optimizer.optimizer.param_groups
    optimizer = momentum_of(Perceptron())
    made = [
        schedulers.ConstantLR(optimizer, factor=0.1, total_iters=3),
        schedulers.ExponentialLR(optimizer, 0.8),
    ]
    if chosen == "SequentialLR":
        plain = schedulers.SequentialLR(optimizer, made, **params)
    else:
        plain = schedulers.ChainedScheduler(made)
    for _ in range(8):
        network.step(*problem, None, learning_rate=RATE)
        optimizer.step()
        plain.step()
        assert group["lr"] == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)


@pytest.mark.parametrize("interval", ["epoch", "batch"])
def test_a_scheduler_with_too_few_steps_is_refused_at_once(interval):
    total = 3 if interval == "epoch" else 11
    params = {"max_lr": 0.5, "total_steps": total}
    how = {"lr_scheduler": "OneCycleLR", "lr_scheduler_step": interval}
    with pytest.raises(ValueError, match=f"total_steps={total}.*{total + 1} or more"):
        build(lr_scheduler_params=params, **how)
    build(lr_scheduler_params={**params, "total_steps": total + 1}, **how)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_fit_with_an_object(multi, n_ranks):
    """It trains as the function that makes it does, and clones."""

    def fitted(scheduler):
        network = Torch(
            start,
            optimizer="SGD",
            optimizer_params={"lr": RATE, "momentum": 0.9},
            lr_scheduler=scheduler,
            device="cpu",
        )
        model = MPCAClassifier(
            module=network, max_iter=3, strategy="synchronous", n_ranks=n_ranks, **QUICK
        )
        return clone(model).fit(*multi).vector_

    start = Perceptron()
    make = partial(schedulers.OneCycleLR, max_lr=0.5, total_steps=4)
    given = make(momentum_of(start))
    np.testing.assert_array_equal(fitted(given), fitted(make))


def test_no_scheduler_goes_beyond_its_end(problem):
    """A rank may make more steps than its part of the fit."""
    network = build(
        lr_scheduler="OneCycleLR",
        lr_scheduler_params={"max_lr": 0.5, "total_steps": "auto"},
        lr_scheduler_step="batch",
    )
    (group,) = network._optimizer.optimizer.param_groups
    rates = []
    for _ in range(15):
        network.step(*problem, None, learning_rate=RATE)
        rates.append(group["lr"])
    assert rates[-1] == rates[-2] == min(rates) < max(rates)


def test_a_plateau_follows_the_losses_of_epochs(problem):
    network = build(
        lr_scheduler="ReduceLROnPlateau", lr_scheduler_params={"patience": 1}
    )
    (group,) = network._optimizer.optimizer.param_groups
    rates = []
    for loss in (1.0, 1.0, 1.0, 0.5, 0.5, 0.5):
        network.step(*problem, None, learning_rate=RATE)
        network.end_epoch(loss)
        rates.append(group["lr"] / RATE)
    assert rates == pytest.approx([1, 1, 0.1, 0.1, 0.1, 0.01])
    with pytest.raises(ValueError, match="'batch' cannot be used with ReduceLROnPlat"):
        build(lr_scheduler="ReduceLROnPlateau", lr_scheduler_step="batch")


@pytest.mark.parametrize("interval", ["epoch", "batch"])
def test_a_fit_that_goes_on_is_at_the_same_step_size(problem, interval):
    how = {
        "lr_scheduler": "ExponentialLR",
        "lr_scheduler_params": {"gamma": 0.5},
        "lr_scheduler_step": interval,
    }
    whole, rest = build(**how), build(begins=False, **how)
    for _ in range(2):
        for _ in range(3):
            whole.step(*problem, None, learning_rate=RATE)
        whole.end_epoch(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rest.begin(FitOutlook(0, 1, 4, 3), [1.0, 1.0])
    rates = [n._optimizer.optimizer.param_groups[0]["lr"] for n in (whole, rest)]
    assert rates[0] == rates[1] == RATE * 0.5 ** (2 if interval == "epoch" else 6)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_fit_with_a_scheduler(multi, n_ranks):
    """A step size of zero from the second epoch on leaves the model as it is."""

    def stopped(n_epochs, **params):
        network = Torch(
            Perceptron, lr_scheduler="LambdaLR", device="cpu",
            lr_scheduler_params={"lr_lambda": lambda n: float(n == 0)}, **params,
        )  # fmt: skip
        model = MPCAClassifier(
            module=network, max_iter=n_epochs, strategy="synchronous",
            n_ranks=n_ranks, **QUICK,
        )  # fmt: skip
        return model.fit(*multi).vector_

    # Means of ranks go on after the last step of an epoch.
    np.testing.assert_allclose(stopped(1), stopped(3), rtol=1e-5, atol=1e-6)
    assert not np.allclose(stopped(1), stopped(3, lr_scheduler_step="batch"))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"lr_scheduler": "Steps"}, "lr_scheduler='Steps' is no class in torch.optim"),
        ({"lr_scheduler": lambda optimizer: 3}, r"has made a int, which has no step\("),
    ],
)
def test_what_is_no_scheduler_is_refused(multi, params, message):
    model = MPCAClassifier(module=Torch(Perceptron, **params), max_iter=1, **QUICK)
    with pytest.raises((TypeError, ValueError), match=message):
        model.fit(*multi)


def test_partial_fit_knows_no_end(multi):
    model = MPCAClassifier(module=Torch(Perceptron, lr_scheduler="ConstantLR"))
    with pytest.raises(ValueError, match="partial_fit does not support lr_scheduler"):
        model.partial_fit(*multi, classes=[0, 1, 2, 3])


@pytest.mark.parametrize(
    "params",
    [
        {"lr_scheduler": "ConstantLR"},
        {"optimizer_params": {"param_groups": [("*", {"lr": 1.0})]}},
        {"precision": "fp16"},
    ],
)
def test_a_server_makes_plain_steps(multi, params):
    network = Torch(Perceptron, **params)
    model = MPCAClassifier(module=network, strategy="parameter_server")
    with pytest.raises(ValueError, match="needs ranks that make steps"):
        model.fit(*multi)


def test_ranks_with_one_gradient_leave_out_no_step(multi):
    """Each would, where its own overflows in fp16; the other options are theirs."""
    network = Torch(Perceptron, precision="fp16")
    model = MPCAClassifier(module=network, strategy="gradients")
    with pytest.raises(ValueError, match="precision='fp16' .*with all ranks together"):
        model.fit(*multi)


# Groups of parameters -----------------------------------------------------------------


def test_groups_of_parameters(problem):
    groups = [("*.bias", {"lr": 0.0}), ("second.*", {"lr": 0.5})]
    network = build(
        optimizer="SGD", optimizer_params={"lr": 0.1, "param_groups": groups}
    )
    before = {k: v.clone() for k, v in network._module.state_dict().items()}
    _, gradient = network.gradient(*problem, None)
    gradient = gradient.copy()
    network.step(*problem, None, learning_rate=RATE)
    rates = {"first.weight": 0.1, "first.bias": 0, "second.weight": 0.5}
    at = 0
    for name, parameter in network._module.named_parameters():
        step = gradient[at : at + parameter.numel()].reshape(parameter.shape)
        at += parameter.numel()
        expected = before[name].numpy() - rates.get(name, 0) * step
        np.testing.assert_allclose(parameter.detach(), expected, rtol=1e-5, atol=1e-7)


def test_groups_keep_their_state_and_are_parameters(multi, problem):
    groups = [("*.bias", {"lr": 0.01})]
    params = {"optimizer": "Adam", "optimizer_params": {"param_groups": groups}}
    network, other = build(**params), build(**params)
    for _ in range(3):
        network.step(*problem, None, learning_rate=RATE)
    other.write(0, vector_of(network))
    other.set_optimizer_state(network.optimizer_state())
    for each in (network, other):
        each.step(*problem, None, learning_rate=RATE)
    np.testing.assert_array_equal(vector_of(network), vector_of(other))
    model = MPCAClassifier(module=Torch(Perceptron, **params), max_iter=2, **QUICK)
    model = clone(model)
    assert model.get_params()["module__optimizer__param_groups"] == groups
    first = model.fit(*multi).vector_
    model.set_params(module__optimizer__param_groups=[("*.bias", {"lr": 1.0})])
    assert not np.array_equal(first, model.fit(*multi).vector_)
    model.set_params(module__optimizer__param_groups=[("third.*", {"lr": 1.0})])
    with pytest.raises(ValueError, match=r"'third\.\*' in param_groups fits none of"):
        model.fit(*multi)


# Gradients ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "clip"),
    [
        ({"clip_grad_norm": 0.1}, partial(nn.utils.clip_grad_norm_, max_norm=0.1)),
        ({"clip_grad_norm": 1e3}, partial(nn.utils.clip_grad_norm_, max_norm=1e3)),
        (
            {"clip_grad_value": 0.02},
            lambda p: nn.utils.clip_grad_value_(p, 0.02),
        ),
    ],
)
def test_gradients_are_clipped_as_in_torch(problem, params, clip):
    network = build(optimizer="SGD", optimizer_params={"lr": 1.0}, **params)
    module = twin_of(network)
    optimizer = torch.optim.SGD(module.parameters(), 1.0)
    for _ in range(3):
        network.step(*problem, None, learning_rate=RATE)
        plain_step(module, optimizer, *problem, clip=clip)
        np.testing.assert_allclose(vector_of(network), flat(module), atol=1e-6)


@pytest.mark.pairs
@pytest.mark.parametrize("size", [1, 5, 7, 100])
@pytest.mark.parametrize(
    "criterion",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2, 2.0])),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.MultiMarginLoss(),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_parts_of_a_batch_add_up_to_it(problem, size, criterion, weighted):
    X, y = problem
    weight = np.linspace(0, 3, len(y)) if weighted else None
    whole = build(criterion=criterion)
    parts = build(criterion=criterion, microbatch_size=size)
    loss, gradient = whole.gradient(X, y, weight)
    ours, found = parts.gradient(X, y, weight)
    assert ours == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(found, gradient, rtol=1e-4, atol=1e-6)


def test_no_part_is_larger_than_asked(problem):
    seen = []

    class Watched(Perceptron):
        def forward(self, X):
            seen.append(len(X))
            return super().forward(X)

    build(Watched, microbatch_size=7).step(*problem, None, learning_rate=RATE)
    assert seen == [6, 6, 6, 6]


# Precision ----------------------------------------------------------------------------


def test_bf16_computes_in_16_bits_and_keeps_32(problem):
    seen = []

    class Watched(Perceptron):
        def forward(self, X):
            output = super().forward(X)
            seen.append(output.dtype)
            return output

    half, full = build(Watched, precision="bf16"), build()
    np.testing.assert_array_equal(vector_of(half), vector_of(full))
    loss, gradient = half.gradient(*problem, None)
    assert seen == [torch.bfloat16]
    expected, exact = full.gradient(*problem, None)
    assert loss == pytest.approx(expected, rel=0.02)
    assert loss != expected
    assert gradient.dtype == np.float32
    assert np.linalg.norm(gradient - exact) < 0.02 * np.linalg.norm(exact)


def test_fp16_needs_a_gpu(multi):
    model = MPCAClassifier(module=Torch(Perceptron, precision="fp16", device="cpu"))
    with pytest.raises(ValueError, match="precision='fp16' needs a GPU.*use 'bf16'"):
        model.fit(*multi)


def check_scaled_steps(problem, device):
    """Scaling changes nothing but rounding; a step that overflows is left out."""
    spec = TorchSpec(Perceptron, learning_rate_init=RATE, device=device)
    scaled = spec.build(6, 4, np.dtype(np.float32), np.random.RandomState(3))
    scaled._options = StepOptions(precision="fp16", clip_norm=0.5)
    scaled._scaler = scaled._options.make_scaler(torch.device(device))
    plain = build(clip_grad_norm=0.5)
    for _ in range(3):
        scaled.step(*problem, None, learning_rate=RATE)
        plain.step(*problem, None, learning_rate=RATE)
    np.testing.assert_allclose(vector_of(scaled), vector_of(plain), atol=0.02)
    before, scale = vector_of(scaled), scaled._scaler.get_scale()
    X, y = problem
    scaled.step(np.full_like(X, 1e30), y, None, learning_rate=RATE)
    np.testing.assert_array_equal(vector_of(scaled), before)
    assert scaled._scaler.get_scale() < scale


def test_scaled_steps_on_the_processor(problem):
    check_scaled_steps(problem, "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_scaled_steps_on_a_gpu(problem):
    check_scaled_steps(problem, "cuda")


# Compilation --------------------------------------------------------------------------


def test_a_compiled_module_makes_the_same_steps(problem):
    asked = []

    def backend(graph, inputs):
        asked.append(len(inputs))
        return graph.forward

    plain = build(compile=False)
    compiled = build(compile={"backend": backend})
    for _ in range(2):
        for network in (plain, compiled):
            network.step(*problem, None, learning_rate=RATE)
    assert asked
    np.testing.assert_allclose(vector_of(compiled), vector_of(plain), rtol=1e-5)


# Callbacks ----------------------------------------------------------------------------


class Noting:
    """Notes what it is told; has no word to say at the end of an epoch."""

    def __init__(self, path):
        self.path = path

    def note(self, kind, state):
        assert isinstance(state, TrainingState)
        assert isinstance(state.optimizer, torch.optim.Adam)
        assert isinstance(state.module, nn.Module)
        with (self.path / f"{kind}-{state.rank}-of-{state.n_ranks}").open("a") as file:
            file.write(f"{state.n_epochs} {state.n_steps} {state.loss}\n")

    def on_fit_begin(self, state):
        self.note("begin", state)

    def on_batch_end(self, state):
        self.note("batch", state)


class NotingEpochs(Noting):
    def on_epoch_end(self, state):
        self.note("epoch", state)


@pytest.mark.parametrize("strategy", ["mpca", "synchronous", "parameter_server"])
def test_callbacks_on_each_rank(multi, strategy, tmp_path):
    callbacks = [NotingEpochs(tmp_path), object()]
    network = Torch(Perceptron, device="cpu", callbacks=callbacks)
    model = MPCAClassifier(
        module=network, n_ranks=2, max_iter=3, strategy=strategy, **QUICK
    ).fit(*multi)
    losses = []
    for rank in range(2):
        lines = {
            kind: (tmp_path / f"{kind}-{rank}-of-2").read_text().split("\n")[:-1]
            for kind in ("begin", "batch", "epoch")
        }
        assert lines["begin"] == ["0 0 nan"]
        steps = [int(line.split()[1]) for line in lines["batch"]]
        assert steps == list(range(1, len(steps) + 1))
        assert [int(line.split()[0]) for line in lines["epoch"]] == [1, 2, 3]
        losses.append([float(line.split()[2]) for line in lines["epoch"]])
    assert losses[0] == losses[1] == model.loss_curve_


def test_a_callback_may_change_the_module(multi):
    class Clamp:
        def on_batch_end(self, state):
            with torch.no_grad():
                for parameter in state.module.parameters():
                    parameter.clamp_(-0.05, 0.05)

    model = MPCAClassifier(
        module=Torch(Perceptron, callbacks=[Clamp()]), max_iter=3, **QUICK
    ).fit(*multi)
    assert abs(model.vector_).max() <= np.float32(0.05)

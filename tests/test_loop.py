"""The loop: exact resumption from every step, bad steps, going back, early stopping, the average, bf16."""

import copy
import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from helpers.trainings import RecordingObserver, few_digits, small_config, two_moons

from ibinn.config import ConfigError, RunConfig, from_dict, from_toml, to_toml
from ibinn.data.splits import split
from ibinn.run.facts import Validation
from ibinn.training.data import TrainingData, build_pipeline
from ibinn.training.loop import BAD_STEPS, GO_BACKS, Loop, Position, TrainingError
from ibinn.training.options import TrainingOptions
from ibinn.training.recipes import configure, override, rate_factor


class PoisonedData(TrainingData):
    """Training data; poison(number of the batch, v) may spoil a batch, `validations` replace the validation."""

    poison = validations = None
    n_fetched = 0

    def fetch(self, rows, source):
        batch, number = super().fetch(rows, source), self.n_fetched
        self.n_fetched += 1
        return batch._replace(v=self.poison(number, batch.v)) if self.poison else batch

    def validate(self, model, *team):
        return self.validations(model) if self.validations else super().validate(model, *team)


class SavingLoop(Loop):
    """Passes its state to `save` at every checkpoint."""

    save = None

    def checkpoint(self):
        super().checkpoint()
        if self.save:
            self.save(self.state(), self.position)


def make_loop(
    dataset=None,
    save=None,
    observer=None,
    poison=None,
    poison_at=None,
    validate=None,
    precision="float32",
    **settings,
):
    """A loop as `train` makes it; poison(number, v) may spoil a batch, poison_at(position) does."""
    dataset = dataset or few_digits()
    config = dataclasses.replace(small_config(dataset, **settings), precision=precision)
    splits = split(dataset, config.seed)
    options = TrainingOptions(save_every=0.0 if save else math.inf)
    data = PoisonedData(build_pipeline(config, dataset, splits.train), config, dataset, splits, options)
    data.validations = validate
    loop = SavingLoop(data, options, observer or RecordingObserver())
    loop.save = save
    data.poison = (lambda _, v: v * math.nan if poison_at(loop.position) else v) if poison_at else poison
    return loop


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


RESUMED = {
    "ibinn": {},
    "gamma rises": {"gamma_ramp": 0.7},
    "vib": {"method": "vib"},
    "fixed means, SGD": {"method": "class-nll-fixed", "optimizer": "sgd"},
    "batch-norm, dropout": {
        "network": {"blocks": (1, 1), "widths": (8, 8), "dropouts": (0.1, 0.1), "subnet": "paper"}
    },
    "summary, Muon": {
        "optimizer": "muon",
        "network": {"blocks": (1, 1), "widths": (8, 8), "summary": (4, 6), "n_summary": 3},
    },
    "bf16": {"precision": "bf16"},
    "no patience": {"patience": 0, "ema": 0.0},
    "impatient": {"patience": 1, "learning_rate": 0.05, "epochs": 40},
    "went back": {
        "batch_size": 20,
        "poison_at": lambda position: position.epoch == 1 > position.n_go_backs,
    },
}


@pytest.mark.parametrize("case", RESUMED)
@pytest.mark.slow
def test_going_on_from_any_step_ends_with_the_same_bits(case):
    states = []

    def save(tensors, position):
        states.append(({k: v.clone() for k, v in tensors.items()}, copy.deepcopy(position)))

    settings = {"epochs": 3, "learning_rate": 0.01, "crop": 1} | RESUMED[case]
    loop = make_loop(save=save, **settings)
    final = weights(loop.run())
    assert len(states) > 10
    assert (loop.position.n_go_backs > 0) == (case == "went back")
    assert (loop.position.epoch < loop.recipe.epochs) == (case == "impatient")
    for tensors, position in states[:: 1 + len(states) // 5]:
        loop = make_loop(**settings)
        loop.load_state(
            {k: v.clone() for k, v in tensors.items()},
            from_dict(Position, json.loads(json.dumps(dataclasses.asdict(position))), "position"),
        )
        assert same(weights(loop.run()), final)
        resumed, whole = (
            [dataclasses.replace(line, seconds=0.0) for line in history]
            for history in (loop.position.history, states[-1][1].history)
        )
        assert resumed == whole


def test_the_seed_makes_the_run():
    runs = [weights(make_loop(epochs=1, seed=seed).run()) for seed in (0, 0, 1)]
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_training_leaves_the_callers_generator_alone():
    before = torch.get_rng_state()
    make_loop(epochs=1).run()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("subnet", ["light", "paper"])
def test_a_nan_batch_is_skipped_and_counted(subnet):
    def poison(number, v):
        return torch.full_like(v, math.nan) if number == 3 else v

    network = {"blocks": (1, 1), "widths": (8, 8), "dense_width": 16, "subnet": subnet}
    loop = make_loop(poison=poison, epochs=2, network=network)
    model = loop.run()
    assert loop.position.n_skipped == 1
    assert loop.position.n_go_backs == 0
    assert all(value.isfinite().all() for value in model.state_dict().values())
    assert [line.skipped for line in loop.position.history] == [1, 1]


def test_an_overflow_within_the_network_leaves_no_nan_in_its_statistics():
    def poison(number, v):
        return v * 1e30 if number == 2 else v  # finite, but its square is not

    network = {"blocks": (1, 1), "widths": (8, 8), "dense_width": 16, "subnet": "paper"}
    loop = make_loop(poison=poison, epochs=2, network=network)
    model = loop.run()
    assert loop.position.n_skipped == 1
    assert loop.position.n_go_backs == 0
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_a_hopeless_learning_rate_stops_with_one_sentence():
    loop = make_loop(epochs=3, learning_rate=1e6)
    with pytest.raises(TrainingError, match=r"recipe\.learning_rate=10000"):
        loop.run()
    assert loop.position.n_go_backs == GO_BACKS
    assert loop.position.n_skipped > 0


def test_when_bad_steps_persist_the_run_goes_back_with_half_the_rate_and_recovers():
    observer = RecordingObserver()

    def poison(number, v):  # the first epoch fails the first time it is tried
        return v * math.nan if 4 <= number < 4 + BAD_STEPS else v

    loop = make_loop(poison=poison, observer=observer, epochs=3, batch_size=10)
    loop.run()
    assert len(loop.batches) > 4 + BAD_STEPS
    assert loop.position.n_go_backs == 1
    assert loop.position.n_skipped == BAD_STEPS
    assert [line.epoch for line in loop.position.history] == [1, 2, 3]
    expected = [0.5 * loop.recipe.learning_rate * rate_factor("one-cycle", e / 3) for e in (1, 2, 3)]
    assert [line.learning_rate for line in loop.position.history] == pytest.approx(expected)
    assert any("half the learning rate" in note for note in observer.notes)


def test_going_back_restores_the_last_good_model():
    seen = {}

    def poison(number, v):
        seen[number] = weights(loop.objective.model)
        return v * math.nan if number in range(26, 26 + BAD_STEPS) else v

    loop = make_loop(poison=poison, epochs=3, batch_size=10, ema=0.0, learning_rate=0.01)
    n = len(loop.batches)
    assert n < 26 < 26 + BAD_STEPS < 2 * n  # all in the second epoch
    loop.run()
    assert loop.position.n_go_backs == 1
    back = seen[26 + BAD_STEPS]
    assert not same(back, seen[26 + BAD_STEPS - 1])  # what was learned since is given up
    assert same(back, seen[n])  # for the end of the first epoch


def test_a_validation_loss_that_is_not_finite_sends_the_run_back():
    answers = iter([1.0, None, 0.9, 0.8])

    def validate(model):
        return Validation(next(answers), 0.0, 0.0, 0.0, None)

    loop = make_loop(validate=validate, epochs=3)
    loop.run()
    assert loop.position.n_go_backs == 1
    assert [line.validation.loss for line in loop.position.history] == [1.0, 0.9, 0.8]


def test_validation_numbers_that_are_not_finite_are_none():
    loop = make_loop()
    with torch.no_grad():
        loop.average.mixture.mu.fill_(math.nan)
    validation = loop.data.validate(loop.average)
    assert validation.loss is validation.loss_x is validation.bits_per_dim is None
    assert 0 <= validation.error <= 100


def test_early_stopping_keeps_the_best_epoch():
    losses, seen = iter([3.0, 1.0, 2.0, 1.5, 0.0]), []

    def validate(model):
        seen.append(weights(model))
        return Validation(next(losses), 0.0, 0.0, 0.0, None)

    loop = make_loop(validate=validate, epochs=5, patience=2, learning_rate=0.01)
    assert same(weights(loop.run()), seen[1])
    assert loop.position.epoch == 4
    assert loop.position.best_epoch == 2


def test_without_patience_the_last_epoch_is_kept():
    losses, seen = iter([1.0, 2.0, 3.0]), []

    def validate(model):
        seen.append(weights(model))
        return Validation(next(losses), 0.0, 0.0, 0.0, None)

    loop = make_loop(validate=validate, epochs=3, patience=0, learning_rate=0.01)
    assert same(weights(loop.run()), seen[2])


def test_the_average_is_an_exponential_one():
    loop = make_loop(epochs=1, ema=0.5, batch_size=64, patience=0)
    path, expected = [], None
    original = loop.update_average

    def recorded():
        path.append(torch.cat([p.detach().flatten() for p in loop.parameters]))
        original()

    start = torch.cat([p.detach().flatten() for p in loop.average.parameters()])
    loop.update_average = recorded
    loop.run()
    expected = start
    for number, point in enumerate(path):
        decay = min(0.5, (1 + number) / (10 + number))
        expected = decay * expected + (1 - decay) * point
    average = torch.cat([p.detach().flatten() for p in loop.average.parameters()])
    torch.testing.assert_close(average, expected)


def test_the_gradient_is_clipped():
    norms = []
    loop = make_loop(epochs=1, clip=1e-3, optimizer="sgd", learning_rate=1.0, mu_rate=1.0, weight_decay=0.0)
    step = loop.optimizer.step

    def recorded():
        grads = torch.cat([p.grad.flatten() for p in loop.parameters if p.grad is not None])
        norms.append(float(grads.norm()))
        step()

    loop.optimizer.step = recorded
    loop.run()
    assert norms
    assert max(norms) <= 1.001e-3


def test_bf16_trains_and_keeps_densities_in_full_precision():
    loop = make_loop(epochs=2, precision="bf16")
    loop.run()
    plain = make_loop(epochs=2)
    plain.run()
    a, b = (run.position.history[-1].validation.loss_x for run in (loop, plain))
    assert a != b
    assert a == pytest.approx(b, abs=0.1)


def test_one_cycle_rises_then_falls_and_the_papers_steps_fall_by_ten():
    done = np.linspace(0, 1, 200)
    rates = [rate_factor("one-cycle", d) for d in done]
    peak = int(np.argmax(rates))
    assert 0.1 < done[peak] < 0.2
    assert all(np.diff(rates[: peak + 1]) >= 0)
    assert all(np.diff(rates[peak:]) <= 0)
    steps = [rate_factor("steps", epoch / 450) for epoch in (0, 149, 150, 249, 250, 349, 350, 449)]
    assert steps == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


@pytest.mark.parametrize(("epoch", "gamma"), [(0, 0.0), (1, 2.0), (2, 4.0), (3, 4.0)])
def test_gamma_rises_in_a_line(epoch, gamma):
    """Over the first half of four epochs, to 4: a step there is one with that gamma all the time."""

    def stepped(**settings):
        loop = make_loop(epochs=4, learning_rate=0.01, **settings)
        loop.position.epoch = epoch
        loop.step(next(iter(loop.batches.epoch(0))))
        return weights(loop.objective.model)

    assert same(stepped(gamma=4.0, gamma_ramp=0.5), stepped(gamma=gamma))
    assert not same(stepped(gamma=4.0, gamma_ramp=0.5), stepped(gamma=1.0))


@pytest.mark.parametrize(
    ("size", "method", "gamma", "ramp"),
    [
        ("small", "ibinn", 1.0, 0.8),
        ("tiny", "ibinn", 1.0, 0.0),
        ("paper", "ibinn", 1.0, 0.0),
        ("small", "ibinn", 0.0, 0.0),
        ("small", "ibinn", math.inf, 0.0),
        ("small", "class-nll", 1.0, 0.0),
        ("small", "vib", 1.0, 0.0),
    ],
)
def test_gamma_rises_where_that_was_found_to_help(size, method, gamma, ramp):
    common = {"method": method, "gamma": gamma, "seed": 0, "priors": "data", "precision": "float32"}
    config = configure(few_digits(), 300, size, **common)
    assert config.recipe.gamma_ramp == ramp
    assert configure(two_moons(), 300, "tiny" if size == "paper" else size, **common).recipe.gamma_ramp == 0
    assert from_toml(RunConfig, to_toml(config), "config.toml") == config
    if not ramp and (method != "ibinn" or gamma in (0.0, math.inf)):
        with pytest.raises(ConfigError, match="gamma_ramp is for the method ibinn"):
            override(config, ("recipe.gamma_ramp=0.5",))


def test_tables_are_trained_in_float64():
    loop = make_loop(dataset=two_moons(), epochs=1)
    assert loop.run().mixture.mu.dtype == torch.float64

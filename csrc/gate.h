// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The one gate of the hot path. The exchange API describes memory and nothing else: it hands out a
// negated view un-negated, a dual tensor without its tangent, a fake tensor with a null pointer.
// Here is decided what may be read as plain memory. Each check answers null, or the reason (a
// static string) for which the call is left to Python.
#pragma once

#include "tensor.h"

namespace fusedops::runtime {

/// What holds for the whole call: modes, transforms, tracing. Sets `grad_mode`.
///   "mode"       a torch dispatch mode or torch function mode is active, a default device aside
///   "functorch"  inside vmap, grad, jvp, functionalize
///   "dual"       inside a forward-mode level, where any tensor may carry a tangent
///   "tracing"    torch.jit.trace, torch.export
const char* check_state(const Torch& torch, bool* grad_mode);

/// What holds for one tensor. Fills `view`.
///   "arguments"  not a tensor at all
///   "subclass"   neither exactly torch.Tensor nor exactly torch.nn.Parameter
///   "layout"     sparse, mkldnn, quantized, nested: no strided memory to point at
///   "device"     neither a CPU nor a CUDA device
///   "neg", "conj"  the memory holds the negative, the conjugate
///   "grad"       grad mode is on and the tensor requires grad
///   "storage"    elements without memory: a zero tensor, a functional one, a freed storage
const char* check_tensor(const Torch& torch, PyObject* tensor, bool grad_mode, View* view);

/// "overlap" if a tensor to be written touches another operand, or itself. Both are judged
/// by strides: columns of one buffer that take turns count as overlapping.
const char* check_overlap(const View& out, const View& other);
const char* check_self_overlap(const View& out);

}  // namespace fusedops::runtime

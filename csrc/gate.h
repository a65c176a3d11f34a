// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The one gate of the hot path. The exchange API describes memory and nothing else: it hands out a
// negated view un-negated, a dual tensor without its tangent, a fake tensor with a null pointer.
// Here is decided what may be read as plain memory. Each check answers kNone, or the reason for
// which the call is left to Python.
#pragma once

#include <cstdint>

#include "tensor.h"

namespace fusedops::runtime {

/// Why a call is left to Python.
enum Reason : uint8_t {
  kNone = 0,   // it is not
  kMode,       // a torch dispatch mode or torch function mode is active, a default device aside
  kFunctorch,  // inside vmap, grad, jvp, functionalize
  kDual,       // inside a forward-mode level, where any tensor may carry a tangent
  kTracing,    // torch.jit.trace, torch.export
  kArguments,  // an argument that is none, or not of its kind: say not a tensor at all
  kSubclass,   // neither exactly torch.Tensor nor exactly torch.nn.Parameter
  kLayout,     // sparse, mkldnn, quantized, nested: no strided memory to point at
  kDevice,     // neither a CPU nor a CUDA device, or another than x's
  kNeg,        // the memory holds the negative
  kConj,       // the memory holds the conjugate
  kGrad,       // grad mode is on and the tensor requires grad
  kStorage,    // elements without memory: a zero tensor, a functional one, a freed storage
  kOverlap,    // a tensor to be written touches another operand, or itself
  kMiss,       // there is no plan yet
  kCapture,    // dropouts have to draw within a graph that is being captured
};

/// The Python enum `Reason`, whose members stand for the reasons, and the member of one of them.
py::object make_reason_type(const py::module_& module);
py::handle member_of(Reason reason);

/// What holds for the whole call: modes, transforms, tracing. Sets `grad_mode`.
Reason check_state(const Torch& torch, bool* grad_mode);

/// What holds for one tensor. Fills `view`.
Reason check_tensor(const Torch& torch, PyObject* tensor, bool grad_mode, View* view);

/// Judged by strides: columns of one buffer that take turns count as overlapping.
Reason check_overlap(const View& out, const View& other);
Reason check_self_overlap(const View& out);

}  // namespace fusedops::runtime

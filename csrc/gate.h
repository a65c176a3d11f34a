// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gate of the hot path, which decides whether tensors may be read as plain memory. The exchange
// API describes memory alone: a negated view without its negation, a dual tensor without its
// tangent, a fake tensor with a null pointer. Each check returns kNone, or the reason why Python
// must handle the call.
#pragma once

#include <cstdint>

#include "tensor.h"

namespace fusedops::runtime {

/// Why Python must handle a call.
enum Reason : uint8_t {
  kNone = 0,   // it need not
  kMode,       // a torch dispatch mode or torch function mode is active, a default device aside
  kFunctorch,  // inside vmap, grad, jvp, functionalize
  kDual,       // inside a forward-mode level, where any tensor may carry a tangent
  kTracing,    // torch.jit.trace, torch.export
  kArguments,  // an unknown argument, or one of another kind, such as no tensor at all
  kSubclass,   // neither exactly torch.Tensor nor exactly torch.nn.Parameter
  kLayout,     // sparse, mkldnn, quantized, nested: no strided memory
  kDevice,     // neither a CPU nor a CUDA device, or another than x's
  kNeg,        // the memory holds the negated values
  kConj,       // the memory holds the conjugate values
  kGrad,       // grad mode is on and the tensor requires grad
  kStorage,    // elements without memory: a zero tensor, a functional tensor, a freed storage
  kOverlap,    // an output overlaps another operand, or itself
  kMiss,       // there is no plan yet
  kCapture,    // random numbers must be drawn within a graph that is being captured
};

/// The Python enum `Reason`, and its member for a reason.
py::object make_reason_type(const py::module_& module);
py::handle member_of(Reason reason);

/// Checks the state of torch: modes, transforms, tracing. Sets `grad_mode`.
Reason check_state(const Torch& torch, bool* grad_mode);

/// Checks one tensor. Fills `view`.
Reason check_tensor(const Torch& torch, PyObject* tensor, bool grad_mode, View* view);

/// Whether a tensor requires a gradient.
bool requires_grad(const Torch& torch, PyObject* tensor);

/// The dtype to which autocast casts on a device's type, or null where it is off.
PyObject* autocast_dtype(const Torch& torch, int32_t device_type);

/// Decided by strides alone: interleaved columns of one buffer count as overlapping.
Reason check_overlap(const View& out, const View& other);
Reason check_self_overlap(const View& out);
/// Whether two tensors are the same elements in the same order.
bool is_same(const View& one, const View& other);

}  // namespace fusedops::runtime

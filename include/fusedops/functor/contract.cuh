// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of LOAD, STORE and functor: every member, when it is called and what is guaranteed.
// The contract of an operator, the reduction between LOAD and STORE, is op/contract.cuh.
//
// 1. Terms
//
//   A kernel reduces rows of `cols` columns. A pack is N neighbouring columns of one row: a vector
//   access. A tile is the packs of one row that one thread holds in registers at a time. Compute is
//   the type of all arithmetic, float or double. A LOAD produces the values of a row, a STORE
//   consumes its results, and a functor rewrites values on either side:
//
//     source -> functors of the LOAD -> operator -> functors of the STORE -> target
//
//   load(source, functors...) and store(functors..., target) in functor/compose.cuh make a LOAD and
//   a STORE. Functors run in the order in which they are listed, except that masks run last.
//
// 2. Guarantees of every call that takes (row, col)
//
//   row    0 <= row < rows. Its type is a template parameter: RowIndex (row/index.cuh), which holds
//          the row's number and coordinates and converts to int64_t. A member that declares
//          `int64_t row` therefore works as it is.
//   N, col N is a power of two up to 32, col % N == 0 and col + N <= cols: all N columns lie in the
//          row. The end of a row whose length N does not divide comes in smaller packs.
//   lanes  One thread makes the call for the packs of its own tile. Neighbouring lanes of a warp
//          hold neighbouring packs, but the lanes need NOT be converged: some may have no pack. So:
//          no barriers, no shuffles or other warp collectives, no shared memory.
//   order  None between packs, rows or threads. Within a pack, that of the chain.
//   repeat A member may be called again with the same arguments, in the same kernel (a row that is
//          read twice) and in the backward pass, which recomputes what the forward pass computed.
//          Unless it says otherwise below, a member is a pure function of its arguments and of the
//          struct's data members: the same bits each time, and no side effects.
//
//   The struct is copied into the arguments of a kernel, so it is trivially copyable. The data
//   members of a generated kernel's are 8-byte words: View, Value, RowMap, uint64_t or Word<T>.
//   Functions are FUSEDOPS_HD, which means __host__ __device__ to a CUDA compiler.
//
// 3. LOAD
//
//   template <int N> void load(Compute* dst, int64_t row, int64_t col) const              required
//     Writes N values to dst, which is in registers. Called once a pack in the forward pass, before
//     the reduction; packs beyond the row, or excluded by `columns` or `any`, are not loaded but
//     set to the operator's padding value.
//   template <int N> void revisit(Compute* dst, int64_t row, int64_t col) const           optional
//     The same values as load, without side effects. Called in place of load where the row is read
//     a second time and throughout the backward pass. Absent: load is called.
//   Columns columns(int64_t row) const                                                    optional
//     The range of columns that can be unmasked; it may exceed the row. Every thread of the row
//     calls it before it loads; one thread may call it for a later row. The result may depend on
//     the row and on data members alone, since it bounds loops that all lanes run together. Absent:
//     all. What lies outside need not be loaded or reduced: the operator's padding value stands for
//     it. A composed LOAD whose functors mask all that they exclude is also called for the masked
//     packs next to the range, within the row.
//   template <int N> bool any(int64_t row, int64_t col) const                             optional
//     False if all N columns are masked; the pack is then not loaded. The lane that holds the pack
//     calls it before load. Here alone col + N may exceed cols, if col < cols. Absent: true.
//   backward, prefetch, prefetch_all, source
//     Of a composed LOAD (functor/compose.cuh): a gradient, prefetching and staging in shared
//     memory need load(source, functors...). Other LOADs serve the forward pass.
//
// 4. STORE
//
//   template <int N> void store(const Compute* src, int64_t row, int64_t col)             required
//     Gets N results, in registers, unrounded. Called exactly once for each column of each row,
//     after the row's reduction, by the thread that loaded the pack. Each thread has its own copy
//     of the struct, so the member need not be const; what a copy accumulates is lost.
//
// 5. Functor: values
//
//   template <int N> void operator()(Compute (&v)[N], int64_t row, int64_t col) const     required
//     Replaces the N values v. Called for each pack that is loaded (in a LOAD) or stored (in a
//     STORE), in the forward pass, and in the backward pass to recompute what later functors saw.
//     Element i may depend on v[i], row, col + i and operands; it may not depend on other elements,
//     nor on N: a pack's width is the schedule's choice, and results may not change with it.
//   static constexpr bool kMasks                                                  default: false
//     The functor is a mask: it selects, setting v[i] to -inf or leaving it. It may not add: -inf
//     over NaN must be -inf. Masks run after all other functors of the LOAD of a softmax, so that
//     no functor sees -inf that a mask has set. A mask in a STORE, or in a norm, is refused.
//   Columns columns(int64_t row) const; template <int N> bool any(int64_t row, int64_t col) const
//     Optional, for masks, as of a LOAD; a composed LOAD intersects the ranges of its functors.
//     They only save work: operator() must mask all the same what they exclude, for packs that the
//     range cuts. Ignored if a functor of the LOAD saves a stream, which is written under masks as
//     well.
//   static constexpr bool kMovesWithQuery                                         default: false
//     Both ends of columns(row) follow from the number of the row's query alone, and neither falls as
//     it rises. So the ranges of a first and a last query say what those between them exclude, and a
//     product leaves out tiles (gemm/masked_tiles.cuh).
//   template <class Visit> void operands(Visit& visit) const                              optional
//     Calls visit(operand) once for each tensor that the functor reads or writes. A C++ dispatch
//     calls it on the host, before a launch, to learn whether every pack is one aligned access, and
//     then reads without a test: a tensor that is left out may be read misaligned. Absent: the row
//     that the functor gets carries no such promise, and accesses test alignment as they go.
//
//   Random draws: a functor that draws uses a counter-based generator (core/philox.cuh) of seed,
//   offset, row and column, so that a recomputation and any N draw the same:
//   docs/explanation/dropout.md.
//   static constexpr bool kPairs                                                  default: false
//     Element i also depends on the value at a partner column: section 9.
//   static constexpr bool kEnds                                                   default: false
//     Nothing but the target may follow, one of 8 bits.
//   static constexpr int kBlock                                               default: kNoBlock
//     The functor needs the largest of a block of columns: 16, 32, 64 or 128 neighbouring ones, of
//     which the first begins at a multiple of that, or all of a row (kWholeRow). Section 8.
//   auto drawn() const                                                                    optional
//     Of a functor with a DropoutFrom, whose seed and offset lie in memory: the same functor with a
//     Dropout. A kernel calls it once, before its rows.
//   template <int kPacks, class Row>
//   void below_each_other(Compute (&v)[kPacks][8], const Row (&rows)[kPacks], int64_t col) const
//     Optional, of a functor without operands: as operator() for each row, of fewer than 2^32. A
//     product calls it for the packs that a thread has in a column, which may share work.
//
// 6. Functor: saved streams (in a LOAD, forward and backward of one declaration)
//
//   static constexpr bool kSaves                                                  default: false
//     operator() also writes the value that it makes to a tensor, rounded to the tensor's type, and
//     leaves the rounded value in v. This is the only side effect that operator() may have. The
//     forward pass calls it exactly once for every pack of the row, masked or not; nothing else
//     does.
//   template <int N> void reread(Compute (&v)[N], int64_t row, int64_t col) const
//     Required with kSaves. Sets v to what operator() left there, read back from the tensor. Called
//     in place of operator() where the row is read a second time, by the thread that wrote the
//     pack, and in the backward pass. The value on entry is unspecified: a second visit begins with
//     the last saved stream and calls no functor before it.
//   template <int N> void prefetch(int64_t row, int64_t col) const
//   template <class By>
//   __device__ void prefetch_all(int64_t row, int64_t begin, int64_t end, By by) const
//     Optional with kSaves, and only called in the backward pass, for a row that comes later
//     (prefetch on a CPU as well): hints to the L2 cache of the tensors that reread and backward read. They may not write
//     or wait. prefetch: each lane for its own packs; the last pack may exceed the row.
//     prefetch_all: columns begin to end (begin may exceed end) by one thread (By = Alone) or by
//     all threads of the row in this block, a cache line each in turn (By = ByLine). View has both.
//     Absent: no prefetch.
//   static constexpr bool kStreamGradient                                         default: false
//     The saved tensor is an output with a gradient of its own, which backward adds to g. Gradients
//     are then not cleared at masked elements in front of this functor.
//
// 7. Functor: gradient
//
//   template <int N, class Sink>
//   void backward(Compute (&g)[N], const Compute (&in)[N], int64_t row, int64_t col,
//                 Sink& sink) const
//     Required for a gradient; absent: the functor is forward-only. On entry g is the gradient of
//     the functor's output, on exit that of its input. The thread that holds the pack calls it, for
//     packs that lie in the row. A LOAD's functor gets one call for each pack; a STORE's gets a
//     second one, with a sink that discards, where the row is read twice. Never called for kMasks:
//     the chain sets gradients of masked elements to zero, by selection. Where an element is
//     masked, g may hold anything: compute it regardless, without branches on values.
//   static constexpr bool kNeedsInput                                             default: true
//     Whether backward reads `in`, the values that operator() got. False: `in` is uninitialized.
//   sink.template add<k>(gradient, row, col)
//     Takes N gradients of operand k of the functor (Compute (&)[N]; row and col as they came). For
//     each operand that has a gradient: exactly once in each call of backward, unconditionally, in
//     any order. The gradient is elementwise, as if the operand had x's size. Sums over what the
//     operand is broadcast over, rounding and masked elements are the sink's business. Gradients
//     that nobody asked for are discarded, and the compiler removes what computed them.
//   static constexpr int kGradients                                       default: unlimited
//     Operands 0 to kGradients - 1 have gradients; a C++ dispatch that asks for another does not
//     compile.
//   static constexpr bool has_gradient(int operand)                                default: all
//     Optional: of these operands, whether this one has a gradient, where types leave some out.
//
//   An operand whose value the gradients in question do not need may be an Unread in the backward
//   pass, which fetches zeros: `reads` of the Python class says which they need.
//
// 8. Functor: blocks of columns (last in a STORE, of a forward pass alone)
//
//   A functor with a kBlock has these four members in place of operator(). A block that the end of
//   the row cuts is a block of what is there.
//
//   template <int N> uint32_t measure(const Compute (&v)[N]) const                        required
//     A number of N values of one block. Columns beyond the end of the row count as 0. The largest
//     number of a block is that of the block: an order of integers, so that no tile changes a bit.
//     The magnitude of floats has such an order: magnitude(v) of dynamic_quantize.cuh.
//   Found of_block(int64_t row, uint32_t largest) const                                   required
//     What operator() needs to know of a block, from the block's number: any type that consists of
//     words of 32 bits. Lanes hand it to one another, so that not all of them compute it.
//   template <int N>
//   void operator()(Compute (&v)[N], int64_t row, int64_t col, Found found) const         required
//     Replaces N values of one block.
//   void keep(int64_t row, int64_t block, uint32_t largest) const                         required
//     One thread calls it once for each block of each row, with the number of the block in its row.
//     It may write that to a tensor.
//
// 9. Functor: a partner column (kPairs)
//
//   Such a functor reads the value of one more element of its row, as the chain has it before the
//   functor. How that value comes about is the schedule's business: it takes it from the pack where
//   it lies in there, and evaluates the chain before the functor a second time at the partner where
//   it does not, of elements that are loaded again. So N changes no bit here either. One functor of
//   a declaration may have a partner; it stands beside no masks and saved streams, and after no tap.
//
//   int64_t partner(int64_t col) const                                                    required
//     The partner's column, within the row; partner(partner(col)) == col. For the packs that the
//     functor is called for, partner(col + i) == partner(col) + i, a multiple of N from column 0,
//     unless kNeighbours holds.
//   static constexpr bool kNeighbours                                                     required
//     The partners of packs of two columns or more lie in the pack: columns 2i and 2i + 1.
//   static constexpr int kPairWidth                                                       required
//     The widest pack for which this holds, a power of two; wider ones come in pieces.
//   static constexpr int kDistance                                                     default: 0
//     Where it is not 0, a row has 2 * kDistance columns, and partners lie so far from one another: a
//     thread that holds both takes the values from its registers.
//   template <int N>
//   void paired(Compute (&v)[N], const Compute (&partner)[N], int64_t row, int64_t col) const
//     Required in place of operator(): replaces the values v; `partner` holds the partners' values.
//   template <int N, class Sink>
//   void paired_backward(Compute (&g)[N], const Compute (&of_partner)[N], const Compute (&in)[N],
//                        const Compute (&partner)[N], int64_t row, int64_t col, Sink& sink) const
//     Required for a gradient, in place of backward: `of_partner` is the gradient of the functor's
//     output at the partners, `in` and `partner` are what `paired` got.
//
// 10. What is checked
//
//   When it is compiled, with a sentence that begins with "fusedops:": the members that section 3 to 5
//   and 6 to 9 require, and __device__ before them; trivially copyable structs; where masks, kEnds,
//   kBlock and kPairs may stand; the gradients that a C++ dispatch asks for. `check` of the Python package compares values and gradients of a functor
//   with torch, at several widths, row lengths and schedules.
//   No check has: that a member is pure, and its result does not depend on N, on other elements or on
//   other lanes; that it calls no barrier or collective; that a mask selects and does not add, and
//   masks what `columns` and `any` exclude; that sink.add is called once and unconditionally; that
//   `operands` visits every tensor; that kNeedsInput and kMovesWithQuery are true; that the member
//   `partner` is its own inverse; that memory is as large as an operand says.
//
// 11. A complete functor: v = v * (1 + gain), as norms of some models have it
//
//   #include <fusedops/row/view.cuh>
//
//   namespace example {
//
//   using namespace fusedops;
//
//   template <class Gain>
//   struct OnePlus {
//     Gain gain;                                 // operand 0: a View of a tensor, or a Value
//     static constexpr bool kNeedsInput = true;  // the gradient of gain reads `in`
//     static constexpr int kGradients = 1;
//
//     template <class Visit>
//     FUSEDOPS_HD void operands(Visit& visit) const {
//       visit(gain);
//     }
//
//     template <int N, class Compute, class Row>
//     FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
//       const auto add = gain.template fetch<N, Compute>(row, col);
//       FUSEDOPS_VECTOR
//       for (int i = 0; i < N; ++i) v[i] *= 1 + add[i];
//     }
//
//     template <int N, class Compute, class Row, class Sink>
//     FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&in)[N], const Row& row,
//                               int64_t col, Sink& sink) const {
//       const auto add = gain.template fetch<N, Compute>(row, col);
//       Compute of_gain[N];
//       FUSEDOPS_VECTOR
//       for (int i = 0; i < N; ++i) {
//         of_gain[i] = g[i] * in[i];
//         g[i] *= 1 + add[i];
//       }
//       sink.template add<0>(of_gain, row, col);
//     }
//   };
//
//   }  // namespace example
//
//   docs/how-to/functor-in-cpp.md shows the Python class that belongs to such a struct.
#pragma once

#include <fusedops/functor/traits.cuh>

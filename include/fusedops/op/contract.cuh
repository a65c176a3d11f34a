// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of an operator, the reduction between LOAD and STORE, and of its gradient: every
// member, when it is called, by which lanes, and what is guaranteed. functor/contract.cuh is the
// contract of LOAD, STORE and functor, and explains pack, tile and Compute.
//
// 1. How a row is reduced
//
//   A row is cut into chunks. Of each chunk every thread holds a tile (row/tile.cuh), in registers:
//
//     tile = LOAD                      one tile a thread
//     part = op.reduce(group, tile)    what a group of lanes knows of its tiles of one chunk
//     all  = op.merge / op.combine     of all parts of the row, of all warps and blocks
//     fin  = op.finish(all, row, cols)
//     y    = fin.of(part)(value)       for each value that reduce left in the tile
//     STORE(y)
//
//   A group is Lanes<n> (core/lanes.cuh): a warp, or the part of a warp that holds a row; on a CPU
//   one thread, Lanes<1>. Between reduce and the result the tile stays in registers, or it is read
//   back from shared memory, or loaded a second time, as it was before reduce; then op.rebuild
//   repeats what reduce did to it. That choice never changes a bit of the result.
//
//   "All lanes" below means: all 32 lanes of every warp of the block call the member, converged,
//   also lanes whose row lies beyond the last one, whose tile and result are meaningless and
//   dropped. Such a member may use the collectives of its group (sum, maximum, any), and then calls
//   them in all lanes alike: a branch around one may only depend on group.any(condition). No other
//   barriers, no shared memory, no atomics. "Each thread" calls a member for itself, converged or
//   not.
//
// 2. Data
//
//   using Compute                    float or double: the type of all arithmetic
//   struct Partial                   the accumulator of part of a row: trivially copyable, without
//                                    constructors, a multiple of 4 bytes. It moves through shared
//                                    memory and between blocks, faster with alignas(8) or (16).
//   data members                     the operator's own arguments, in this order:
//                                    - for each number of the declaration, Word<Compute>;
//                                    - for each row operand a member whose type is a template
//                                      parameter: a tensor with one number for each row, which
//                                      rows may share, or a number given at the call.
//                                      number_of<Compute>(member, row) (op/row_operand.cuh) reads
//                                      the number of a row.
//                                    An operator without arguments has one word, uint64_t unused.
//
// 3. Padding
//
//   static Compute padding_value()                                                        required
//     The value of elements that are not in the row or that an index mask excludes: 0 for sums,
//     -inf for softmaxes, whose masks set -inf as well. A reduction of padding alone is equivalent
//     to identity(). An operator to which 0 is a value like any other asks tile.group_count() how
//     many columns its group holds, and tile.fill_absent(value) sets what lies beyond the row.
//   static Partial identity()                                                             required
//     The Partial of no elements: merge(identity(), p) and merge(p, identity()) equal p, and
//     lanes that pass identity() to combine do not change the others' result. Stands for chunks
//     that an index mask excludes and for lanes without a part. finish(identity(), row, cols) is
//     the row whose elements are all masked. finish(...).of(identity()) is called for tiles of
//     padding.
//
// 4. Reduction
//
//   template <class Group, class Tile> Partial reduce(Group group, Tile& tile) const      required
//     All lanes call it, once for each chunk of each row. Each lane passes its own tile, and every
//     lane of the group returns the same Partial, to the bit. The member may rewrite the tile to
//     the values from which results are best computed: softmax leaves exp(x - maximum).
//     tile.sum(f), tile.sum_with(other, f), tile.maximum() and tile.apply(f) visit the values in a
//     fixed order, padding included. The Partial has to be a function of the values alone: which
//     lane or thread holds a value may affect nothing but the order of additions.
//   template <class Group, class Tile> Partial rebuild(Group group, Tile& tile) const     required
//     All lanes call it where the tile was read again and the Partial that reduce returned is no
//     longer stored. It leaves the tile as reduce did, to the bit, and returns a Partial that only
//     Finish::of gets. tile.group_count() is not valid here.
//   template <class Tile> void rebuild(const Partial& part, Tile& tile) const             required
//     Does the same where that Partial is stored: part is what reduce returned for this chunk, or
//     identity(). Both overloads are empty for an operator whose reduce does not rewrite the tile.
//   template <class Group> Partial combine(Group group, Partial part) const               required
//     All lanes call it, on a GPU only. Each lane of the group passes the Partial of one part of
//     the same row, or identity(); every lane returns that of all these parts, the same to the bit.
//   Partial merge(Partial a, Partial b) const                                             required
//     Returns the Partial of two parts together; a comes before b in the row. Each thread calls it
//     for itself.
//
//   reduce, combine and merge have to agree: up to rounding, the Partial of a row may not depend on
//   how it was cut into tiles, chunks and lanes, nor on the order in which parts were merged: merge
//   is associative and commutative up to rounding. The schedule fixes the order, so equal calls
//   give equal bits.
//
// 5. Result
//
//   template <class Row> Finish finish(Partial part, const Row& row, int64_t cols) const  required
//     Each thread calls it once for each row, all with the same Partial, that of the whole row. row
//     is the row's index (row/index.cuh), by which row operands are read. 1 <= cols < 2^31 on a
//     GPU.
//   struct Finish                                                                         required
//     It has these members:
//     auto of(Partial part) const
//       Each thread calls it for each tile. It returns a function object, Compute -> Compute, which
//       computes from a value of the tile the result that the STORE gets. part is what reduce or
//       rebuild returned for the tile. Padding values are passed as well; their results are
//       dropped.
//     template <class Tile> auto over(Tile& tile) const
//       Optional, a member of the function object that `of` returns. Each thread calls it where
//       nothing reads the tile but that function. It may rewrite the values, and returns the
//       function object that computes the same results from them by fewer operations.
//     using Compute; static constexpr int kKept; void keep(Compute (&kept)[kKept]) const
//       Required for a gradient. It returns the numbers of the row that the gradient needs. One
//       thread of each row calls it, where a gradient is wanted; the numbers are stored in memory.
//     one member for each statistic that a call can return
//       It is a data member, such as Compute rstd, or a member function, Compute rstd() const. One
//       thread of each row reads it, where the statistic is an output. The operator's Python class
//       maps the names of outputs to members.
//
// 6. Gradient: a second struct
//
//   The backward pass loads the row v again, and the gradient of what was stored. It goes back
//   through the STORE, which gives g, the gradient of the operator's result y. It reduces the sums
//   over the row that the derivative has, and turns (y, g) into the gradient of v, which goes back
//   through the LOAD.
//
//   Compute, data members, padding_value, identity, Partial, combine and merge are as above; their
//   Partial may be another. The tile of g is padded with 0. Further data members follow the row
//   operands: for each differentiable statistic the gradient that comes in, one number for each
//   row, or Absent where none does. Absent, and Unread, the type of a row operand that the gradient
//   does not read, have zero for number_of.
//
//   static constexpr int kKept                                                            required
//     It equals Finish::kKept of the operator.
//   struct Row; static Row row(const Compute (&kept)[kKept])                              required
//     Each thread calls it for each row. It makes a Row from the numbers that `keep` stored.
//   Compute Row::result(Compute v) const                                                  required
//     Returns the operator's result y for one value, equal to that of the forward pass up to
//     rounding. It is called for elements in the row, excluded ones with v = padding_value()
//     included.
//   template <class Group, class Tile>
//   Partial reduce(Group group, const Tile& y, const Tile& g) const                       required
//     All lanes call it, once for each chunk. y and g are 0 beyond the row. At a masked element y
//     is masked_result() and g is 0: their product has to be finite where it is added up.
//     group_count() is not valid here either.
//   template <class AnyRow> Finish finish(const Row& known, Partial all, const AnyRow& row,
//                                         int64_t cols) const                             required
//     Each thread calls it for each row. row is the row's index.
//   Compute Finish::operator()(Compute y, Compute g) const                                required
//     Returns the gradient of v for one element. At masked elements the result is dropped, by
//     selection.
//   static constexpr int kRowOperands; void Finish::row_gradients(Compute (&g)[kRowOperands]) const
//     Required of an operator with row operands: it returns the gradients of these operands that
//     this row contributes. One thread of each row calls it. Gradients of rows that share an
//     element are added up in a fixed order.
//
//   static constexpr bool kSlowResult
//     Whether Row::result takes longer than reading its result from a buffer: an exponential. A CPU
//     then keeps it between the two visits of a row; absent, it is computed for each.
//
//   static constexpr bool kHasMasked                                                      required
//     Whether elements can be masked: those of value -inf, whichever functor made it. Their
//     gradients, and those that they would add to operands of the LOAD, are zero. If true, these
//     are required:
//       static bool is_masked(Compute v)          whether the value is that of a masked element
//       static Compute masked_result()            stands in for its y: no y of another element
//       static bool is_masked_result(Compute y)   whether y is that; false for NaN
//   static constexpr bool kMaskedIsConstant                                               required
//     Whether y is a constant at masked elements, whatever the STORE does. It is for log-softmax
//     (-inf), and operands of the STORE then have no gradient there. For softmax (0) they have.
//
// 7. An operator that reduces nothing
//
//   static constexpr bool kReduces = false
//     Of both structs: results are functions of single elements (op/map.cuh). Chunks of a row then
//     do not know of one another: none of reduce, rebuild, combine and merge is called, finish gets
//     identity(), and there are no statistics and no row operands. Its gradient has kKept = 0 and
//     needs no `row`.
//
// 8. An operator without y
//
//   static constexpr bool kHasResult = false
//     Of both structs: the results of a row are numbers, and nothing of x's size is written
//     (op/cross_entropy.cuh). The STORE is empty. The tile is read once and forgotten, so rebuild is
//     not called, and Finish has no `of`; its statistics are all that there is. In place of `finish`
//     above there are two members:
//   template <class Row, class Value>
//   Begun begin(const Row& row, int64_t cols, const Value& value) const                   required
//     Each thread calls it once for each row, on a GPU before the reduction, so that what it reads is
//     there when it is needed. value(col) is the value of the LOAD at one column, 0 <= col < cols;
//     every thread may ask for any. What it returns is of any type and reaches finish.
//   template <class Row> Finish finish(Partial part, const Begun& begun, const Row& row,
//                                      int64_t cols) const                                required
//     As above.
//
//   static constexpr bool kBeside; const View& beside() const
//     If true, the reduction reads a tensor of x's size beside the LOAD, which beside() returns.
//     reduce then gets a second tile with its values, 0 beyond the row: reduce(group, tile, beside).
//
//   The gradient has no gradient of y to start from. It has a member in its place:
//   auto upstream() const                                                                 required
//     Returns what stands for it: an object with read(Compute (&g)[N], row, col), prefetch<N>(row,
//     col) and prefetch_all(row, begin, end, by), as a view has them (row/view.cuh), which computes g
//     from the data members. To the rest of the backward pass it is a tensor like any other.
//   If all that a gradient needs of a row was kept, it reduces nothing: kReduces = false with kKept
//   > 0 and `row`. finish then gets identity().
//   static constexpr bool kOneColumn; int64_t column(row); Compute at_column(row)      of upstream()
//     If true, g is zero but for at_column(row) in one column, which may lie outside of the row. The
//     gradient then has a static function straight(known, finish): a functor of (v, g) that has the
//     bits of `result`, of the masks and of Finish together (row/straight.cuh).
//
// 9. Promises that an operator makes
//
//   - Arithmetic is in Compute; the only rounding to a storage type is the STORE's.
//   - The header names formula, source and error: what is summed in what form, and which rows
//     overflow, lose digits, or give NaN. The bound that tests hold it to is
//     docs/explanation/arithmetic.md, "Arithmetic".
//   - NaN in an element of the row reaches the row's results; NaN and Inf under a mask do not.
//   - A row's bits follow from its values, the number of columns and the tile; not from other rows,
//     from the storage between reduction and result, or from timing.
//
// 10. What is checked
//
//   When it is compiled, with a sentence that begins with "fusedops:": the members that are required
//   above, and the size of Partial (op/check.cuh); a kKept that is not that of the Python class.
//   `check` of the Python package compares results, statistics and gradients with the unfused chain,
//   over row lengths, schedules and dtypes. No check has: that all lanes call the collectives of a
//   group alike, and nothing else waits; that a Partial depends on the values alone, and that merge is
//   associative and commutative up to rounding; that both overloads of `rebuild` leave the same bits.
//
// 11. A complete operator and its gradient
//
//     y = v / sqrt(sum v^2 + eps)      dv = (g - y * sum(g * y)) / sqrt(sum v^2 + eps)
//
//   (Squares of values near the largest float overflow: a published operator would scale them.)
//
//   #include <fusedops/op/contract.cuh>
//
//   namespace example {
//
//   using namespace fusedops;
//
//   template <class Compute_>
//   struct L2Normalize {
//     using Compute = Compute_;
//     Word<Compute> eps;
//
//     struct Partial {
//       Compute squares;
//     };
//     FUSEDOPS_HD static Compute padding_value() { return 0; }
//     FUSEDOPS_HD static Partial identity() { return {0}; }
//
//     template <class Group, class Tile>
//     FUSEDOPS_HD Partial reduce(Group group, Tile& tile) const {
//       return {group.sum(tile.sum([](Compute x) { return x * x; }))};
//     }
//     template <class Group, class Tile>
//     FUSEDOPS_HD Partial rebuild(Group, Tile&) const {
//       return identity();
//     }
//     template <class Tile>
//     FUSEDOPS_HD void rebuild(const Partial&, Tile&) const {}
//     template <class Group>
//     FUSEDOPS_HD Partial combine(Group group, Partial part) const {
//       return {group.sum(part.squares)};
//     }
//     FUSEDOPS_HD Partial merge(Partial a, Partial b) const { return {a.squares + b.squares}; }
//
//     struct Finish {
//       using Compute = Compute_;
//       Compute factor;
//       FUSEDOPS_HD Compute operator()(Compute x) const { return x * factor; }
//       FUSEDOPS_HD Finish of(Partial) const { return *this; }
//
//       static constexpr int kKept = 1;
//       FUSEDOPS_HD void keep(Compute (&kept)[kKept]) const { kept[0] = factor; }
//     };
//     template <class Row>
//     FUSEDOPS_HD Finish finish(Partial part, const Row&, int64_t) const {
//       return {reciprocal_sqrt(part.squares + eps)};
//     }
//   };
//
//   template <class Compute_>
//   struct L2NormalizeGradient {
//     using Compute = Compute_;
//     Word<Compute> eps;
//     static constexpr int kKept = 1;
//     static constexpr bool kHasMasked = false, kMaskedIsConstant = false;
//     FUSEDOPS_HD static Compute padding_value() { return 0; }
//
//     struct Row {
//       Compute factor;
//       FUSEDOPS_HD Compute result(Compute v) const { return v * factor; }
//     };
//     FUSEDOPS_HD static Row row(const Compute (&kept)[kKept]) { return {kept[0]}; }
//
//     struct Partial {
//       Compute along;  // the sum of g * y
//     };
//     FUSEDOPS_HD static Partial identity() { return {0}; }
//
//     template <class Group, class Tile>
//     FUSEDOPS_HD Partial reduce(Group group, const Tile& y, const Tile& g) const {
//       return {group.sum(g.sum_with(y, [](Compute of_y, Compute at) { return of_y * at; }))};
//     }
//     template <class Group>
//     FUSEDOPS_HD Partial combine(Group group, Partial part) const {
//       return {group.sum(part.along)};
//     }
//     FUSEDOPS_HD Partial merge(Partial a, Partial b) const { return {a.along + b.along}; }
//
//     struct Finish {
//       Compute factor, along;
//       FUSEDOPS_HD Compute operator()(Compute y, Compute g) const {
//         return factor * (g - y * along);
//       }
//     };
//     template <class AnyRow>
//     FUSEDOPS_HD Finish finish(const Row& known, Partial all, const AnyRow&, int64_t) const {
//       return {known.factor, all.along};
//     }
//   };
//
//   }  // namespace example
#pragma once

#include <fusedops/op/check.cuh>
#include <fusedops/op/row_operand.cuh>

// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include "geometry.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "items.h"

namespace fusedops::runtime {
namespace {

using Ints = std::vector<int64_t>;

// What is addressed: a tensor, or a number computed from the coordinates.
struct Operand {
  int rank;    // the tensor's number of dimensions; -1 for a number
  Ints steps;  // along each of x's dimensions, 0 where it is broadcast
};

// One step visits the elements of a row in order, each shared by `repeats` neighbouring columns; or
// no single step does.
struct Column {
  int64_t step;
  int64_t repeats;
  bool apart = false;
};

// Row dimensions of x that are merged into one. A step along it is one along the innermost.
struct Group {
  int64_t size;
  std::vector<int> dims;
};

Operand read_operand(const py::handle& object, int rank) {
  const Items parts(object);
  if (parts.size() == 1) {  // an index that is computed
    const Items strides(parts[0]);
    Operand number{-1, Ints(rank)};
    for (int dim = 0; dim < rank; ++dim) number.steps[dim] = strides.number(dim);
    return number;
  }
  const Items shape(parts[0]);
  const Items strides(parts[1]);
  const int lead = rank - shape.size();
  if (lead < 0 || strides.size() != shape.size()) {
    throw py::value_error("place: an operand has more dimensions than x, or other strides");
  }
  Operand tensor{shape.size(), Ints(rank, 0)};
  for (int dim = lead; dim < rank; ++dim) {
    if (shape.number(dim - lead) != 1) tensor.steps[dim] = strides.number(dim - lead);
  }
  return tensor;
}

Column column_of(const Operand& operand, const Ints& shape, const std::vector<int>& reduced) {
  if (reduced.size() == 1 && shape[reduced[0]] != 1) return {operand.steps[reduced[0]], 1};
  bool found = false;
  int64_t step = 0, reach = 0, repeats = 1;
  for (size_t i = reduced.size(); i-- > 0;) {
    const int dim = reduced[i];
    if (shape[dim] == 1) continue;
    if (!found && operand.steps[dim] == 0) {
      repeats *= shape[dim];
      continue;
    }
    if (!found) {
      step = operand.steps[dim];
    } else if (operand.steps[dim] != reach) {
      return {0, 1, true};
    }
    found = true;
    reach = operand.steps[dim] * shape[dim];
  }
  if (found) return {step, repeats};
  if (repeats > 1) return {0, 1};  // one element a row
  // One column: any step will do. A tensor that has the dimension counts as dense, like its
  // siblings with more columns, so that it shares their variant.
  const int last = reduced.back();
  if (operand.rank < 0) return {operand.steps[last], 1};
  return {operand.rank >= static_cast<int>(shape.size()) - last, 1};
}

// Merges each group with the one inside it where every operand can walk both in one stride.
std::vector<Group> merged(const std::vector<Group>& groups, const std::vector<Operand>& operands) {
  std::vector<Group> result;
  for (const Group& inner : groups) {
    const auto one_stride = [&](const Operand& operand) {
      const int64_t outer = operand.steps[result.back().dims.back()];
      return outer == operand.steps[inner.dims.back()] * inner.size;
    };
    if (result.empty() || !std::all_of(operands.begin(), operands.end(), one_stride)) {
      result.push_back(inner);
      continue;
    }
    Group& outer = result.back();
    outer.size *= inner.size;
    outer.dims.insert(outer.dims.end(), inner.dims.begin(), inner.dims.end());
  }
  return result;
}

// Moves dimensions over which large operands are broadcast innermost, so that reuse is close.
//
// Rows that share such an operand become neighbours: an attention bias shared over the batch is
// read from memory once in this order, and once per batch in the order of x's dimensions. Of two
// such dimensions the one that saves more bytes is the inner one.
std::vector<Group> ordered(const std::vector<Group>& groups, const std::vector<Operand>& operands,
                           const std::vector<Column>& along, int64_t columns,
                           const Items& element_bytes, const Items& summed) {
  std::vector<bool> is_summed(operands.size());
  for (int i = 0; i < summed.size(); ++i) is_summed.at(summed.number(i)) = true;
  Ints saved(groups.size(), 0);
  for (size_t i = 0; i < operands.size(); ++i) {
    const Ints& steps = operands[i].steps;
    const bool has_columns = !along[i].apart && along[i].step != 0;
    if (operands[i].rank < 0 || !(has_columns || is_summed[i])) continue;
    int64_t used = 1;
    size_t shared = 0;
    for (const Group& group : groups) {
      const bool steps_along = steps[group.dims.back()] != 0;
      used *= steps_along ? group.size : 1;
      shared += !steps_along;
    }
    if (shared == 0 || shared == groups.size()) continue;
    const int64_t size = used * (has_columns ? columns : 1) * element_bytes.number(i);
    if (size < kSharedBytes && !is_summed[i]) continue;
    for (size_t g = 0; g < groups.size(); ++g) {
      saved[g] += steps[groups[g].dims.back()] == 0 ? size : 0;
    }
  }
  if (std::all_of(saved.begin(), saved.end(), [](int64_t one) { return one == 0; })) return groups;
  std::vector<size_t> order(groups.size());
  for (size_t g = 0; g < order.size(); ++g) order[g] = g;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return saved[a] < saved[b]; });
  std::vector<Group> moved;
  for (const size_t g : order) moved.push_back(groups[g]);
  return merged(moved, operands);
}

}  // namespace

py::tuple place(const py::type& placed, const py::handle& shape, const py::handle& reduced,
                const py::handle& operands, const py::handle& element_bytes,
                const py::handle& summed) {
  const Items sizes_of_x(shape), reduced_dims(reduced), given(operands);
  const int rank = sizes_of_x.size(), count = given.size();
  if (reduced_dims.size() == 0) throw py::value_error("place: a row has one dimension at least");
  Ints sizes(rank);
  for (int dim = 0; dim < rank; ++dim) sizes[dim] = sizes_of_x.number(dim);
  std::vector<int> in_row;
  int64_t columns = 1;
  for (int i = 0; i < reduced_dims.size(); ++i) {
    in_row.push_back(static_cast<int>(reduced_dims.number(i)));
    columns *= sizes.at(in_row.back());
  }
  std::vector<Operand> all;
  std::vector<Column> along;
  all.reserve(count);
  along.reserve(count);
  for (int i = 0; i < count; ++i) {
    all.push_back(read_operand(given[i], rank));
    along.push_back(column_of(all.back(), sizes, in_row));
  }

  std::vector<Group> groups;
  int64_t rows = 1;
  for (int dim = 0; dim < rank; ++dim) {
    if (sizes[dim] == 1 || std::find(in_row.begin(), in_row.end(), dim) != in_row.end()) continue;
    groups.push_back({sizes[dim], {dim}});
    rows *= sizes[dim];
  }
  // With one row, or nothing to visit at all, there is nowhere to step to.
  const bool steps = rows != 1 && rows != 0 && columns != 0;
  if (steps) {
    groups = ordered(merged(groups, all), all, along, columns, Items(element_bytes), Items(summed));
    if (groups.size() > kMaxRowDims) {
      const py::object left = numbers(groups.size(), [&](size_t g) { return groups[g].size; });
      throw py::value_error(std::to_string(groups.size()) + " row dimensions " +
                            std::string(py::str(left)) + ", at most " +
                            std::to_string(kMaxRowDims) + " work");
    }
  } else {
    Group one{rows, {}};
    for (const Group& group : groups) one.dims.push_back(group.dims[0]);
    groups = {one};
  }

  auto* type = reinterpret_cast<PyTypeObject*>(placed.ptr());
  py::tuple places(count);
  for (int i = 0; i < count; ++i) {
    if (along[i].apart) {
      places[i] = py::none();
      continue;
    }
    const auto step = [&](size_t g) { return steps ? all[i].steps[groups[g].dims.back()] : 0; };
    py::object row_strides = numbers(groups.size(), step);
    PyObject* made = new_tuple(type, 3);
    PyTuple_SET_ITEM(made, 0, row_strides.release().ptr());
    PyTuple_SET_ITEM(made, 1, PyLong_FromLongLong(along[i].step));
    PyTuple_SET_ITEM(made, 2, PyLong_FromLongLong(along[i].repeats));
    PyTuple_SET_ITEM(places.ptr(), i, made);
  }
  std::vector<int> order;
  for (const Group& group : groups) order.insert(order.end(), group.dims.begin(), group.dims.end());
  return py::make_tuple(rows, columns,
                        numbers(groups.size(), [&](size_t g) { return groups[g].size; }), places,
                        numbers(order.size(), [&](size_t i) { return order[i]; }));
}

py::list shares(const py::type& sharing, const py::handle& places, const py::handle& sizes,
                int64_t columns, const py::handle& of_row, const py::handle& whole) {
  enum Kind { kApart, kChannel, kRow, kEach, kColumn };
  static PyObject* const names[] = {
      PyUnicode_InternFromString("apart"), PyUnicode_InternFromString("channel"),
      PyUnicode_InternFromString("row"), PyUnicode_InternFromString("each"),
      PyUnicode_InternFromString("column")};
  const Items placed(places), dims(sizes), in_row(of_row), of_all(whole);
  const auto said = [](const Items& flags, int i) {
    return i < flags.size() && flags[i].ptr() == Py_True;
  };
  auto* type = reinterpret_cast<PyTypeObject*>(sharing.ptr());
  py::list made(placed.size());
  for (int i = 0; i < placed.size(); ++i) {
    const Items place(placed[i]), steps(place[0]);
    int64_t group = 1, outer = 0, reach = 0;
    bool stepped = false, apart = false;
    for (int d = dims.size(); d-- > 0 && !apart;) {
      const int64_t size = dims.number(d), step = steps.number(d);
      if (!stepped && (step == 0 || size == 1)) {
        group *= size;
      } else if (size != 1) {
        apart = step == 0;
        // Groups may be nested: then no single stride leads from each to the next.
        outer = apart ? 0 : !stepped ? step : step != reach ? -1 : outer;
        stepped = true;
        reach = step * size;
      }
    }
    Kind kind = group == 1 ? kEach : kColumn;
    if (place.number(1) == 0 && columns > 1) kind = kRow;
    if (place.number(2) > 1) kind = kChannel;
    if (apart) kind = kApart;
    if (said(in_row, i) && kind != kApart) kind = kRow;
    const bool all = said(of_all, i) && kind != kApart && kind != kChannel;
    if (all && kind == kEach) kind = kColumn;
    PyObject* one = new_tuple(type, 4);
    PyTuple_SET_ITEM(one, 0, Py_NewRef(names[kind]));
    PyTuple_SET_ITEM(one, 1, PyLong_FromLongLong(group));
    PyTuple_SET_ITEM(one, 2, PyLong_FromLongLong(outer));
    PyTuple_SET_ITEM(one, 3, Py_NewRef(all ? Py_True : Py_False));
    PyList_SET_ITEM(made.ptr(), i, one);
  }
  return made;
}

py::list views(const py::type& view, const py::dict& storage, const py::handle& parts,
               const py::handle& places, int64_t width, int64_t columns) {
  static PyObject* const itemsize = PyUnicode_InternFromString("itemsize");
  const Items given(parts), placed(places);
  if (placed.size() < given.size()) throw py::value_error("views: each part must have a place");
  auto* type = reinterpret_cast<PyTypeObject*>(view.ptr());
  py::list made(given.size());
  for (int i = 0; i < given.size(); ++i) {
    const Items part(given[i]),
        place(placed[i]);  // shape, strides, dtype, patch, alignment, shared
    const py::handle dtype = part[2];
    const bool shared = part[5].ptr() == Py_True;
    int64_t own = width;
    if (width != 0 && place.number(2) > 1) {
      own = std::gcd(width, place.number(2));
    } else if (width != 0 && place.number(1) != 1) {
      own = 1;
    } else if (width != 0) {  // what pointer and strides allow, all powers of two, 16 bytes at most
      const py::object size =
          py::reinterpret_steal<py::object>(PyObject_GetAttr(dtype.ptr(), itemsize));
      if (!size) throw py::error_already_set();
      const int64_t allowed = part.number(4) / PyLong_AsLongLong(size.ptr());
      own = std::gcd(std::gcd(width, shared ? 0 : columns), std::max<int64_t>(allowed, 1));
      const Items row_strides(place[0]);
      for (int d = 0; d < row_strides.size(); ++d) own = std::gcd(own, row_strides.number(d));
    }
    const py::object name = storage[dtype];
    PyObject* one = new_tuple(type, 5);
    PyTuple_SET_ITEM(one, 0, Py_NewRef(name.ptr()));
    PyTuple_SET_ITEM(one, 1, Py_NewRef(placed[i].ptr()));
    PyTuple_SET_ITEM(one, 2, PyLong_FromLongLong(own));
    PyTuple_SET_ITEM(one, 3, Py_NewRef(part[3].ptr()));
    PyTuple_SET_ITEM(one, 4, Py_NewRef(part[5].ptr()));
    PyList_SET_ITEM(made.ptr(), i, one);
  }
  return made;
}

py::object types(const py::handle& views, const py::handle& maps) {
  const Items given(views), others(maps);
  std::string told;
  py::list strides;
  const auto append = [](const py::list& to, const Items& numbers) {
    for (int d = 0; d < numbers.size(); ++d) {
      if (PyList_Append(to.ptr(), numbers[d].ptr())) throw py::error_already_set();
    }
  };
  const auto tell = [&](int64_t number) {
    told.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  for (int i = 0; i < given.size(); ++i) {
    const Items view(given[i]);  // storage, place, width, patch, shared
    const Items place(view[1]);
    const int64_t step = place.number(1);
    if (place.number(2) != 1 || step < 0 || step > 1) return py::none();
    Py_ssize_t length = 0;
    const char* storage = PyUnicode_AsUTF8AndSize(view[0].ptr(), &length);
    if (!storage) throw py::error_already_set();
    tell(length);
    told.append(storage, static_cast<size_t>(length));
    const bool has_patch = !view[3].is_none();
    tell(step | (view[4].ptr() == Py_True) << 1 | has_patch << 2);
    tell(view.number(2));
    if (has_patch) {
      const Items patch(view[3]);
      tell(patch.number(0));
      tell(patch.number(1));
    }
    append(strides, Items(place[0]));
  }
  for (int i = 0; i < others.size(); ++i) {
    if (!others[i].is_none()) append(strides, Items(Items(others[i])[0]));
  }
  return py::make_tuple(py::bytes(told), strides);
}

}  // namespace fusedops::runtime

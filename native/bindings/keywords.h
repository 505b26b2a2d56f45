// Keyword arguments that are read one by one into a struct: only what is given is looked at, and no C++ function has an
// argument for each.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace hvd::bindings {

template <class Target>
struct Keyword {
  std::string_view name;
  std::string_view type;  // in Python, for type checkers
  void (*take)(Target& target, nanobind::handle value);
};

// The signature of a function with these keywords, for type checkers; `head` ends before the first of them.
template <class Target, size_t Size>
std::string signature_of(std::string head, const std::array<Keyword<Target>, Size>& table, const char* result) {
  for (const auto& keyword : table)
    head.append(", ").append(keyword.name).append(": ").append(keyword.type) += " = ...";
  return head + ") -> " + result;
}

// Throws TypeError for a keyword that the table lacks, or a value of another type; `function` is what messages name.
template <class Target, class Table>
void read_keywords(const char* function, const Table& table, const nanobind::kwargs& keywords, Target& target) {
  auto next = table.begin();  // callers mostly keep to the order of the table
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(keywords.ptr(), &position, &key, &value) != 0) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(key, &size);
    if (text == nullptr) throw nanobind::python_error();
    const std::string_view name(text, static_cast<size_t>(size));
    const auto matches = [&](const auto& each) { return each.name == name; };
    auto found = std::find_if(next, table.end(), matches);
    if (found == table.end()) found = std::find_if(table.begin(), table.end(), matches);
    if (found == table.end()) {
      const std::string message = std::string(function) + "() got an unexpected keyword argument '" + text + "'";
      throw nanobind::type_error(message.c_str());
    }
    next = found + 1;
    try {
      found->take(target, value);
    } catch (const std::bad_cast&) {
      const std::string message =
          std::string(function) + "(): " + text + " cannot be " + nanobind::repr(nanobind::handle(value)).c_str();
      throw nanobind::type_error(message.c_str());
    }
  }
}

}  // namespace hvd::bindings

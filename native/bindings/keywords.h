// Keyword arguments that are read one by one into a struct: only what is given is looked at, and no C++ function has an
// argument for each.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace hvd::bindings {

template <class Target>
struct Keyword {
  std::string_view name;
  void (*take)(Target& target, nanobind::handle value);
};

// Throws TypeError for a keyword that the table lacks, or a value of another type; `function` is what messages name.
template <class Target, class Table>
void read_keywords(const char* function, const Table& table, const nanobind::kwargs& keywords, Target& target) {
  for (const auto& [key, value] : keywords) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(key.ptr(), &size);
    if (text == nullptr) throw nanobind::python_error();
    const std::string_view name(text, static_cast<size_t>(size));
    const auto found = std::find_if(table.begin(), table.end(), [&](const auto& each) { return each.name == name; });
    if (found == table.end()) {
      const std::string message = std::string(function) + "() got an unexpected keyword argument '" + text + "'";
      throw nanobind::type_error(message.c_str());
    }
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

// Reads the JSON of a timeline strictly, so that tests see what a viewer would.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

// The values of a record as they stand in the text: "ph" gives "\"B\"" with its quotes.
using Record = std::map<std::string, std::string>;

class RecordParser {
 public:
  // Nothing if the text is not an array of objects, as RFC 8259 has them, with nothing but white space around.
  static std::optional<std::vector<Record>> parse(std::string_view text) {
    RecordParser parser(text);
    std::vector<Record> records;
    const bool ok = parser.list('[', ']', [&] { return parser.object(&records.emplace_back()); });
    parser.skip_space();
    if (!ok || !parser.rest_.empty()) return std::nullopt;
    return records;
  }

 private:
  explicit RecordParser(std::string_view text) : rest_(text) {}

  template <typename Element>
  bool list(char open, char close, const Element& element) {
    if (!take(open)) return false;
    if (take(close)) return true;
    do {
      if (!element()) return false;
    } while (take(','));
    return take(close);
  }

  bool object(Record* record) {
    return list('{', '}', [&] {
      skip_space();
      std::string_view before = rest_;
      if (!string()) return false;
      const std::string key(before.substr(1, before.size() - rest_.size() - 2));
      if (!take(':')) return false;
      skip_space();
      before = rest_;
      if (!value()) return false;
      return record == nullptr || record->emplace(key, before.substr(0, before.size() - rest_.size())).second;
    });
  }

  bool value() {
    skip_space();
    if (rest_.empty()) return false;
    if (rest_[0] == '{') return object(nullptr);
    if (rest_[0] == '[') return list('[', ']', [&] { return value(); });
    return rest_[0] == '"' ? string() : number();
  }

  bool string() {
    if (!take('"')) return false;
    while (!rest_.empty() && rest_[0] != '"') {
      if (static_cast<unsigned char>(rest_[0]) < 0x20) return false;
      size_t length = 1;
      if (rest_[0] == '\\') {
        const std::string_view kind = rest_.substr(1, 1);
        if (kind.empty() || std::string_view("\"\\/bfnrtu").find(kind) == std::string_view::npos) return false;
        length = kind == "u" ? 6 : 2;
        if (rest_.size() < length) return false;
        if (rest_.substr(2, length - 2).find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
          return false;
      }
      rest_.remove_prefix(length);
    }
    return take('"');
  }

  bool digits() {
    const size_t count = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
    rest_.remove_prefix(count);
    return count > 0;
  }

  bool number() {
    if (rest_[0] == '-') rest_.remove_prefix(1);
    const bool leading_zero = rest_.size() > 1 && rest_[0] == '0' && rest_[1] >= '0' && rest_[1] <= '9';
    if (leading_zero || !digits()) return false;
    if (rest_.empty() || rest_[0] != '.') return true;
    rest_.remove_prefix(1);
    return digits();
  }

  void skip_space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size())); }

  bool take(char c) {
    if (c != '"') skip_space();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  std::string_view rest_;
};

}  // namespace hvd

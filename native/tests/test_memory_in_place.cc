#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/inline_vector.h"
#include "base/recycling.h"
#include "base/shape.h"
#include "testing/check.h"

namespace hvd {
namespace {

using Texts = InlineVector<std::string, 2>;

// Too long for the string itself, so that sanitizers see each copy that is lost.
std::string text_of(int number) { return "a text that needs memory of its own, number " + std::to_string(number); }

bool same(const Texts& texts, const std::vector<std::string>& expected) {
  return texts.size() == expected.size() && texts.empty() == expected.empty() &&
         std::equal(texts.begin(), texts.end(), expected.begin(), expected.end());
}

// One random change of both.
void change(std::mt19937& random, Texts& texts, std::vector<std::string>& expected, int number) {
  switch (random() % 6) {
    case 0:
    case 1:
      texts.push_back(text_of(number));
      expected.push_back(text_of(number));
      break;
    case 2: {
      const size_t size = random() % 6;
      texts.resize(size);
      expected.resize(size);
      break;
    }
    case 3: {
      Texts moved = std::move(texts);
      texts = Texts{"something else"};
      texts = std::move(moved);
      CHECK(moved.empty());  // NOLINT(bugprone-use-after-move): as with std::vector
      CHECK_EQ(moved.emplace_back(), "");
      break;
    }
    case 4: {
      const Texts copied = texts;
      texts.clear();
      texts = copied;
      break;
    }
    default:
      if (expected.empty()) break;
      texts.pop_back();
      expected.pop_back();
      if (expected.empty()) break;
      texts.back() = expected.back() = text_of(-number);
  }
}

}  // namespace

TEST("an inline vector is what a vector would be") {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    Texts texts;
    std::vector<std::string> expected;
    for (int number = 0; number < 40; ++number) {
      change(random, texts, expected, number);
      CHECK(same(texts, expected));
      CHECK(texts == Texts(expected));
    }
  }
}

TEST("a shape of many dimensions") {
  const Shape few{2, 3};
  Shape many{1, 2, 3, 4, 5, 6, 7};
  CHECK_EQ(to_string(many), "[1, 2, 3, 4, 5, 6, 7]");
  CHECK_EQ(num_elements(many), 5040);
  CHECK_EQ(num_elements(Shape{}), 1);
  CHECK(many != few);
  many = few;
  CHECK(many == few);
  CHECK_EQ(many.size(), size_t{2});
}

TEST("freed blocks are used again, whichever thread frees them") {
  struct Object {
    std::array<int64_t, 100> values{};
  };
  constexpr size_t kMost = 8;
  using Allocator = Recycling<Object, kMost>;
  const auto make = [] { return std::allocate_shared<Object>(Allocator()); };
  std::vector<std::shared_ptr<Object>> objects;
  for (size_t i = 0; i < 3 * kMost; ++i) objects.push_back(make());
  std::set<const void*> before;
  for (const auto& object : objects) before.insert(object.get());
  CHECK_EQ(before.size(), 3 * kMost);
  std::thread([&] {
    objects.clear();
    std::vector<std::shared_ptr<Object>> again;
    size_t num_again = 0;
    for (size_t i = 0; i < 3 * kMost; ++i) {
      again.push_back(make());
      if (i < kMost) num_again += before.count(again.back().get());
    }
    CHECK(!Allocator::kRecycles || num_again == kMost);
  }).join();  // who frees what is left
}

}  // namespace hvd

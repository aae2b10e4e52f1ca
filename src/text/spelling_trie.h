// Finds the longest of a set of spellings at a place of a text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>

namespace sluice::text {

class SpellingTrie {
 public:
  // The first id that a spelling is added with stays. `spelling` must not be empty.
  void Add(std::string_view spelling, int32_t id) {
    starts_[static_cast<uint8_t>(spelling[0])] = true;
    uint32_t node = 0;
    for (const char c : spelling) {
      node =
          edges_.try_emplace(Key(node, c), static_cast<uint32_t>(edges_.size()) + 1).first->second;
    }
    ids_.try_emplace(node, id);
  }

  struct Match {
    int32_t id = -1;  // -1: none
    size_t length = 0;
  };
  // The longest spelling that `text` begins with.
  Match Find(std::string_view text) const {
    Match best;
    if (text.empty() || !starts_[static_cast<uint8_t>(text[0])]) return best;
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto edge = edges_.find(Key(node, text[i]));
      if (edge == edges_.end()) break;
      node = edge->second;
      if (const auto id = ids_.find(node); id != ids_.end()) best = {id->second, i + 1};
    }
    return best;
  }

 private:
  static uint64_t Key(uint32_t node, char c) {
    return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c);
  }

  std::array<bool, 256> starts_{};
  std::unordered_map<uint64_t, uint32_t> edges_;  // (node, byte) -> node; the root is 0
  std::unordered_map<uint32_t, int32_t> ids_;     // of nodes that end a spelling
};

}  // namespace sluice::text

// The merging step that byte-level BPE and SentencePiece BPE share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace sluice::text {

// A part of the text that will become one token unless it is merged further. Symbols form a list
// in text order; a symbol that was merged into its left neighbour has length 0.
struct Symbol {
  uint32_t begin;
  uint32_t length;
  int32_t id;    // -1: the vocabulary has no token for it
  int32_t next;  // index, -1 at the end
  int32_t previous;
};

// What joining two neighbours gives. Lower ranks go first.
struct Join {
  uint32_t rank;
  int32_t id;
};

// Working memory, kept between words.
struct MergeScratch {
  struct Entry {
    uint32_t rank;
    uint32_t left;    // index of the left symbol
    uint32_t length;  // of both together when the entry was made
    int32_t id;       // of the result
  };
  std::vector<Symbol> symbols;
  std::vector<Entry> heap;
};

// Joins neighbours of scratch.symbols, which must be linked, until find() knows none: always the
// pair of lowest rank, the leftmost of equals. O(n log n) calls of find(left, right), which
// returns std::optional<Join>. scratch.symbols[0] stays the first.
template <typename Find>
void MergeAll(MergeScratch& scratch, Find find) {
  std::vector<Symbol>& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  heap.clear();
  const auto later = [](const MergeScratch::Entry& a, const MergeScratch::Entry& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  };
  const auto entry_of = [&](int32_t left) -> std::optional<MergeScratch::Entry> {
    if (left < 0 || symbols[left].next < 0) return std::nullopt;
    const Symbol& l = symbols[left];
    const Symbol& r = symbols[l.next];
    const std::optional<Join> join = find(l, r);
    if (!join) return std::nullopt;
    return MergeScratch::Entry{join->rank, static_cast<uint32_t>(left), l.length + r.length,
                               join->id};
  };
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (const auto entry = entry_of(static_cast<int32_t>(i))) heap.push_back(*entry);
  }
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const MergeScratch::Entry entry = heap.back();
    heap.pop_back();
    Symbol& left = symbols[entry.left];
    // Symbols only grow to the right, so an unchanged length means an unchanged pair.
    if (left.length == 0 || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    if (left.length + right.length != entry.length) continue;
    left.id = entry.id;
    left.length = entry.length;
    left.next = right.next;
    right.length = 0;
    if (left.next >= 0) symbols[left.next].previous = static_cast<int32_t>(entry.left);
    for (const int32_t changed : {left.previous, static_cast<int32_t>(entry.left)}) {
      if (const auto fresh = entry_of(changed)) {
        heap.push_back(*fresh);
        std::push_heap(heap.begin(), heap.end(), later);
      }
    }
  }
}

}  // namespace sluice::text

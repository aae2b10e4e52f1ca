#include "session/verify.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace sluice::session {
namespace {

struct Event {
  uint32_t instruction;
  uint32_t token;
  std::vector<int32_t> values;
};

std::pair<uint32_t, uint32_t> Key(const Event& event) { return {event.instruction, event.token}; }

// Runs the block and keeps everything that the executor shows. Executors may show tokens and
// instructions in any order; the record is sorted.
base::Result<std::vector<exec::Candidates>> Record(exec::Executor& executor,
                                                   const exec::Block& block,
                                                   std::vector<Event>& events) {
  events.clear();
  executor.SetTrace([&](const exec::TraceEvent& event) {
    events.push_back({event.instruction, event.token, {event.values.begin(), event.values.end()}});
  });
  auto result = executor.Run(block);
  executor.SetTrace({});
  std::ranges::sort(events, {}, Key);
  return result;
}

// First element in which the two differ; a missing one counts as different.
std::optional<size_t> FirstDifference(std::span<const int32_t> a, std::span<const int32_t> b) {
  const auto [x, y] = std::ranges::mismatch(a, b);
  if (x == a.end() && y == b.end()) return std::nullopt;
  return static_cast<size_t>(x - a.begin());
}

int32_t At(std::span<const int32_t> values, size_t i) { return i < values.size() ? values[i] : 0; }

std::vector<int32_t> Flatten(const std::vector<exec::Candidates>& candidates) {
  std::vector<int32_t> values;
  for (const auto& list : candidates) {
    for (const auto& [id, logit] : list) values.insert(values.end(), {id, logit});
  }
  return values;
}

}  // namespace

base::Result<Verified> Verify(exec::Executor& first, exec::Executor& second,
                              const program::Program& program, std::span<const int32_t> prompt,
                              uint32_t block, uint32_t tokens, const base::Progress& progress) {
  Verified verified;
  std::vector<int32_t> sequence(prompt.begin(), prompt.end());
  std::vector<Event> a, b;
  uint32_t position = 0;
  const auto count = static_cast<uint32_t>(program.instructions().size());
  while (position < tokens && position < sequence.size()) {
    const size_t n = std::min<size_t>({block, sequence.size() - position, tokens - position});
    const exec::Block run{.tokens = std::span(sequence).subspan(position, n), .position = position};
    SLUICE_TRY(const auto candidates_a, Record(first, run, a));
    SLUICE_TRY(const auto candidates_b, Record(second, run, b));
    const auto differ = [&](const Event& x, const Event& y, size_t element) {
      verified.difference = Difference{position + x.token,
                                       x.instruction,
                                       program::Disassemble(program.instructions()[x.instruction]),
                                       element,
                                       At(x.values, element),
                                       At(y.values, element)};
    };
    for (size_t i = 0, j = 0; i < a.size() || j < b.size();) {
      // An event that only one of them has is compared with an empty one.
      const bool has_a = i < a.size() && (j == b.size() || Key(a[i]) <= Key(b[j]));
      const bool has_b = j < b.size() && (i == a.size() || Key(b[j]) <= Key(a[i]));
      const Event none{
          has_a ? a[i].instruction : b[j].instruction, has_a ? a[i].token : b[j].token, {}};
      const Event& x = has_a ? a[i++] : none;
      const Event& y = has_b ? b[j++] : none;
      if (const auto element = FirstDifference(x.values, y.values)) {
        differ(x, y, *element);
        return verified;
      }
      ++verified.instructions;
      verified.values += x.values.size();
    }
    const std::vector<int32_t> flat_a = Flatten(candidates_a);
    const std::vector<int32_t> flat_b = Flatten(candidates_b);
    if (const auto element = FirstDifference(flat_a, flat_b)) {
      verified.difference = Difference{static_cast<uint32_t>(position + n - 1),
                                       count,
                                       "candidates returned",
                                       *element,
                                       At(flat_a, *element),
                                       At(flat_b, *element)};
      return verified;
    }
    position += static_cast<uint32_t>(n);
    verified.tokens += n;
    if (progress) progress("comparing", position, tokens);
    if (position == sequence.size()) sequence.push_back(candidates_a.front().front().id);
  }
  return verified;
}

}  // namespace sluice::session

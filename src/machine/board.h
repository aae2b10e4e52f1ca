// Boards as data: boards/*.json, compiled into the program.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/embedded.h"
#include "base/error.h"
#include "machine/memory_spec.h"

namespace sluice::machine {

// A board file is JSON:
//   {
//     "name": "pynq-z2", "description": "one line",
//     "memory": {
//       "ddr": {"clock_mhz": {"value": 525, "source": "where the figure comes from"}, ...},
//       "scheduler": {...}, "ports": {...}
//     }
//   }
// The members of "ddr", "scheduler" and "ports" are those of DdrTiming, SchedulerSpec and PortsSpec
// under the same names, and "map" in "ddr", whose only value is "row-bank-column". All must be
// there, each with its source.
struct Board {
  std::string name;
  std::string description;
  MemorySpec memory;
};

// `object` names the text in errors. Errors: not JSON, unknown or missing keys, a figure without
// source, wrong types, values out of range or at odds with each other.
base::Result<Board> ParseBoard(std::string_view text, std::string object);

// A built-in board by name, or a file by path (anything that holds '/' or ends in ".json").
base::Result<Board> LoadBoard(const std::string& name_or_path);

// The built-in boards, named "pynq-z2.json" and so on.
std::span<const base::EmbeddedFile> BoardFiles();

}  // namespace sluice::machine

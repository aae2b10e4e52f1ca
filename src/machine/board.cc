#include "machine/board.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <set>
#include <variant>
#include <vector>

#include "base/mapped_file.h"
#include "formats/json.h"

namespace sluice::embedded {
std::span<const base::EmbeddedFile> Boards();
}  // namespace sluice::embedded

namespace sluice::machine {
namespace {

using base::Fail;
using base::Result;
using base::Status;
using formats::DescribeJson;
using formats::Json;
using formats::JsonObject;

constexpr uint64_t kMaxBoardBytes = 1 << 20;

// One figure: where it stands in the file and in the structure, and its range.
template <typename Spec>
struct Field {
  const char* key;
  std::variant<uint32_t Spec::*, double Spec::*> member;
  double min;
  double max;
};

const std::vector<Field<DdrTiming>> kDdrFields = {
    {"clock_mhz", &DdrTiming::clock_mhz, 100, 2000},
    {"bus_bits", &DdrTiming::bus_bits, 16, 32},
    {"burst_length", &DdrTiming::burst_length, 8, 8},
    {"cl", &DdrTiming::cl, 1, 64},
    {"cwl", &DdrTiming::cwl, 1, 64},
    {"rcd", &DdrTiming::rcd, 1, 64},
    {"rp", &DdrTiming::rp, 1, 64},
    {"ras", &DdrTiming::ras, 1, 128},
    {"rc", &DdrTiming::rc, 1, 256},
    {"faw", &DdrTiming::faw, 1, 128},
    {"rrd", &DdrTiming::rrd, 1, 64},
    {"read_to_precharge", &DdrTiming::read_to_precharge, 1, 64},
    {"write_to_precharge", &DdrTiming::write_to_precharge, 1, 128},
    {"read_to_write", &DdrTiming::read_to_write, 4, 64},
    {"write_to_read", &DdrTiming::write_to_read, 4, 64},
    {"rfc", &DdrTiming::rfc, 1, 2048},
    {"refi", &DdrTiming::refi, 1, 65536},
    {"banks", &DdrTiming::banks, 1, 16},
    {"row_bits", &DdrTiming::row_bits, 8, 18},
    {"column_bits", &DdrTiming::column_bits, 8, 12},
};

const std::vector<Field<SchedulerSpec>> kSchedulerFields = {
    {"read_entries", &SchedulerSpec::read_entries, 1, 64},
    {"write_entries", &SchedulerSpec::write_entries, 1, 64},
    {"row_lookahead", &SchedulerSpec::row_lookahead, 1, 64},
    {"starve_clocks", &SchedulerSpec::starve_clocks, 1, 65536},
    {"run_accesses", &SchedulerSpec::run_accesses, 1, 64},
    {"quiet_clocks", &SchedulerSpec::quiet_clocks, 0, 65536},
    {"age_clocks", &SchedulerSpec::age_clocks, 1, 1 << 20},
};

const std::vector<Field<PortsSpec>> kPortsFields = {
    {"clock_mhz", &PortsSpec::clock_mhz, 1, 500},
    {"outstanding_reads", &PortsSpec::outstanding_reads, 1, 64},
    {"outstanding_writes", &PortsSpec::outstanding_writes, 1, 64},
    // A burst of 16 beats must fit.
    {"read_fifo_bytes", &PortsSpec::read_fifo_bytes, 128, 65536},
    {"write_fifo_bytes", &PortsSpec::write_fifo_bytes, 128, 65536},
    {"idle_read_latency_ns", &PortsSpec::idle_read_latency_ns, 1, 100000},
    {"pair_mbps", &PortsSpec::pair_mbps, 1, 100000},
};

Status CheckKeys(const JsonObject& object, const std::set<std::string>& known) {
  for (const auto& [key, value] : object.json().items()) {
    if (!known.contains(key)) {
      return Fail(object.name(), fmt::format("key {}", formats::Quoted(key)),
                  fmt::format("only {}", fmt::join(known, ", ")));
    }
  }
  return {};
}

Result<JsonObject> RequiredObject(const JsonObject& parent, std::string_view key) {
  SLUICE_TRY(auto object, parent.Object(key));
  if (!object) return parent.Wrong(key, "missing", "an object");
  return *object;
}

Result<std::string> RequiredText(const JsonObject& parent, std::string_view key) {
  SLUICE_TRY(const std::string* text, parent.String(key));
  if (text == nullptr || text->empty()) {
    return parent.Wrong(key, text == nullptr ? "missing" : "an empty string", "a text");
  }
  return *text;
}

// The "value" of a figure that also has a "source".
Result<const Json*> FigureValue(const JsonObject& parent, std::string_view key) {
  SLUICE_TRY(const JsonObject figure, RequiredObject(parent, key));
  SLUICE_TRY_VOID(CheckKeys(figure, {"value", "source"}));
  if (auto source = RequiredText(figure, "source"); !source) {
    return std::unexpected(std::move(source).error());
  }
  const Json* value = figure.Find("value");
  if (value == nullptr) return figure.Wrong("value", "missing", "the figure");
  return value;
}

Status CheckRange(const std::string& object, double value, double min, double max) {
  if (value >= min && value <= max) return {};
  return Fail(object, fmt::format("{}", value), fmt::format("{} to {}", min, max));
}

template <typename Spec>
Status ReadFields(const JsonObject& object, const std::vector<Field<Spec>>& fields,
                  std::set<std::string> others, Spec& spec) {
  std::set<std::string> known = std::move(others);
  for (const Field<Spec>& field : fields) known.insert(field.key);
  SLUICE_TRY_VOID(CheckKeys(object, known));
  for (const Field<Spec>& field : fields) {
    SLUICE_TRY(const Json* value, FigureValue(object, field.key));
    const std::string name = fmt::format("{}: {}: value", object.name(), field.key);
    if (const auto* whole = std::get_if<uint32_t Spec::*>(&field.member)) {
      if (!value->is_number_unsigned()) {
        return Fail(name, DescribeJson(*value), "a whole number, 0 or more");
      }
      SLUICE_TRY_VOID(CheckRange(name, value->get<double>(), field.min, field.max));
      spec.** whole = value->get<uint32_t>();
    } else {
      if (!value->is_number()) return Fail(name, DescribeJson(*value), "a number");
      SLUICE_TRY_VOID(CheckRange(name, value->get<double>(), field.min, field.max));
      spec.*std::get<double Spec::*>(field.member) = value->get<double>();
    }
  }
  return {};
}

template <typename Spec>
Status CheckFields(const std::string& object, const std::vector<Field<Spec>>& fields,
                   const Spec& spec) {
  for (const Field<Spec>& field : fields) {
    const double value =
        std::visit([&](auto member) { return double(spec.*member); }, field.member);
    SLUICE_TRY_VOID(
        CheckRange(fmt::format("{}: {}", object, field.key), value, field.min, field.max));
  }
  return {};
}

bool IsPath(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".json");
}

}  // namespace

Status CheckMemory(const MemorySpec& memory, const std::string& object) {
  const std::string ddr = object + ": ddr";
  const std::string ports = object + ": ports";
  SLUICE_TRY_VOID(CheckFields(ddr, kDdrFields, memory.ddr));
  SLUICE_TRY_VOID(CheckFields(object + ": scheduler", kSchedulerFields, memory.scheduler));
  SLUICE_TRY_VOID(CheckFields(ports, kPortsFields, memory.ports));

  const DdrTiming& t = memory.ddr;
  const auto power_of_two = [](const std::string& name, uint32_t value) -> Status {
    if (std::has_single_bit(value)) return {};
    return Fail(name, fmt::format("{}", value), "a power of two");
  };
  SLUICE_TRY_VOID(power_of_two(ddr + ": bus_bits", t.bus_bits));
  SLUICE_TRY_VOID(power_of_two(ddr + ": banks", t.banks));
  SLUICE_TRY_VOID(power_of_two(ports + ": read_fifo_bytes", memory.ports.read_fifo_bytes));
  SLUICE_TRY_VOID(power_of_two(ports + ": write_fifo_bytes", memory.ports.write_fifo_bytes));
  if (t.ras < t.rcd) {
    return Fail(ddr + ": ras", fmt::format("{}", t.ras), fmt::format("at least rcd, {}", t.rcd));
  }
  if (t.rc < t.ras) {
    return Fail(ddr + ": rc", fmt::format("{}", t.rc), fmt::format("at least ras, {}", t.ras));
  }
  if (t.refi < 2 * (t.rfc + t.rc)) {
    return Fail(ddr + ": refi", fmt::format("{}", t.refi),
                fmt::format("at least {}, twice what a refresh takes", 2 * (t.rfc + t.rc)));
  }
  const double access_ns = (t.rcd + t.cl + t.BurstClocks()) * 1000 / t.clock_mhz +
                           t.AccessBytes() * 1000 / memory.ports.pair_mbps;
  if (memory.ports.idle_read_latency_ns < access_ns) {
    return Fail(ports + ": idle_read_latency_ns",
                fmt::format("{}", memory.ports.idle_read_latency_ns),
                fmt::format("at least {:.1f}, the access of a closed row", access_ns));
  }
  return {};
}

Result<Board> ParseBoard(std::string_view text, std::string object) {
  SLUICE_TRY(const Json json, formats::ParseJson(text, object));
  SLUICE_TRY(const JsonObject root, JsonObject::Of(json, object));
  SLUICE_TRY_VOID(CheckKeys(root, {"name", "description", "memory"}));
  Board board;
  SLUICE_TRY(board.name, RequiredText(root, "name"));
  SLUICE_TRY(board.description, RequiredText(root, "description"));

  SLUICE_TRY(const JsonObject memory, RequiredObject(root, "memory"));
  SLUICE_TRY_VOID(CheckKeys(memory, {"ddr", "scheduler", "ports"}));
  SLUICE_TRY(const JsonObject ddr, RequiredObject(memory, "ddr"));
  SLUICE_TRY_VOID(ReadFields(ddr, kDdrFields, {"map"}, board.memory.ddr));
  SLUICE_TRY(const Json* map, FigureValue(ddr, "map"));
  if (*map != "row-bank-column") {
    return Fail(ddr.name() + ": map: value", DescribeJson(*map), "\"row-bank-column\"");
  }
  SLUICE_TRY(const JsonObject scheduler, RequiredObject(memory, "scheduler"));
  SLUICE_TRY_VOID(ReadFields(scheduler, kSchedulerFields, {}, board.memory.scheduler));
  SLUICE_TRY(const JsonObject ports, RequiredObject(memory, "ports"));
  SLUICE_TRY_VOID(ReadFields(ports, kPortsFields, {}, board.memory.ports));
  SLUICE_TRY_VOID(CheckMemory(board.memory, memory.name()));
  return board;
}

std::span<const base::EmbeddedFile> BoardFiles() { return embedded::Boards(); }

Result<Board> LoadBoard(const std::string& name_or_path) {
  if (IsPath(name_or_path)) {
    SLUICE_TRY(const std::string text, base::ReadSmallFile(name_or_path, kMaxBoardBytes));
    return ParseBoard(text, name_or_path);
  }
  std::string names;
  for (const base::EmbeddedFile& file : BoardFiles()) {
    const std::string name(file.name.substr(0, file.name.rfind('.')));
    if (name == name_or_path) return ParseBoard(file.text, "board " + name);
    names += (names.empty() ? "" : ", ") + name;
  }
  return Fail("board " + base::Printable(name_or_path), "unknown",
              names + ", or the path of a .json file");
}

}  // namespace sluice::machine

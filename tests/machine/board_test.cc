#include "machine/board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "support/temp_dir.h"

namespace sluice::machine {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

Json PynqZ2() {
  for (const base::EmbeddedFile& file : BoardFiles()) {
    if (file.name == "pynq-z2.json") return Json::parse(file.text);
  }
  return {};
}

std::string ErrorOf(const Json& board) {
  const auto result = ParseBoard(board.dump(), "test");
  return result ? "" : result.error().ToString();
}

TEST(Board, PynqZ2HasThePublishedPeakAndPage) {
  const auto board = LoadBoard("pynq-z2");
  ASSERT_TRUE(board.has_value()) << board.error().ToString();
  EXPECT_EQ(board->name, "pynq-z2");
  EXPECT_EQ(board->memory.ddr.PeakMBps(), 2100);
  EXPECT_EQ(board->memory.ddr.AccessBytes(), 16);
  EXPECT_EQ(board->memory.ddr.PageBytes(), 2048);
}

TEST(Board, EveryBuiltInBoardParsesUnderItsOwnName) {
  ASSERT_FALSE(BoardFiles().empty());
  for (const base::EmbeddedFile& file : BoardFiles()) {
    const std::string name(file.name.substr(0, file.name.rfind('.')));
    const auto board = LoadBoard(name);
    ASSERT_TRUE(board.has_value()) << board.error().ToString();
    EXPECT_EQ(board->name, name);
  }
}

TEST(Board, EveryFigureIsDemanded) {
  const Json good = PynqZ2();
  ASSERT_EQ(ErrorOf(good), "");
  for (const char* part : {"ddr", "scheduler", "ports"}) {
    for (const auto& [key, figure] : good["memory"][part].items()) {
      Json board = good;
      board["memory"][part].erase(key);
      EXPECT_THAT(ErrorOf(board), HasSubstr(key + ": missing")) << part;
    }
  }
}

TEST(Board, RejectsAFigureWithoutASource) {
  Json board = PynqZ2();
  board["memory"]["ddr"]["cl"].erase("source");
  EXPECT_THAT(ErrorOf(board), HasSubstr("cl: source: missing"));
  board["memory"]["ddr"]["cl"]["source"] = "";
  EXPECT_THAT(ErrorOf(board), HasSubstr("cl: source: an empty string"));
  board["memory"]["ddr"]["cl"] = 7;
  EXPECT_THAT(ErrorOf(board), HasSubstr("cl: 7, expected an object"));
}

TEST(Board, RejectsUnknownKeys) {
  for (const char* pointer : {"", "/memory", "/memory/ddr", "/memory/ports/clock_mhz"}) {
    Json board = PynqZ2();
    board[Json::json_pointer(pointer)]["t_rcd"] = 1;
    EXPECT_THAT(ErrorOf(board), HasSubstr("key \"t_rcd\", expected only")) << pointer;
  }
}

TEST(Board, RejectsValuesOfTheWrongTypeOrOutOfRange) {
  struct Case {
    const char* pointer;
    Json value;
    const char* error;
  };
  const Case cases[] = {
      {"/memory/ddr/cl/value", 7.5, "a whole number"},
      {"/memory/ddr/cl/value", "7", "a whole number"},
      {"/memory/ddr/cl/value", -1, "a whole number"},
      {"/memory/ddr/cl/value", 0, "1 to 64"},
      {"/memory/ddr/banks/value", 17, "1 to 16"},
      {"/memory/ddr/banks/value", 6, "a power of two"},
      {"/memory/ddr/bus_bits/value", 24, "a power of two"},
      {"/memory/ddr/map/value", "bank-row-column", "row-bank-column"},
      {"/memory/ddr/rc/value", 10, "at least ras"},
      {"/memory/ddr/ras/value", 3, "at least rcd"},
      {"/memory/ddr/refi/value", 200, "twice what a refresh takes"},
      {"/memory/scheduler/read_entries/value", 65, "1 to 64"},
      {"/memory/ports/read_fifo_bytes/value", 64, "128 to"},
      {"/memory/ports/read_fifo_bytes/value", 1000, "a power of two"},
      {"/memory/ports/clock_mhz/value", "fast", "a number"},
      {"/memory/ports/idle_read_latency_ns/value", 20, "the access of a closed row"},
  };
  for (const Case& c : cases) {
    Json board = PynqZ2();
    board[Json::json_pointer(c.pointer)] = c.value;
    EXPECT_THAT(ErrorOf(board), HasSubstr(c.error)) << c.pointer << " " << c.value;
  }
}

TEST(Board, LoadsAFileAndSaysWhichNamesExist) {
  const testing::TempDir dir;
  const std::string path = dir / "mine.json";
  Json board = PynqZ2();
  board["name"] = "mine";
  testing::WriteFile(path, board.dump());
  const auto loaded = LoadBoard(path);
  ASSERT_TRUE(loaded.has_value()) << loaded.error().ToString();
  EXPECT_EQ(loaded->name, "mine");
  EXPECT_THAT(LoadBoard("zedboard").error().ToString(), HasSubstr("pynq-z2"));
}

}  // namespace
}  // namespace sluice::machine

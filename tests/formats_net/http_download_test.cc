#include "formats/http_download.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include "formats_net/http_server.h"
#include "formats_net/net_test.h"

namespace sluice::formats {
namespace {

using sluice::testing::Cut;
using sluice::testing::HttpServer;
using sluice::testing::kFast;
using sluice::testing::Reply;
using sluice::testing::ReplyWithRange;
using sluice::testing::Request;
using sluice::testing::Sha256Of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class HttpDownload : public sluice::testing::NetTest {
 protected:
  // A download of content_ to "file", with everything known.
  Download Known(const HttpServer& server) const {
    return {.request = {.url = server.url() + "/file"},
            .target = Path("file"),
            .size = content_.size(),
            .sha256 = Sha256Of(content_)};
  }
  Download Unknown(const HttpServer& server) const {
    return {.request = {.url = server.url() + "/file"}, .target = Path("file")};
  }
  // The error's text, or "" after success.
  static std::string Try(const Download& download, HttpPolicy policy = kFast) {
    const auto status = DownloadFile(download, policy);
    return status ? "" : status.error().ToString();
  }

  const std::string content_ = sluice::testing::RandomText(3'000'000, 1);
};

TEST_F(HttpDownload, FetchesAWholeFile) {
  HttpServer server([&](const Request&) { return Reply(200, content_); });
  uint64_t last_done = 0;
  uint64_t last_total = 0;
  const auto status = DownloadFile(Known(server), kFast, [&](auto what, auto done, auto total) {
    EXPECT_EQ(what, "file");
    EXPECT_GE(done, last_done);
    last_done = done;
    last_total = total;
  });
  ASSERT_TRUE(status) << status.error().ToString();
  EXPECT_EQ(Read(Path("file")), content_);
  EXPECT_THAT(Files(), ElementsAre("file"));
  EXPECT_EQ(last_done, content_.size());
  EXPECT_EQ(last_total, content_.size());
}

TEST_F(HttpDownload, FetchesAFileOfUnknownSize) {
  HttpServer server(
      [&](const Request&) { return "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + content_; });
  EXPECT_EQ(Try(Unknown(server)), "");
  EXPECT_EQ(Read(Path("file")), content_);
}

TEST_F(HttpDownload, ReplacesAnOlderTarget) {
  Write("file", "old");
  HttpServer server([&](const Request&) { return Reply(200, content_); });
  EXPECT_EQ(Try(Known(server)), "");
  EXPECT_EQ(Read(Path("file")), content_);
}

TEST_F(HttpDownload, AsksForTheRestAfterACut) {
  int calls = 0;
  HttpServer server([&](const Request& request) {
    const std::string reply = ReplyWithRange(request, content_, "ETag: \"v1\"\r\n");
    return ++calls <= 2 ? Cut(reply, 1'000'000) : reply;
  });
  EXPECT_EQ(Try(Known(server)), "");
  EXPECT_EQ(Read(Path("file")), content_);
  EXPECT_THAT(Files(), ElementsAre("file"));
  const auto requests = server.requests();
  ASSERT_THAT(requests, SizeIs(3));
  EXPECT_EQ(requests[0].Header("range"), "");
  EXPECT_EQ(requests[1].Header("range"), "bytes=1000000-");
  EXPECT_EQ(requests[1].Header("if-range"), "\"v1\"");
  EXPECT_EQ(requests[2].Header("range"), "bytes=2000000-");
}

TEST_F(HttpDownload, KeepsThePartForTheNextCall) {
  bool is_cut = true;
  HttpServer server([&](const Request& request) {
    const std::string reply = ReplyWithRange(request, content_);
    return is_cut ? Cut(reply, 700'000) : reply;
  });
  HttpPolicy once = kFast;
  once.attempts = 1;
  EXPECT_THAT(Try(Known(server), once), HasSubstr("the connection was cut"));
  EXPECT_THAT(Files(), ElementsAre("file.part"));
  EXPECT_EQ(Read(Path("file.part")), content_.substr(0, 700'000));

  is_cut = false;
  EXPECT_EQ(Try(Known(server), once), "");
  EXPECT_EQ(server.requests().back().Header("range"), "bytes=700000-");
  EXPECT_EQ(Read(Path("file")), content_);
  EXPECT_THAT(Files(), ElementsAre("file"));
}

TEST_F(HttpDownload, GivesUpAfterTheAllowedAttempts) {
  HttpServer server(
      [&](const Request& request) { return Cut(ReplyWithRange(request, content_), 9); });
  EXPECT_THAT(Try(Known(server)), HasSubstr("the connection was cut"));
  EXPECT_THAT(server.requests(), SizeIs(3));
}

TEST_F(HttpDownload, StartsOverIfTheServerIgnoresRange) {
  int calls = 0;
  HttpServer server([&](const Request&) {
    return ++calls == 1 ? Cut(Reply(200, content_), 1'500'000) : Reply(200, content_);
  });
  EXPECT_EQ(Try(Known(server)), "");
  EXPECT_EQ(Read(Path("file")), content_);
  EXPECT_EQ(server.requests().back().Header("range"), "bytes=1500000-");
}

TEST_F(HttpDownload, NeverMixesTwoVersionsOfAFileWithoutChecksum) {
  // The second version answers If-Range with everything, as RFC 9110 asks.
  const std::string other = sluice::testing::RandomText(content_.size(), 2);
  int calls = 0;
  HttpServer server([&](const Request& request) {
    if (++calls == 1) return Cut(Reply(200, content_, "ETag: \"v1\"\r\n"), 1'000'000);
    EXPECT_EQ(request.Header("if-range"), "\"v1\"");
    return Reply(200, other, "ETag: \"v2\"\r\n");
  });
  EXPECT_EQ(Try(Unknown(server)), "");
  EXPECT_TRUE(Read(Path("file")) == other);
}

TEST_F(HttpDownload, StartsOverWithoutChecksumAndStrongEtag) {
  for (const std::string etag : {"", "ETag: W/\"v1\"\r\n"}) {
    int calls = 0;
    HttpServer server([&](const Request& request) {
      const std::string reply = ReplyWithRange(request, content_, etag);
      return ++calls == 1 ? Cut(reply, 1'000'000) : reply;
    });
    EXPECT_EQ(Try(Unknown(server)), "");
    EXPECT_EQ(server.requests().back().Header("range"), "") << etag;
    EXPECT_TRUE(Read(Path("file")) == content_);
  }
}

TEST_F(HttpDownload, LeavesNoPartThatNothingCanCheck) {
  Write("file.part", "of somebody");
  HttpServer server([&](const Request& request) {
    EXPECT_EQ(request.Header("range"), "");
    return Cut(Reply(200, content_), 1000);
  });
  EXPECT_THAT(Try(Unknown(server)), HasSubstr("the connection was cut"));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(HttpDownload, NeedsNoNetworkForAPartThatIsWhole) {
  Write("file.part", content_);
  HttpServer server([&](const Request&) { return Reply(500, ""); });
  EXPECT_EQ(Try(Known(server)), "");
  EXPECT_THAT(server.requests(), IsEmpty());
  EXPECT_THAT(Files(), ElementsAre("file"));
}

TEST_F(HttpDownload, StartsOverAfterARottenPart) {
  for (const size_t size : {size_t{1000}, content_.size(), content_.size() + 1}) {
    Write("file.part", std::string(size, 'x'));
    HttpServer server([&](const Request& request) { return ReplyWithRange(request, content_); });
    EXPECT_EQ(Try(Known(server)), "") << size;
    EXPECT_TRUE(Read(Path("file")) == content_);
  }
}

TEST_F(HttpDownload, StartsOverIfTheServerHasNothingBehindThePart) {
  Write("file.part", content_ + "more");
  HttpServer server([&](const Request& request) { return ReplyWithRange(request, content_); });
  Download download = Known(server);
  download.size.reset();
  EXPECT_EQ(Try(download), "");
  EXPECT_TRUE(Read(Path("file")) == content_);
}

TEST_F(HttpDownload, RejectsAFileThatIsAnnouncedWithAnotherSize) {
  for (const int difference : {-1, 1}) {
    std::string body = content_;
    body.resize(content_.size() + static_cast<size_t>(difference), 'x');
    HttpServer server([&](const Request&) { return Reply(200, body); });
    EXPECT_THAT(Try(Known(server)), HasSubstr(fmt::format("the server offers {} bytes, expected {}",
                                                          body.size(), content_.size())));
    EXPECT_THAT(server.requests(), SizeIs(1));
    EXPECT_THAT(Files(), IsEmpty());
  }
}

TEST_F(HttpDownload, RejectsMoreBytesThanExpected) {
  HttpServer server([&](const Request&) {
    return "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + content_ + "x";
  });
  EXPECT_THAT(Try(Known(server)), HasSubstr("the server sends more than 3000000 bytes"));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(HttpDownload, RejectsMoreBytesThanTheLimit) {
  HttpServer server([&](const Request&) { return Reply(200, content_); });
  Download download = Unknown(server);
  download.max_bytes = content_.size() - 1;
  EXPECT_THAT(Try(download), HasSubstr("more than 2999999 bytes"));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(HttpDownload, TakesAnEarlyEndForACut) {
  HttpServer server([&](const Request&) {
    return "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + content_.substr(0, 10);
  });
  EXPECT_THAT(Try(Known(server)), HasSubstr("ended after 10 bytes, expected 3000000"));
  EXPECT_THAT(server.requests(), SizeIs(3));
}

TEST_F(HttpDownload, RejectsWrongBytes) {
  std::string wrong = content_;
  wrong[1234] ^= 1;
  HttpServer server([&](const Request&) { return Reply(200, wrong); });
  const std::string error = Try(Known(server));
  EXPECT_THAT(error, HasSubstr("SHA-256 " + Sha256Of(wrong)));
  EXPECT_THAT(error, HasSubstr("expected " + Sha256Of(content_)));
  EXPECT_THAT(server.requests(), SizeIs(1));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(HttpDownload, RejectsARangeThatWasNotAskedFor) {
  HttpServer server([&](const Request& request) {
    if (request.Header("range").empty()) return Cut(Reply(200, content_), 1000);
    return Reply(206, content_.substr(2000), "Content-Range: bytes 2000-2999999/3000000\r\n");
  });
  EXPECT_THAT(Try(Known(server)), HasSubstr("Content-Range \"bytes 2000-2999999/3000000\""));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(HttpDownload, SaysWhatToDoAboutARefusal) {
  for (const auto& [status, text] : {std::pair{401, "HTTP 401 (not allowed), expected a token"},
                                     std::pair{403, "HTTP 403 (not allowed), expected a token"},
                                     std::pair{404, "HTTP 404 (not found), expected a name"}}) {
    HttpServer server([code = status](const Request&) { return Reply(code, "no"); });
    Download download = Known(server);
    download.request.denied_hint = "a token";
    download.request.missing_hint = "a name";
    EXPECT_THAT(Try(download), HasSubstr(text));
    EXPECT_THAT(server.requests(), SizeIs(1)) << "asking again is of no use";
    EXPECT_THAT(Files(), IsEmpty());
  }
}

TEST_F(HttpDownload, TriesAgainAfterAFailureOfTheServer) {
  for (const int status : {500, 503, 429}) {
    int calls = 0;
    HttpServer server([&](const Request&) {
      return ++calls <= 2 ? Reply(status, "later") : Reply(200, content_);
    });
    EXPECT_EQ(Try(Known(server)), "") << status;
  }
  HttpServer broken([](const Request&) { return Reply(500, "never"); });
  EXPECT_THAT(Try(Known(broken)), HasSubstr("HTTP 500"));
  EXPECT_THAT(broken.requests(), SizeIs(3));
}

TEST_F(HttpDownload, SendsTheTokenAlongARedirectOnTheSameServer) {
  HttpServer server([&](const Request& request) {
    if (request.path == "/file") return Reply(302, "", "Location: /moved/file?x=1\r\n");
    return Reply(200, content_);
  });
  Download download = Known(server);
  download.request.bearer_token = "secret";
  EXPECT_EQ(Try(download), "");
  const auto requests = server.requests();
  ASSERT_THAT(requests, SizeIs(2));
  EXPECT_EQ(requests[0].Header("authorization"), "Bearer secret");
  EXPECT_EQ(requests[1].path, "/moved/file?x=1");
  EXPECT_EQ(requests[1].Header("authorization"), "Bearer secret");
}

TEST_F(HttpDownload, NeverSendsTheTokenToAnotherServer) {
  HttpServer other([&](const Request&) { return Reply(200, content_); });
  HttpServer server([&](const Request&) {
    return Reply(307, "", "Location: " + other.url() + "/elsewhere\r\n");
  });
  Download download = Known(server);
  download.request.bearer_token = "secret";
  EXPECT_EQ(Try(download), "");
  ASSERT_THAT(other.requests(), SizeIs(1));
  EXPECT_EQ(other.requests()[0].Header("authorization"), "");

  download.request.bearer_token.clear();
  download.request.url = fmt::format("http://me:secret@127.0.0.1:{}/file", server.port());
  EXPECT_EQ(Try(download), "");
  EXPECT_EQ(server.requests().back().Header("authorization"), "Basic bWU6c2VjcmV0");
  EXPECT_EQ(other.requests().back().Header("authorization"), "");
}

TEST_F(HttpDownload, RejectsRedirectsThatDoNotEnd) {
  HttpServer server([](const Request&) { return Reply(302, "", "Location: /again\r\n"); });
  EXPECT_THAT(Try(Known(server)), HasSubstr("more than 10 redirects"));
}

TEST_F(HttpDownload, SpeaksNothingButHttp) {
  HttpServer server(
      [](const Request&) { return Reply(302, "", "Location: file:///etc/hostname\r\n"); });
  EXPECT_THAT(Try(Known(server)), HasSubstr("a URL of scheme file, expected http or https"));
  Download download = Known(server);
  download.request.url = "ftp://127.0.0.1/file";
  EXPECT_THAT(Try(download), HasSubstr("a URL of scheme ftp, expected http or https"));
  download.request.url = "no url at all";
  EXPECT_THAT(Try(download), HasSubstr("not a URL"));
}

TEST_F(HttpDownload, SaysThatNobodyAnswers) {
  std::string url;
  {
    HttpServer server([](const Request&) { return std::string(); });
    url = server.url();
  }
  EXPECT_THAT(Try({.request = {.url = url + "/file"}, .target = Path("file")}),
              HasSubstr("cannot connect"));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(HttpDownload, SaysThatTheServerHasGoneSilent) {
  HttpServer server([&](const Request&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    return std::string();
  });
  HttpPolicy policy = kFast;
  policy.attempts = 1;
  policy.stall = std::chrono::seconds(1);
  EXPECT_THAT(Try(Known(server), policy), HasSubstr("no data for 1 s"));
}

TEST_F(HttpDownload, NamesTheFileThatDoesNotFitOnTheDisk) {
  // A limit on the size of files stands for the full disk; both fail in write().
  HttpServer server([&](const Request& request) { return ReplyWithRange(request, content_); });
  const auto old_action = ::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  rlimit limit = old_limit;
  limit.rlim_cur = 1'000'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string error = Try(Known(server));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  ::signal(SIGXFSZ, old_action);
  EXPECT_THAT(error, HasSubstr(Path("file") + ": cannot write: File too large"));
  EXPECT_THAT(server.requests(), SizeIs(1));
  EXPECT_THAT(Files(), ElementsAre("file.part"));
  EXPECT_EQ(Try(Known(server)), "") << "the part was fit to be continued";
  EXPECT_TRUE(Read(Path("file")) == content_);
}

TEST_F(HttpDownload, LooksForSpaceBeforeItStarts) {
  HttpServer server([&](const Request&) { return Reply(200, content_); });
  Download download = Known(server);
  download.size = uint64_t{1} << 60;
  EXPECT_THAT(Try(download), HasSubstr("bytes free, expected at least 1152921504606846976"));
  EXPECT_THAT(server.requests(), IsEmpty());
}

TEST_F(HttpDownload, NeedsAFolderForTheTarget) {
  HttpServer server([&](const Request&) { return Reply(200, content_); });
  Download download = Known(server);
  download.target = Path("missing/file");
  EXPECT_THAT(Try(download), HasSubstr("missing/file.part: cannot create: No such file"));
}

TEST_F(HttpDownload, KeepsSecretsOutOfErrors) {
  HttpServer server([](const Request&) { return Reply(404, ""); });
  Download download = Known(server);
  download.request.bearer_token = "secret1";
  download.request.url =
      fmt::format("http://me:secret2@127.0.0.1:{}/file?key=secret3#secret4", server.port());
  const std::string error = Try(download);
  EXPECT_THAT(error, HasSubstr(server.url() + "/file: HTTP 404"));
  EXPECT_THAT(error, Not(HasSubstr("secret")));
}

using HttpPages = HttpDownload;

TEST_F(HttpPages, AreFetchedWhole) {
  HttpServer server([](const Request& request) {
    if (request.path == "/old") return Reply(301, "moved", "Location: /new/\r\n");
    return Reply(200, "<p>", "Content-Type: Text/HTML; charset=utf-8\r\n");
  });
  const auto page = HttpGet({.url = server.url() + "/old", .accept = "text/html"}, 100, kFast);
  ASSERT_TRUE(page) << page.error().ToString();
  EXPECT_EQ(page->body, "<p>");
  EXPECT_EQ(page->content_type, "text/html");
  EXPECT_EQ(page->url, server.url() + "/new/");
  EXPECT_EQ(server.requests()[0].Header("accept"), "text/html");
}

TEST_F(HttpPages, HaveALimit) {
  HttpServer server([](const Request&) { return Reply(200, "12345"); });
  EXPECT_TRUE(HttpGet({.url = server.url()}, 5, kFast));
  const auto page = HttpGet({.url = server.url()}, 4, kFast);
  ASSERT_FALSE(page);
  EXPECT_THAT(page.error().ToString(), HasSubstr("more than 4 bytes"));
}

TEST_F(HttpPages, AreFetchedWholeAfterACut) {
  int calls = 0;
  HttpServer server([&](const Request&) {
    return ++calls == 1 ? Cut(Reply(200, "12345"), 3) : Reply(200, "12345");
  });
  const auto page = HttpGet({.url = server.url()}, 100, kFast);
  ASSERT_TRUE(page) << page.error().ToString();
  EXPECT_EQ(page->body, "12345");
}

}  // namespace
}  // namespace sluice::formats

#include "formats/http_download.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "base/checksum.h"
#include "formats/hub_text.h"
#include "formats/hub_url.h"

namespace sluice::formats {
namespace {

using base::Error;
using base::Fail;
using base::FailErrno;
using base::Result;
using base::Status;

constexpr int kMaxRedirects = 10;
// Of the body that comes with a redirect or a failure.
constexpr uint64_t kMaxIgnoredBytes = uint64_t{4} << 20;
// An attempt that got this far shows that the connection works, and the count starts again.
constexpr uint64_t kProgressOfOneAttempt = uint64_t{1} << 20;

struct Answer {
  long status = 0;
  std::string url;
  std::string content_type;
  std::string etag;
  std::string content_range;
  std::optional<uint64_t> content_length;
};

// Takes body bytes of the last answer (redirects and failures excluded); an Error ends the
// transfer.
using Sink = std::function<Status(const Answer&, std::span<const uint8_t>)>;

enum class Retry { kNever, kIfReachedBefore, kAlways };
struct Failure {
  Error error;
  Retry retry = Retry::kNever;
  long status = 0;  // of HTTP, if it came to that
};
template <typename T>
using Attempt = std::expected<T, Failure>;

struct Transfer {
  CURL* curl;
  Answer answer;
  const Sink* sink;
  std::optional<Error> sink_error = {};
  uint64_t ignored = 0;  // bytes of a body that nobody wants
};

bool IsGood(long status) { return status == 200 || status == 206; }
bool IsRedirect(long status) { return status >= 300 && status < 400; }

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

size_t OnHeader(char* data, size_t, size_t size, void* user) {
  auto& answer = static_cast<Transfer*>(user)->answer;
  const std::string_view line(data, size);
  // A proxy's answer to CONNECT or an interim 1xx comes first, under its own status line.
  if (line.starts_with("HTTP/")) {
    answer = {};
    return size;
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return size;
  const std::string name = LowerCase(line.substr(0, colon));
  const std::string_view value = Trim(line.substr(colon + 1));
  if (name == "content-type")
    answer.content_type = Trim(LowerCase(value.substr(0, value.find(';'))));
  if (name == "etag") answer.etag = value;
  if (name == "content-range") answer.content_range = value;
  return size;
}

void ReadStatus(Transfer& transfer) {
  curl_easy_getinfo(transfer.curl, CURLINFO_RESPONSE_CODE, &transfer.answer.status);
  curl_off_t length = -1;
  curl_easy_getinfo(transfer.curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
  if (length >= 0) transfer.answer.content_length = static_cast<uint64_t>(length);
}

size_t OnBody(char* data, size_t, size_t size, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  ReadStatus(transfer);
  if (!IsGood(transfer.answer.status)) {
    transfer.ignored += size;
    return transfer.ignored <= kMaxIgnoredBytes ? size : size + 1;
  }
  const auto bytes = std::span(reinterpret_cast<const uint8_t*>(data), size);
  if (auto status = (*transfer.sink)(transfer.answer, bytes); !status) {
    transfer.sink_error = std::move(status).error();
    return size + 1;  // libcurl's sign for "stop"
  }
  return size;
}

std::unexpected<Failure> NetworkFailure(const std::string& url, CURLcode code,
                                        const std::string& detail, const HttpPolicy& policy) {
  const std::string reason = detail.empty() ? curl_easy_strerror(code) : detail;
  const auto fail = [&](const std::string& what, std::string expected, Retry retry) {
    return std::unexpected(
        Failure{{ShownUrl(url), what + " (" + reason + ")", std::move(expected)}, retry});
  };
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
      return fail("host not found", "a network connection and the name of a host",
                  Retry::kIfReachedBefore);
    case CURLE_COULDNT_RESOLVE_PROXY:
      return fail("proxy not found", "a reachable proxy in http_proxy and https_proxy",
                  Retry::kIfReachedBefore);
    case CURLE_COULDNT_CONNECT:
      return fail("cannot connect",
                  "a network connection, by a proxy in https_proxy if it needs one",
                  Retry::kIfReachedBefore);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return fail("its certificate cannot be trusted",
                  "this network's certificates in CURL_CA_BUNDLE or SSL_CERT_FILE", Retry::kNever);
    case CURLE_OPERATION_TIMEDOUT:
      return fail(fmt::format("no data for {} s", policy.stall.count()), {}, Retry::kAlways);
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SSL_CONNECT_ERROR:
      return fail("the connection was cut", {}, Retry::kAlways);
    default:
      return fail("cannot be fetched", {}, Retry::kNever);
  }
}

std::unexpected<Failure> StatusFailure(const HttpRequest& request, const Answer& answer) {
  const long status = answer.status;
  const auto fail = [&](std::string_view meaning, std::string expected, Retry retry) {
    return std::unexpected(Failure{
        {ShownUrl(answer.url), fmt::format("HTTP {} ({})", status, meaning), std::move(expected)},
        retry,
        status});
  };
  if (status == 401 || status == 403) {
    return fail("not allowed", request.denied_hint, Retry::kNever);
  }
  if (status == 404 || status == 410) {
    return fail("not found", request.missing_hint, Retry::kNever);
  }
  if (status == 407) return fail("the proxy wants a password", {}, Retry::kNever);
  if (status == 408 || status == 429) return fail("try later", {}, Retry::kAlways);
  if (status >= 500) return fail("the server failed", {}, Retry::kAlways);
  return fail("not understood", "200", Retry::kNever);
}

// One hop: no redirects, no second try.
Attempt<Transfer> SendOnce(const HttpRequest& request, const std::string& url, bool same_origin,
                           const std::vector<std::string>& headers, const HttpPolicy& policy,
                           const Sink& sink, std::string& redirect) {
  static const CURLcode initialised = curl_global_init(CURL_GLOBAL_DEFAULT);
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> handle(curl_easy_init(),
                                                                   &curl_easy_cleanup);
  CURL* curl = handle.get();
  if (initialised != CURLE_OK || curl == nullptr) {
    return std::unexpected(Failure{{ShownUrl(url), "libcurl does not start"}});
  }

  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> list(nullptr, &curl_slist_free_all);
  const auto add = [&](const std::string& line) {
    if (curl_slist* longer = curl_slist_append(list.get(), line.c_str())) {
      static_cast<void>(list.release());
      list.reset(longer);
    }
  };
  for (const std::string& header : headers) add(header);
  if (!request.accept.empty()) add("Accept: " + request.accept);
  if (same_origin && !request.bearer_token.empty()) {
    add("Authorization: Bearer " + request.bearer_token);
  }

  std::string ca_file = request.ca_file;
  if (ca_file.empty()) ca_file = Environment("CURL_CA_BUNDLE");
  if (ca_file.empty()) ca_file = Environment("SSL_CERT_FILE");
  const std::string ca_folder = Environment("SSL_CERT_DIR");
  std::array<char, CURL_ERROR_SIZE> detail{};
  Transfer transfer{curl, {}, &sink};
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "sluice");
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, list.get());
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail.data());
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(policy.connect.count()));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(policy.stall.count()));
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &OnHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &OnBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  if (!request.proxy.empty()) curl_easy_setopt(curl, CURLOPT_PROXY, request.proxy.c_str());
  if (!ca_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, ca_file.c_str());
  if (!ca_folder.empty()) curl_easy_setopt(curl, CURLOPT_CAPATH, ca_folder.c_str());

  const CURLcode code = curl_easy_perform(curl);
  if (transfer.sink_error) {
    return std::unexpected(Failure{*std::move(transfer.sink_error)});
  }
  if (code != CURLE_OK) return NetworkFailure(url, code, detail.data(), policy);
  ReadStatus(transfer);
  transfer.answer.url = url;
  char* location = nullptr;
  curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &location);
  redirect = location == nullptr ? "" : location;
  return transfer;
}

// Sends the request and follows redirects; the body of a 200 or 206 goes to the sink.
Attempt<Answer> Send(const HttpRequest& request, const std::vector<std::string>& headers,
                     const HttpPolicy& policy, const Sink& sink) {
  if (const auto status = CheckUrl(request.url); !status) {
    return std::unexpected(Failure{status.error()});
  }
  const std::string origin = UrlOrigin(request.url);
  std::string url = request.url;
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    std::string redirect;
    auto sent = SendOnce(request, url, UrlOrigin(url) == origin, headers, policy, sink, redirect);
    if (!sent) return std::unexpected(std::move(sent).error());
    if (IsGood(sent->answer.status)) return std::move(sent->answer);
    if (!IsRedirect(sent->answer.status) || redirect.empty()) {
      return StatusFailure(request, sent->answer);
    }
    if (const auto status = CheckUrl(redirect); !status) {
      return std::unexpected(Failure{status.error().In(ShownUrl(url) + " redirects")});
    }
    if (url.starts_with("https:") && !redirect.starts_with("https:")) {
      return std::unexpected(
          Failure{{ShownUrl(url), "redirects to " + ShownUrl(redirect), "https"}});
    }
    url = redirect;
  }
  return std::unexpected(
      Failure{{ShownUrl(request.url), fmt::format("more than {} redirects", kMaxRedirects)}});
}

// A server that has answered and then cannot be reached is a network that comes and goes.
bool MayRetry(const Failure& failure, bool reached_before) {
  return failure.retry == Retry::kAlways ||
         (failure.retry == Retry::kIfReachedBefore && reached_before);
}

// Counts attempts and waits between them.
class Retries {
 public:
  explicit Retries(const HttpPolicy& policy) : policy_(policy), pause_(policy.pause) {}

  void Reset() {
    failures_ = 0;
    pause_ = policy_.pause;
  }
  // False when the attempts are used up; otherwise true after a pause.
  bool TryAgain() {
    if (++failures_ >= policy_.attempts) return false;
    std::this_thread::sleep_for(pause_);
    pause_ *= 2;
    return true;
  }

 private:
  const HttpPolicy& policy_;
  std::chrono::milliseconds pause_;
  unsigned failures_ = 0;
};

// TARGET.part: what has been written, and its SHA-256 so far.
class PartFile {
 public:
  PartFile(const Download& download, const base::Progress& progress)
      : download_(download),
        progress_(progress),
        path_(download.target + ".part"),
        shown_(std::filesystem::path(download.target).filename()) {}
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  ~PartFile() {
    if (fd_ >= 0) ::close(fd_);
  }

  uint64_t size() const { return size_; }
  bool is_complete() const { return download_.size && size_ == *download_.size; }
  const std::string& etag() const { return etag_; }
  bool has_old_bytes() const { return has_old_bytes_; }
  bool has_wrong_content() const { return has_wrong_content_; }
  // Whether the bytes so far can be continued by a later request.
  bool can_resume() const { return size_ > 0 && (!download_.sha256.empty() || !etag_.empty()); }

  Status Open() {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd_ < 0) return FailErrno(path_, "cannot create", errno);
    struct stat info;
    if (::fstat(fd_, &info) != 0) return FailErrno(path_, "cannot stat", errno);
    const auto old_size = static_cast<uint64_t>(info.st_size);
    if (download_.sha256.empty() || old_size > download_.size.value_or(download_.max_bytes)) {
      return StartOver();
    }
    std::vector<uint8_t> buffer(uint64_t{1} << 20);
    while (size_ < old_size) {
      const ssize_t n = ::pread(fd_, buffer.data(), buffer.size(), static_cast<off_t>(size_));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return FailErrno(path_, "cannot read", errno);
      if (n == 0) break;
      hash_->Update(std::span(buffer).first(static_cast<size_t>(n)));
      size_ += static_cast<uint64_t>(n);
    }
    has_old_bytes_ = size_ > 0;
    return {};
  }

  Status StartOver() {
    if (::ftruncate(fd_, 0) != 0) return FailErrno(path_, "cannot empty", errno);
    size_ = 0;
    hash_.emplace();
    etag_.clear();
    has_old_bytes_ = false;
    has_wrong_content_ = false;
    return {};
  }

  // A full disk is better found before an hour of downloading than after.
  Status CheckSpace() const {
    struct statvfs info;
    if (!download_.size || ::fstatvfs(fd_, &info) != 0) return {};
    const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
    const uint64_t needed = *download_.size - size_;
    if (needed <= free) return {};
    return Fail(download_.target, fmt::format("the disk has {} bytes free", free),
                fmt::format("at least {}", needed));
  }

  // Looks at the head of an answer before its first byte is written.
  Status Begin(const Answer& answer) {
    std::optional<uint64_t> total = answer.content_length;
    if (answer.status == 206) {
      SLUICE_TRY(total, CheckRange(answer));
    } else {
      SLUICE_TRY_VOID(StartOver());  // the server has not honoured the Range
    }
    // If-Range takes only strong validators (RFC 9110, section 13.1.5).
    if (!answer.etag.starts_with("W/")) etag_ = answer.etag;
    if (total && download_.size && *total != *download_.size) {
      return WrongContent(fmt::format("the server offers {} bytes", *total),
                          fmt::format("{}", *download_.size));
    }
    if (total && *total > limit()) return TooLong();
    total_ = total;
    return {};
  }

  Status Write(std::span<const uint8_t> bytes) {
    if (bytes.size() > limit() - size_) return TooLong();
    hash_->Update(bytes);
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(size_));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return FailErrno(download_.target, "cannot write", errno);
      size_ += static_cast<uint64_t>(n);
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    Report(false);
    return {};
  }

  // Checks the whole file and gives it its name. A wrong one is removed.
  Status Finish() {
    Report(true);
    const std::string found = hash_->Finish();
    if (!download_.sha256.empty() && found != download_.sha256) {
      return WrongContent("SHA-256 " + found, download_.sha256);
    }
    if (::fsync(fd_) != 0) return FailErrno(download_.target, "cannot write to disk", errno);
    if (::rename(path_.c_str(), download_.target.c_str()) != 0) {
      return FailErrno(download_.target, "cannot rename the finished file", errno);
    }
    return {};
  }

  // After a failure: keeps what the next call can continue, and only that.
  void Leave() {
    if (has_wrong_content_ || download_.sha256.empty() || size_ == 0) ::unlink(path_.c_str());
  }

  std::unexpected<Error> WrongContent(std::string got, std::string expected) {
    has_wrong_content_ = true;
    return Fail(ShownUrl(download_.request.url), std::move(got), std::move(expected));
  }

 private:
  uint64_t limit() const { return download_.size.value_or(download_.max_bytes); }

  std::unexpected<Error> TooLong() {
    return WrongContent(fmt::format("the server sends more than {} bytes", limit()),
                        fmt::format("{}{}", download_.size ? "" : "at most ", limit()));
  }

  // "bytes 100-199/200" (RFC 9110, section 14.4); returns the total, if it is told.
  Result<std::optional<uint64_t>> CheckRange(const Answer& answer) {
    const std::string& text = answer.content_range;
    uint64_t first = 0;
    constexpr std::string_view kUnit = "bytes ";
    const auto wrong = [&] {
      return WrongContent("Content-Range \"" + text + "\"", fmt::format("bytes {}-...", size_));
    };
    if (!LowerCase(text).starts_with(kUnit)) return wrong();
    const char* end = text.data() + text.size();
    if (std::from_chars(text.data() + kUnit.size(), end, first).ec != std::errc() ||
        first != size_) {
      return wrong();
    }
    uint64_t total = 0;
    const size_t slash = text.find('/');
    if (slash == std::string::npos ||
        std::from_chars(text.data() + slash + 1, end, total).ec != std::errc()) {
      return std::optional<uint64_t>();
    }
    return std::optional(total);
  }

  void Report(bool last) {
    const auto now = std::chrono::steady_clock::now();
    if (!progress_ || (!last && now - reported_ < std::chrono::milliseconds(200))) return;
    reported_ = now;
    progress_(shown_, size_, download_.size.value_or(total_.value_or(0)));
  }

  const Download& download_;
  const base::Progress& progress_;
  const std::string path_;
  const std::string shown_;
  int fd_ = -1;
  uint64_t size_ = 0;
  std::optional<base::Sha256> hash_{std::in_place};  // optional, as a Sha256 cannot be assigned
  std::string etag_;
  std::optional<uint64_t> total_;
  bool has_old_bytes_ = false;  // from an earlier call
  bool has_wrong_content_ = false;
  std::chrono::steady_clock::time_point reported_{};
};

// Fetches until the part is whole.
Status Fetch(const Download& download, const HttpPolicy& policy, PartFile& part) {
  Retries retries(policy);
  bool had_data = false;
  while (!part.is_complete()) {
    if (part.size() > 0 && !part.can_resume()) SLUICE_TRY_VOID(part.StartOver());
    const uint64_t from = part.size();
    std::vector<std::string> headers;
    if (from > 0) {
      headers.push_back(fmt::format("Range: bytes={}-", from));
      if (!part.etag().empty()) headers.push_back("If-Range: " + part.etag());
    }
    bool begun = false;
    const Sink sink = [&](const Answer& answer, std::span<const uint8_t> bytes) -> Status {
      if (!begun) SLUICE_TRY_VOID(part.Begin(answer));
      begun = true;
      return part.Write(bytes);
    };
    auto sent = Send(download.request, headers, policy, sink);
    had_data = had_data || begun;
    Failure failure;
    if (sent) {
      if (!begun) SLUICE_TRY_VOID(part.Begin(*sent));
      if (!download.size || part.is_complete()) return {};
      failure = {{ShownUrl(sent->url), fmt::format("ended after {} bytes", part.size()),
                  fmt::format("{}", *download.size)},
                 Retry::kAlways};
    } else {
      failure = std::move(sent).error();
    }
    if (failure.status == 416 && from > 0) {  // nothing follows: the part is not of this file
      SLUICE_TRY_VOID(part.StartOver());
      continue;
    }
    if (part.has_wrong_content()) return std::unexpected(std::move(failure.error));
    const uint64_t now = part.size();
    if (now > from && now - from >= kProgressOfOneAttempt) retries.Reset();
    if (!MayRetry(failure, had_data) || !retries.TryAgain()) {
      return std::unexpected(std::move(failure.error));
    }
  }
  return {};
}

Status FetchAndFinish(const Download& download, const HttpPolicy& policy, PartFile& part) {
  SLUICE_TRY_VOID(part.CheckSpace());
  SLUICE_TRY_VOID(Fetch(download, policy, part));
  return part.Finish();
}

}  // namespace

Result<HttpPage> HttpGet(const HttpRequest& request, uint64_t max_bytes, const HttpPolicy& policy) {
  Retries retries(policy);
  while (true) {
    HttpPage page;
    const Sink sink = [&](const Answer&, std::span<const uint8_t> bytes) -> Status {
      if (bytes.size() > max_bytes - page.body.size()) {
        return Fail(ShownUrl(request.url), fmt::format("more than {} bytes", max_bytes));
      }
      page.body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return {};
    };
    auto sent = Send(request, {}, policy, sink);
    if (sent) {
      page.content_type = sent->content_type;
      page.url = sent->url;
      return page;
    }
    if (!MayRetry(sent.error(), false) || !retries.TryAgain()) {
      return std::unexpected(std::move(sent).error().error);
    }
  }
}

Status DownloadFile(const Download& download, const HttpPolicy& policy,
                    const base::Progress& progress) {
  PartFile part(download, progress);
  SLUICE_TRY_VOID(part.Open());
  auto status = FetchAndFinish(download, policy, part);
  // What an earlier call has left may be the culprit.
  if (!status && part.has_wrong_content() && part.has_old_bytes()) {
    SLUICE_TRY_VOID(part.StartOver());
    status = FetchAndFinish(download, policy, part);
  }
  if (!status) part.Leave();
  return status;
}

}  // namespace sluice::formats

// A web server on 127.0.0.1 that behaves as badly as a test asks for.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace sluice::testing {

struct Request {
  std::string method;
  std::string path;                            // with its query
  std::map<std::string, std::string> headers;  // names in lower case

  // Value of a header, or "".
  std::string Header(const std::string& name) const;
};

// Answers one request: returns the bytes that go over the line before the connection is closed.
using Handler = std::function<std::string(const Request&)>;

class HttpServer {
 public:
  explicit HttpServer(Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }
  // "http://127.0.0.1:PORT"
  std::string url() const;
  std::vector<Request> requests() const;

 private:
  void Run();
  void Serve(int connection);

  Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  mutable std::mutex mutex_;
  std::vector<Request> requests_;
  std::thread thread_;
};

// A whole answer with Content-Length; `headers` are lines that end in "\r\n".
std::string Reply(int status, std::string_view body, std::string_view headers = {});

// 200 with everything, or 206 with what the request's Range asks for.
std::string ReplyWithRange(const Request& request, std::string_view content,
                           std::string_view headers = {});

// The first `bytes` of a reply's body, with the head as it was: a connection that is cut.
std::string Cut(const std::string& reply, uint64_t bytes);

}  // namespace sluice::testing

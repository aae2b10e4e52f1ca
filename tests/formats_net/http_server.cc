#include "formats_net/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cctype>

#include "base/check.h"

namespace sluice::testing {
namespace {

Request Parse(const std::string& text) {
  Request request;
  size_t end = text.find("\r\n");
  const std::string first = text.substr(0, end);
  const size_t space = first.find(' ');
  request.method = first.substr(0, space);
  request.path = first.substr(space + 1, first.rfind(' ') - space - 1);
  while (end != std::string::npos) {
    const size_t begin = end + 2;
    end = text.find("\r\n", begin);
    const std::string line = text.substr(begin, end - begin);
    const size_t colon = line.find(':');
    if (colon == std::string::npos) break;
    std::string name = line.substr(0, colon);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    request.headers[name] =
        line.substr(std::min(line.find_first_not_of(' ', colon + 1), line.size()));
  }
  return request;
}

}  // namespace

std::string Request::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

HttpServer::HttpServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  SLUICE_CHECK(::bind(listener_, generic, length) == 0);
  SLUICE_CHECK(::listen(listener_, 16) == 0);
  SLUICE_CHECK(::getsockname(listener_, generic, &length) == 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

HttpServer::~HttpServer() {
  ::shutdown(listener_, SHUT_RDWR);  // makes accept() return
  thread_.join();
  ::close(listener_);
}

std::string HttpServer::url() const { return fmt::format("http://127.0.0.1:{}", port_); }

std::vector<Request> HttpServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void HttpServer::Run() {
  while (true) {
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return;
    Serve(connection);
    ::close(connection);
  }
}

void HttpServer::Serve(int connection) {
  std::string head;
  std::array<char, 4096> buffer;
  while (head.find("\r\n\r\n") == std::string::npos) {
    const ssize_t n = ::recv(connection, buffer.data(), buffer.size(), 0);
    if (n <= 0) return;
    head.append(buffer.data(), static_cast<size_t>(n));
  }
  const Request request = Parse(head);
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  std::string_view answer;
  const std::string bytes = handler_(request);
  answer = bytes;
  while (!answer.empty()) {
    const ssize_t n = ::send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
    if (n <= 0) return;  // the client has hung up
    answer.remove_prefix(static_cast<size_t>(n));
  }
}

std::string Reply(int status, std::string_view body, std::string_view headers) {
  return fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}", status,
                     body.size(), headers, body);
}

std::string ReplyWithRange(const Request& request, std::string_view content,
                           std::string_view headers) {
  constexpr std::string_view kPrefix = "bytes=";
  const std::string range = request.Header("range");
  if (!range.starts_with(kPrefix)) return Reply(200, content, headers);
  const size_t first = std::stoul(range.substr(kPrefix.size()));
  if (first >= content.size()) return Reply(416, "");
  return Reply(206, content.substr(first),
               fmt::format("{}Content-Range: bytes {}-{}/{}\r\n", headers, first,
                           content.size() - 1, content.size()));
}

std::string Cut(const std::string& reply, uint64_t bytes) {
  return reply.substr(0, reply.find("\r\n\r\n") + 4 + bytes);
}

}  // namespace sluice::testing

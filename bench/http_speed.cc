// What connections cost the HTTP server: CPU time for a piece of a stream, memory of a connection
// that waits, and how soon it is known that a client has gone. The clients are a process of their
// own.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>

#include "core/check.h"
#include "server/http_server.h"

namespace hillstar {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kStreams = 256;
constexpr int kIdle = 1000;
constexpr int kGone = 100;
constexpr int kPieces = 150;  // of each stream
constexpr size_t kPieceBytes = 200;
constexpr milliseconds kStep{20};

int Connect(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

std::vector<int> ConnectAll(uint16_t port, int count, std::string_view path) {
  const std::string request = fmt::format("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", path);
  std::vector<int> sockets;
  for (int i = 0; i < count; ++i) {
    sockets.push_back(Connect(port));
    CHECK(send(sockets.back(), request.data(), request.size(), 0) == ssize_t(request.size()));
  }
  return sockets;
}

// Until all have been closed by the server.
void ReadToTheEnd(const std::vector<int>& sockets) {
  std::vector<pollfd> polled;
  for (const int fd : sockets) polled.push_back({fd, POLLIN, 0});
  size_t num_open = polled.size();
  std::vector<char> bytes(65536);
  while (num_open > 0) {
    poll(polled.data(), polled.size(), -1);
    for (pollfd& p : polled) {
      if (p.fd < 0 || p.revents == 0 || recv(p.fd, bytes.data(), bytes.size(), 0) > 0) continue;
      p.fd = -1;
      --num_open;
    }
  }
}

// The clients: what they do at each word of the server's side.
struct Clients {
  int words, times;  // pipes

  void Wait() const {
    char word;
    CHECK(read(words, &word, 1) == 1);
  }
  [[noreturn]] void Run(uint16_t port) const {
    ConnectAll(port, kIdle, "/now");  // stay open until the end
    Wait();
    std::vector<int> waiting = ConnectAll(port, kGone, "/wait");
    for (const int fd : waiting) {
      Wait();
      const int64_t now = Clock::now().time_since_epoch().count();
      close(fd);
      CHECK(write(times, &now, sizeof(now)) == sizeof(now));
    }
    Wait();
    ReadToTheEnd(ConnectAll(port, kStreams, "/wait"));
    _exit(0);
  }
};

class Bench {
 public:
  Bench() {
    int words[2], times[2];
    CHECK(pipe(words) == 0 && pipe(times) == 0);
    HttpServerOptions options;
    options.port = 0;
    server_.emplace(options, [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
      if (request.path == "/now") return reply->Send(200, {}, "");
      const std::lock_guard lock(mutex_);
      replies_.push_back(std::move(reply));
    });
    resident_ = ResidentBytes();
    child_ = fork();
    CHECK(child_ >= 0);
    if (child_ == 0) Clients{words[0], times[1]}.Run(server_->port());
    words_ = words[1];
    times_ = times[0];
    thread_ = std::thread([this] { server_->Run(1); });
  }
  ~Bench() {
    server_->Stop(milliseconds(1000));
    thread_.join();
    waitpid(child_, nullptr, 0);
  }

  void Run() {
    WaitUntil([&] { return server_->counts().requests == kIdle; });
    fmt::print("{} idle connections: {:.1f} KB of memory each\n", kIdle,
               double(ResidentBytes() - resident_) / kIdle / 1e3);
    TellClients();
    TimeGoing();
    TellClients();
    TimeStreams();
  }

 private:
  void TellClients() const { CHECK(write(words_, "x", 1) == 1); }

  template <typename Condition>
  void WaitUntil(const Condition& condition) {
    while (!condition()) std::this_thread::sleep_for(milliseconds(1));
  }
  size_t NumReplies() {
    const std::lock_guard lock(mutex_);
    return replies_.size();
  }

  static int64_t ResidentBytes() {
    std::ifstream file("/proc/self/statm");
    int64_t size, resident;
    file >> size >> resident;
    return resident * sysconf(_SC_PAGESIZE);
  }
  static double CpuSeconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
      return double(t.tv_sec) + double(t.tv_usec) * 1e-6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }

  // From a client's close to the call of OnGone.
  void TimeGoing() {
    WaitUntil([&] { return NumReplies() == kGone; });
    std::vector<double> ms;
    std::atomic<int64_t> gone{0};
    for (const auto& reply : replies_) {
      reply->OnGone([&] { gone = Clock::now().time_since_epoch().count(); });
    }
    for (int i = 0; i < kGone; ++i) {
      gone = 0;
      TellClients();
      int64_t closed = 0;
      CHECK(read(times_, &closed, sizeof(closed)) == sizeof(closed));
      WaitUntil([&] { return gone > 0; });
      ms.push_back(double(gone - closed) * 1e-6);
    }
    std::ranges::sort(ms);
    fmt::print("a waiting client that goes is known after {:.2f} ms, at most {:.2f} ms of {}\n",
               ms[kGone / 2], ms.back(), kGone);
    replies_.clear();
  }

  void TimeStreams() {
    WaitUntil([&] { return NumReplies() == kStreams; });
    for (const auto& reply : replies_) reply->Start(200, {}, {milliseconds(10'000), ": alive\n\n"});
    std::this_thread::sleep_for(kStep);
    const int64_t before = ResidentBytes();
    const std::string piece(kPieceBytes, 'x');
    const double began = CpuSeconds();
    auto next = Clock::now();
    for (int i = 0; i < kPieces; ++i) {
      for (const auto& reply : replies_) reply->Write(piece);
      std::this_thread::sleep_until(next += kStep);
    }
    const double seconds = CpuSeconds() - began;
    fmt::print("{} streams, {} bytes each every {} ms: {:.1f} us of CPU time a piece, {:+} bytes\n",
               kStreams, kPieceBytes, kStep.count(), 1e6 * seconds / (kStreams * kPieces),
               ResidentBytes() - before);
    for (const auto& reply : replies_) reply->End();
    replies_.clear();
  }

  std::optional<HttpServer> server_;
  std::thread thread_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpReply>> replies_;
  int64_t resident_ = 0;
  pid_t child_ = 0;
  int words_ = 0, times_ = 0;
};

}  // namespace
}  // namespace hillstar

int main() { hillstar::Bench().Run(); }

// That the server sees clients go, whatever it is doing for them, and replies that nobody will
// answer.
#include <algorithm>
#include <random>
#include <set>

#include "server/http_test_server.h"

namespace hillstar {
namespace {

TEST_F(HttpServerTest, SeesClientsGo) {
  Start();
  Client closes(server_->port());
  closes.Send(Get("/hold"));
  const auto waiting = Held(0);
  closes.Close();
  EXPECT_TRUE(WaitForGone(1));
  EXPECT_TRUE(waiting->is_gone());

  Client resets(server_->port());
  resets.Send(Get("/hold"));
  Held(1)->Start(200, {}, {});
  resets.ReadUntil("\r\n\r\n");
  resets.Reset();
  EXPECT_TRUE(WaitForGone(2));

  Client streams(server_->port());
  streams.Send(Get("/hold"));
  const auto stream = Held(2);
  stream->Start(200, {}, {});
  for (int i = 0; i < 100; ++i) stream->Write("piece");
  streams.ReadUntil("piece");
  streams.Close();
  EXPECT_TRUE(WaitForGone(3));
  stream->Write("more");
  stream->End();
  bool is_called = false;
  stream->OnGone([&] { is_called = true; });
  EXPECT_TRUE(is_called);
  ExpectAlive();
}

TEST_F(HttpServerTest, AnEndOfWhatTheClientSendsIsAnEnd) {
  Start();
  Client client(server_->port());
  client.Send(Get("/hold"));
  Held();
  client.CloseSendingHalf();
  EXPECT_TRUE(WaitForGone(1));
}

TEST_F(HttpServerTest, SeesClientsGoBehindWhatTheyHaveSentAhead) {
  Start();
  for (int i = 0; i < 2; ++i) {
    Client client(server_->port());
    client.Send(Get("/hold"));
    Held(size_t(i));
    // More than is read ahead, and room for it in the sockets' buffers.
    for (int j = 0; j < 50; ++j)
      client.Send("GET /" + std::string(1000, 'a') + " HTTP/1.1\r\n\r\n");
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_FALSE(Held(size_t(i))->is_gone());
    if (i == 0) {
      client.Close();
    } else {
      client.Reset();
    }
    EXPECT_TRUE(WaitForGone(i + 1));
  }
}

TEST_F(HttpServerTest, SeesAClientGoInTimeForOthersToUseItsPlace) {
  Start();
  std::vector<double> ms;
  for (size_t i = 0; i < 21; ++i) {
    Client client(server_->port());
    client.Send(Get("/hold"));
    const auto reply = Held(i);
    const auto began = Clock::now();
    client.Close();
    while (!reply->is_gone() && Clock::now() - began < std::chrono::seconds(5)) {
      std::this_thread::yield();
    }
    ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - began).count());
  }
  std::ranges::sort(ms);
  EXPECT_LT(ms[10], 50);  // the median: the machine may have had other things to do
}

// A request in pieces, of which only so many are sent; then the client goes, one way or another.
TEST_F(HttpServerTest, ClientsThatVanishLeaveNothingBehind) {
  Start();
  std::mt19937 random(7);
  const std::string request = Post("/hold", "Content-Length: 400\r\n", std::string(400, 'x'));
  constexpr int kClients = 200;
  std::set<std::shared_ptr<HttpReply>> ended;
  for (int i = 0; i < kClients; ++i) {
    Client client(server_->port());
    const size_t sent = random() % (2 * request.size());
    client.Send(std::string_view(request).substr(0, sent));
    if (sent >= request.size() && random() % 2 == 0) {
      ASSERT_TRUE(WaitFor([&] {
        const std::lock_guard lock(mutex_);
        return !held_.empty();
      }));
      const std::lock_guard lock(mutex_);
      const auto reply = held_.back();  // this client's, or that of one before
      reply->Start(200, {}, {milliseconds(1), "alive"});
      for (int j = 0; j < 100; ++j) reply->Write(std::string(random() % 2000, 'x'));
      if (random() % 2 == 0) {
        reply->End();
        ended.insert(reply);
      }
    }
    if (random() % 2 == 0) client.Reset();
  }
  EXPECT_TRUE(WaitFor([&] { return server_->counts().connections == 0; }));
  for (const auto& reply : held_) EXPECT_TRUE(reply->is_gone() || ended.contains(reply));
  ExpectAlive();
}

TEST_F(HttpServerTest, UnsentBytesTellHowFarAClientIsBehind) {
  Start();
  Client client(server_->port());
  client.Send("GET /hold HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const auto reply = Held();
  reply->Start(200, {}, {});
  constexpr size_t kBytes = size_t{24} << 20;  // more than the sockets take, less than is too much
  reply->Write(std::string(kBytes, 'x'));
  EXPECT_TRUE(WaitFor([&] { return reply->unsent_bytes() < kBytes; }));
  EXPECT_GT(reply->unsent_bytes(), kBytes / 4);
  reply->End();
  EXPECT_GT(client.ReadAll(std::chrono::seconds(20)).size(), kBytes);
  EXPECT_EQ(reply->unsent_bytes(), 0u);
}

TEST_F(HttpServerTest, RepliesThatAreLetGoOfAreNotWaitedFor) {
  Start();
  Client client(server_->port());
  client.Send(Get("/drop"));
  EXPECT_EQ(StatusOf(client.ReadUntil("request\n")), 500);
  client.Send(Get("/hold"));  // the connection goes on
  Held()->Start(200, {}, {});
  client.ReadUntil("\r\n\r\n");
  held_.clear();
  EXPECT_EQ(client.ReadAll(), "");  // no end, as of a whole answer
  EXPECT_TRUE(client.is_closed());
  Client other(server_->port());
  other.Send(Get("/half"));
  const std::string half = other.ReadAll();
  EXPECT_EQ(half.find("0\r\n\r\n"), std::string::npos);
  EXPECT_TRUE(other.is_closed());
  ExpectAlive();
}

TEST_F(HttpServerTest, AFaultOfWhoIsToldLeavesTheServerAlone) {
  Start();
  Client client(server_->port());
  client.Send(Get("/hold"));
  Held()->OnGone([] { throw std::runtime_error("a fault for the test"); });
  client.Close();
  EXPECT_TRUE(WaitFor([&] { return server_->counts().connections == 0; }));
  ExpectAlive();
}

}  // namespace
}  // namespace hillstar

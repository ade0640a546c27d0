// What the server does not put up with, over loopback sockets and raw bytes: requests that break
// the rules, that are too large or too slow, and clients that do not read.
#include "server/http_test_server.h"

namespace hillstar {
namespace {

TEST_F(HttpServerTest, RefusesWhatBreaksTheRules) {
  HttpLimits limits;
  limits.header_bytes = 4096;
  limits.target_bytes = 1000;
  limits.body_bytes = 1000;
  Start(limits);
  const std::string host = "Host: x\r\n";
  const struct {
    std::string bytes;
    int status;
  } cases[] = {
      {"GET /\r\n\r\n", 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"GET /../x HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET /%2e%2e/x HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET /a%2fb HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET /a%00b HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET /a%zz HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET * HTTP/1.1\r\n" + host + "\r\n", 400},
      {"CONNECT a:1 HTTP/1.1\r\n" + host + "\r\n", 405},
      {"TRACE / HTTP/1.1\r\n" + host + "\r\n", 405},
      {"GET /" + std::string(1100, 'a') + " HTTP/1.1\r\n" + host + "\r\n", 414},
      {"GET / HTTP/1.1\r\n" + host + "A: " + std::string(5000, 'a') + "\r\n\r\n", 431},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: 1001\r\n\r\n", 413},
      {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n5dc\r\n" +
           std::string(1500, 'a') + "\r\n0\r\n\r\n",
       413},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: x\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
      {"POST / HTTP/1.1\r\n" + host +
           "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       400},
      {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip\r\n\r\n", 501},
      {Post("/", "Transfer-Encoding:\r\nContent-Length: 1\r\n", "a"), 501},
      {Post("/", "Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"), 501},
      {Post("/", "Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n", "0\r\n\r\n"), 400},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {Post("/", "Transfer-Encoding: chunked\r\n", "zz\r\na\r\n0\r\n\r\n"), 400},
      {Post("/", "Transfer-Encoding: chunked\r\n", "-1\r\na\r\n0\r\n\r\n"), 400},
      {Post("/", "Transfer-Encoding: chunked\r\n", "fffffffffffffffff\r\na\r\n0\r\n\r\n"), 400},
      {Post("/", "Content-Length: +1\r\n", "a"), 400},
      {Post("/", "Content-Length: -1\r\n", "a"), 400},
      {Post("/", "Content-Length:\r\n", "a"), 400},
      {Post("/", "Content-Length: 99999999999999999999999\r\n", "a"), 400},
      {Post("/", "Content-Length: 1\r\nExpect: 100-continue\r\nExpect: tea\r\n", "a"), 417},
      {"FROB / HTTP/1.1\r\n" + host + "\r\n", 501},
      {"get / HTTP/1.1\r\n" + host + "\r\n", 501},
      {"GET / http/1.1\r\n" + host + "\r\n", 505},
      {"GET / HTTP/1.1\r\n" + host + "A : b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + host + "A: b\x01\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + host + "A: b\nC: d\r\n\r\n", 400},
      {"GET /..%5cx HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET ftp://x/ HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET http:///x HTTP/1.1\r\n" + host + "\r\n", 400},
      {"POST / HTTP/1.1\r\n" + host + "Expect: tea\r\nContent-Length: 1\r\n\r\na", 417},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(StatusOf(Ask(c.bytes)), c.status) << testing::PrintToString(c.bytes.substr(0, 80));
  }
  ExpectAlive();
}

TEST_F(HttpServerTest, TakesWhatIsWithinTheRules) {
  HttpLimits limits;
  limits.body_bytes = 1000;
  limits.headers = 20;
  Start(limits);
  const auto all = [](int count) {
    std::string headers = "Connection: close\r\n";
    for (int i = 2; i < count; ++i) headers += "A:\r\n";
    return headers;
  };
  EXPECT_EQ(StatusOf(Ask("GET / HTTP/1.1\r\nHost: x\r\n" + all(20) + "\r\n")), 200);
  EXPECT_EQ(StatusOf(Ask("GET / HTTP/1.1\r\nHost: x\r\n" + all(21) + "\r\n")), 431);
  const std::string last = "Connection: close\r\n", body(1000, 'x');
  EXPECT_TRUE(Ask(Post("/", last + "Content-Length: 1000\r\n", body)).ends_with(body));
  const std::string chunks = "3e8\r\n" + body + "\r\n0\r\n\r\n";
  EXPECT_TRUE(Ask(Post("/", last + "Transfer-Encoding: Chunked\r\n", chunks)).ends_with(body));
  EXPECT_TRUE(Ask(Post("/", last + "Content-Length: 1\r\nContent-Length: 1\r\n", "a"))
                  .ends_with("POST / a"));
  EXPECT_TRUE(
      Ask("GET HTTP://y/a?b#c HTTP/1.1\r\nHost: x\r\n" + last + "\r\n").ends_with("GET /a "));
}

// An end of a line that never comes is not waited for in memory.
TEST_F(HttpServerTest, WhatStandsBetweenChunksIsBounded) {
  Start();
  for (const std::string begin : {"1;", "0\r\nA: "}) {
    Client client(server_->port());
    client.Send(Post("/", "Transfer-Encoding: chunked\r\n", begin));
    const std::string more(size_t{1} << 16, 'a');
    for (int i = 0; i < 32 && client.Send(more); ++i) continue;
    EXPECT_EQ(StatusOf(client.ReadUntil("\r\n\r\n")), 400) << begin;
  }
}

TEST_F(HttpServerTest, ClientsReadWhyThoughTheyAreStillSending) {
  Start();
  Client client(server_->port());
  const std::string body(size_t{40} << 20, 'x');
  EXPECT_TRUE(client.Send(Post("/", "Content-Length: 41943040\r\n", body)));
  EXPECT_EQ(StatusOf(client.ReadAll()), 413);
}

TEST_F(HttpServerTest, ASteadyBodyMayTakeItsTime) {
  HttpLimits limits;
  limits.body_time = milliseconds(500);
  limits.body_bytes_per_second = 2000;
  Start(limits);
  Client client(server_->port());
  client.Send(Post("/", "Content-Length: 5000\r\n"));
  const auto began = Clock::now();
  for (int i = 0; i < 50; ++i) {  // 5000 bytes in a second
    client.Send(std::string(100, 'x'));
    std::this_thread::sleep_until(began + (i + 1) * milliseconds(20));
  }
  EXPECT_EQ(StatusOf(client.ReadUntil("xxx")), 200);
}

TEST_F(HttpServerTest, GivesUpOnSlowClients) {
  HttpLimits limits;
  limits.header_time = milliseconds(150);
  limits.body_time = milliseconds(150);
  limits.idle_time = milliseconds(150);
  Start(limits);
  EXPECT_EQ(StatusOf(Ask("GET / HT")), 408);
  EXPECT_EQ(StatusOf(Ask("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab")), 408);
  Client idle(server_->port());
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_TRUE(idle.is_closed());
  // A byte now and then does not win time, whenever it comes.
  std::vector<std::unique_ptr<Client>> dripping;
  for (int i = 0; i < 40; ++i) dripping.push_back(std::make_unique<Client>(server_->port()));
  const auto began = Clock::now();
  while (!dripping.empty() && Clock::now() - began < std::chrono::seconds(5)) {
    std::erase_if(dripping, [](const auto& client) { return !client->Send("G"); });
  }
  EXPECT_TRUE(dripping.empty());
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(3));
}

TEST_F(HttpServerTest, DropsClientsThatDoNotRead) {
  HttpLimits limits;
  limits.write_time = milliseconds(200);
  limits.unsent_bytes = size_t{64} << 20;
  Start(limits);
  Client client(server_->port());
  client.ShrinkBuffer();
  client.Send(Get("/hold"));
  const auto reply = Held();
  reply->Start(200, {}, {});
  reply->Write(std::string(size_t{32} << 20, 'x'));
  EXPECT_TRUE(WaitForGone(1));
}

TEST_F(HttpServerTest, BoundsWhatWaitsForAClient) {
  HttpLimits limits;
  limits.unsent_bytes = size_t{8} << 20;
  Start(limits);
  Client client(server_->port());
  client.ShrinkBuffer();
  client.Send(Get("/hold"));
  const auto reply = Held();
  reply->Start(200, {}, {});
  for (int i = 0; i < 32; ++i) reply->Write(std::string(size_t{1} << 20, 'x'));
  EXPECT_TRUE(WaitForGone(1));
}

TEST_F(HttpServerTest, TakesSoManyConnectionsAndNoMore) {
  HttpLimits limits;
  limits.connections = 3;
  Start(limits);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    clients.back()->Send(Get("/x"));
    clients.back()->ReadUntil("/x");
  }
  for (int i = 0; i < 5; ++i) {
    Client refused(server_->port());
    std::this_thread::sleep_for(milliseconds(5));
    refused.Send(Get("/x"));
    const std::string answer = refused.ReadAll();
    EXPECT_EQ(StatusOf(answer), 503);
    EXPECT_NE(answer.find("Retry-After: 1"), std::string::npos);
  }
  clients.clear();
  std::this_thread::sleep_for(milliseconds(50));
  ExpectAlive();
}

}  // namespace
}  // namespace hillstar

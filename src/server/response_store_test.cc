// What is kept of responses, and what goes when there are too many.
#include "server/response_store.h"

#include <gtest/gtest.h>

namespace hillstar {
namespace {

ResponseTurn TurnOf(size_t bytes) {
  return {std::string(bytes / 2, 'i'), std::string(bytes - bytes / 2, 'r')};
}

TEST(ResponseStore, IdsAreLongAndNeverTheSame) {
  const std::string a = ResponseStore::NewId(), b = ResponseStore::NewId();
  EXPECT_EQ(a.size(), 5 + 32u);
  EXPECT_TRUE(a.starts_with("resp_"));
  EXPECT_EQ(a.find_first_not_of("0123456789abcdef", 5), std::string::npos);
  EXPECT_NE(a, b);
}

TEST(ResponseStore, AConversationHoldsTheTurnsBeforeIt) {
  ResponseStore store;
  store.Add("a", {}, {"[1]", "{}"});
  store.Add("b", store.Find("a"), {"[2]", "{}"});
  ASSERT_EQ(store.Find("b").size(), 2u);
  EXPECT_EQ(store.Find("b")[0]->input_items, "[1]");
  EXPECT_EQ(store.Find("b")[1]->input_items, "[2]");
  EXPECT_TRUE(store.Find("c").empty());
  EXPECT_EQ(store.num_bytes(), 10u);
}

TEST(ResponseStore, TheOldestGoFirst) {
  ResponseStore store({.responses = 2, .bytes = 1000});
  for (const char* id : {"a", "b", "c"}) store.Add(id, {}, TurnOf(10));
  EXPECT_TRUE(store.Find("a").empty());
  EXPECT_FALSE(store.Find("b").empty());
  store.Add("d", {}, TurnOf(985));  // 5 bytes more than fit beside b and c together
  EXPECT_TRUE(store.Find("b").empty());
  EXPECT_FALSE(store.Find("c").empty());
  EXPECT_EQ(store.num_bytes(), 995u);
  store.Add("e", {}, TurnOf(1000));
  EXPECT_EQ(store.num_responses(), 1u);
  EXPECT_EQ(store.num_bytes(), 1000u);
}

TEST(ResponseStore, OneThatIsTooLargePushesNoOthersOut) {
  ResponseStore store({.responses = 10, .bytes = 100});
  store.Add("a", {}, TurnOf(100));
  store.Add("b", {}, TurnOf(101));
  EXPECT_FALSE(store.Find("a").empty());
  EXPECT_TRUE(store.Find("b").empty());
}

// Its turn stays as long as one that follows it, and counts for as long.
TEST(ResponseStore, WhatOthersFollowStaysWithThem) {
  ResponseStore store({.responses = 10, .bytes = 100});
  store.Add("a", {}, TurnOf(40));
  store.Add("b", store.Find("a"), TurnOf(40));
  EXPECT_TRUE(store.Remove("a"));
  EXPECT_FALSE(store.Remove("a"));
  EXPECT_EQ(store.Find("b").size(), 2u);
  EXPECT_EQ(store.num_bytes(), 80u);
  store.Add("c", {}, TurnOf(40));
  EXPECT_TRUE(store.Find("b").empty());
  EXPECT_EQ(store.num_bytes(), 40u);
}

TEST(ResponseStore, RemovingAndAddingForEverKeepsNothing) {
  ResponseStore store({.responses = 4, .bytes = 1 << 20});
  store.Add("stays", {}, TurnOf(10));
  for (int i = 0; i < 1000; ++i) {
    store.Add(std::to_string(i), {}, TurnOf(10));
    EXPECT_TRUE(store.Remove(std::to_string(i)));
  }
  EXPECT_FALSE(store.Find("stays").empty());
  EXPECT_EQ(store.num_bytes(), 10u);
}

}  // namespace
}  // namespace hillstar

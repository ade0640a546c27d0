#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include <limits>

#include "device/host_memory.h"

namespace hillstar {
namespace {

EngineOptions BuiltIn() {
  EngineOptions options;
  options.model = std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket";
  options.num_threads = 2;
  return options;
}

std::string Refusal(const MemoryPlan& plan, const EngineSizes& sizes, uint64_t available) {
  try {
    CheckFits(plan, sizes, available);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kBudget);
    return e.what();
  }
  return "";
}

TEST(CheckFits, NamesThePartsAndAContextThatFits) {
  MemoryPlan plan;
  plan.dense_weights = 2'000'000'000;
  plan.experts = 1'000'000'000;
  plan.latent_kv = 3'500'000'000;
  plan.index_keys = 500'000'000;
  plan.workspace = 400'000'000;
  plan.program = 100'000'000;
  const EngineSizes sizes{8192, 512, 2};
  EXPECT_EQ(Refusal(plan, sizes, 7'500'000'000), "");
  // 2 GB are left for the context, half of what 8,192 tokens take.
  EXPECT_EQ(Refusal(plan, sizes, 5'500'000'000),
            "5.50 GB of memory are available, and the model needs 7.50: 3.00 for weights, 4.00 for "
            "a context of 8192 tokens, 0.50 for the rest; a context of 4096 tokens fits "
            "(--context)");
  const auto ends_with = [&](uint64_t available, const char* end) {
    const std::string text = Refusal(plan, sizes, available);
    EXPECT_TRUE(text.ends_with(end)) << text;
  };
  EngineSizes of_long = sizes;
  of_long.kv_tokens = 6000;
  EXPECT_TRUE(Refusal(plan, of_long, 5'500'000'000)
                  .ends_with("; a context of 4096 tokens fits (--context), for shorter sequences"));
  // The addresses of pages grow with the context too.
  MemoryPlan on_gpu = plan;
  on_gpu.page_addresses = 4'000'000'000;
  on_gpu.workspace += on_gpu.page_addresses;
  EXPECT_TRUE(Refusal(on_gpu, sizes, 5'500'000'000)
                  .ends_with("; a context of 2048 tokens fits (--context)"));
  ends_with(3'200'000'000, "; --prefill-chunk and --context make the rest smaller");
  ends_with(3'000'000'000, "; the weights alone do not fit");
}

// Of a GPU's memory only what lies there is asked for.
TEST(CheckFits, NamesTheDevice) {
  MemoryPlan plan;
  plan.dense_weights = 3'000'000'000;
  plan.latent_kv = 4'000'000'000;
  plan.workspace = 500'000'000;
  plan.program = 9'000'000'000;
  const EngineSizes sizes{8192, 512, 2};
  EXPECT_NO_THROW(CheckFits(plan, sizes, 7'500'000'000, "cuda:1"));
  try {
    CheckFits(plan, sizes, 5'500'000'000, "cuda:1");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "5.50 GB of memory on cuda:1 are available, and the model needs 7.50: 3.00 for "
              "weights, 4.00 for a context of 8192 tokens, 0.50 for the rest; a context of 4096 "
              "tokens fits (--context)");
  }
}

TEST(PredictMemory, OfAGpuDoesNotDependOnThreads) {
  EngineOptions options = BuiltIn();
  const MemoryPlan cpu = PredictMemory(options);
  options.device = "cuda:0";
  options.cuda_library = HILLSTAR_CUDA_LIBRARY;
  const MemoryPlan gpu = PredictMemory(options);
  EXPECT_EQ(gpu.latent_kv, cpu.latent_kv);
  EXPECT_EQ(gpu.dense_weights, cpu.dense_weights);
  options.num_threads = 8;
  EXPECT_EQ(PredictMemory(options).workspace, gpu.workspace);
}

TEST(PredictMemory, RefusesADeviceOfNoSuchName) {
  EngineOptions options = BuiltIn();
  options.cuda_library = HILLSTAR_CUDA_LIBRARY;
  for (const char* name : {"", "nope", "cuda:", "cuda:x", "cuda:-1", "cuda0"}) {
    options.device = name;
    try {
      PredictMemory(options);
      ADD_FAILURE() << name << " was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_EQ(std::string(error.what()),
                "--device '" + options.device + "' is none of auto, cpu, cuda and cuda:N (cuda:0)");
    }
  }
}

// 2,000 MB are left for pages of 1 MB.
TEST(CheckFits, NamesWhatAskedForThePages) {
  MemoryPlan plan;
  plan.dense_weights = 3'000'000'000;
  plan.latent_kv = 30'000'000'000;
  plan.num_pages = 30'000;
  plan.workspace = 500'000'000;
  EngineSizes sizes{8192, 512, 2};
  sizes.kv_bytes = 30'000'000'000;
  const std::string needs =
      "5.50 GB of memory are available, and the model needs 33.50: 3.00 for weights, 30.00 for ";
  const std::string asked = needs + "pages (--kv-memory 30000), 0.50 for the rest";
  EXPECT_EQ(Refusal(plan, sizes, 5'500'000'000), asked + "; 2000 MB of pages fit (--kv-memory)");
  // A context of more pages than that would be refused in turn.
  sizes.context_tokens = 200'000;
  EXPECT_EQ(Refusal(plan, sizes, 5'500'000'000),
            asked +
                "; 2000 MB of pages fit (--kv-memory) with a context of 128000 tokens "
                "(--context)");
  EXPECT_TRUE(
      Refusal(plan, sizes, 3'500'900'000)
          .ends_with("; no page fits; --prefill-chunk and --context make the rest smaller"));
  sizes.max_sequences = 4;
  EXPECT_TRUE(Refusal(plan, sizes, 3'500'900'000)
                  .ends_with("; no page fits; fewer sequences at once, --prefill-chunk and "
                             "--context make the rest smaller"));
  // And so would --kv-memory that holds fewer tokens than all sequences have.
  sizes.kv_bytes = 0;
  sizes.kv_tokens = 300'000;
  EXPECT_EQ(Refusal(plan, sizes, 5'500'000'000),
            needs +
                "the 300000 tokens of all sequences at once, 0.50 for the rest; pages of "
                "128000 tokens fit, for fewer or shorter sequences with a context of 128000 tokens "
                "(--context)");
  sizes.kv_bytes = 30'000'000'000;
  EXPECT_EQ(Refusal(plan, sizes, 5'500'000'000),
            asked +
                "; pages of 128000 tokens fit, for fewer or shorter sequences with a context "
                "of 128000 tokens (--context)");
  sizes.context_tokens = 8192;
  EXPECT_EQ(Refusal(plan, sizes, 5'500'000'000),
            asked + "; pages of 128000 tokens fit, for fewer or shorter sequences");
}

// A GPU holds the pages' addresses beside them, which pages that do not fit leave no room for.
TEST(CheckFits, TakesTheAddressesOfPagesForPages) {
  MemoryPlan plan;
  plan.dense_weights = 3'000'000'000;
  plan.latent_kv = 800'000'000'000;
  plan.num_pages = 400'000'000;  // of 2,000 bytes and 16
  plan.page_addresses = 6'400'000'000;
  plan.workspace = 6'500'000'000;
  EngineSizes sizes{8192, 512, 2};
  sizes.kv_bytes = 800'000'000'000;
  EXPECT_EQ(Refusal(plan, sizes, 5'116'000'000),
            "5.12 GB of memory are available, and the model needs 809.50: 3.00 for weights, 800.00 "
            "for pages (--kv-memory 800000), 6.50 for the rest; 2000 MB of pages fit "
            "(--kv-memory)");
}

std::string KvRefusal(EngineOptions options) {
  try {
    PredictMemory(options);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  return "";
}

// Whoever follows the advice is not refused again.
TEST(PredictMemory, TooLittleKvMemoryIsRefusedWithWhatWorks) {
  EngineOptions options = BuiltIn();
  options.load_mtp = false;
  options.kv_bytes = 1'000'000;
  EXPECT_EQ(KvRefusal(options),
            "1.0 MB hold 128 tokens, less than the context of 16384 (--kv-memory 128 or more, or "
            "--context 128 or less)");
  options.context_tokens = 128;
  EXPECT_EQ(KvRefusal(options), "");
  options.context_tokens = 0;
  options.kv_bytes = 128'000'000;
  EXPECT_EQ(KvRefusal(options), "");
  options.kv_bytes = 1000;  // holds no page
  options.context_tokens = 128;
  EXPECT_EQ(KvRefusal(options),
            "0.0 MB hold 0 tokens, less than the context of 128 (--kv-memory 1 or more)");
  options.kv_tokens = 20'000;
  EXPECT_EQ(KvRefusal(options),
            "0.0 MB hold 0 tokens, less than the 20032 of all sequences at once (--kv-memory 157 "
            "or more)");
  // A smaller context alone would be refused for the sequences.
  options.kv_bytes = 1'000'000;
  options.kv_tokens = 384;
  options.context_tokens = 16384;
  EXPECT_EQ(KvRefusal(options),
            "1.0 MB hold 128 tokens, less than the context of 16384 (--kv-memory 128 or more)");
  options.kv_tokens = 20'000;
  options.kv_bytes = 157'000'000;
  EXPECT_EQ(KvRefusal(options), "");
}

TEST(PredictMemory, GrowsWithContextChunkAndThreads) {
  EngineOptions options = BuiltIn();
  options.context_tokens = 1024;
  const MemoryPlan small = PredictMemory(options);
  options.context_tokens = 4096;
  const MemoryPlan longer = PredictMemory(options);
  EXPECT_EQ(longer.latent_kv, 4 * small.latent_kv);
  EXPECT_EQ(longer.index_keys, 4 * small.index_keys);
  EXPECT_EQ(longer.dense_weights, small.dense_weights);
  options.prefill_chunk = 64;
  const MemoryPlan narrow = PredictMemory(options);
  EXPECT_LT(narrow.workspace, longer.workspace / 2);
  options.num_threads = 8;
  EXPECT_GT(PredictMemory(options).workspace, narrow.workspace);
}

// An engine for long contexts takes more for a few tokens than one that is made for a few.
TEST(PredictMemory, OfFewTokensCountsWhatTheyTouch) {
  EngineOptions options = BuiltIn();
  const MemoryPlan whole = PredictMemory(options), few = PredictMemory(options, 64);
  EXPECT_EQ(PredictMemory(options, 16384).total(), whole.total());
  options.context_tokens = 64;
  const MemoryPlan made_for_few = PredictMemory(options);
  EXPECT_EQ(PredictMemory(options, 64).total(), made_for_few.total());
  // A huge page each.
  EXPECT_EQ(few.latent_kv, uint64_t{2} << 20);
  EXPECT_EQ(few.index_keys, uint64_t{2} << 20);
  EXPECT_GT(few.workspace, 2 * made_for_few.workspace);
  EXPECT_LT(few.workspace, whole.workspace);
}

TEST(PredictMemory, OfFewTokensOnAGpuTakesAllButPages) {
  EngineOptions options = BuiltIn();
  options.device = "cuda:0";
  options.cuda_library = HILLSTAR_CUDA_LIBRARY;
  const MemoryPlan whole = PredictMemory(options), few = PredictMemory(options, 64);
  EXPECT_EQ(few.workspace, whole.workspace);
  EXPECT_EQ(256 * few.latent_kv, whole.latent_kv);
  EXPECT_EQ(256 * few.index_keys, whole.index_keys);
}

TEST(ResidentMemory, IsOfWholeHugePagesInLargeBuffers) {
  constexpr uint64_t kHuge = uint64_t{2} << 20;
  EXPECT_EQ(ResidentBytes(kHuge - 1, 5000), 5000u);
  EXPECT_EQ(ResidentBytes(kHuge, 1), kHuge);
  EXPECT_EQ(ResidentBytes(3 * kHuge, 0), 0u);
  EXPECT_EQ(ResidentBytes(3 * kHuge, kHuge + 1), 2 * kHuge);
  EXPECT_EQ(ResidentBytes(kHuge + 4096, kHuge + 1), kHuge + 4096);
}

TEST(PredictMemory, WithoutALibrarySaysWhatToDo) {
  EngineOptions options = BuiltIn();
  options.device = "cuda:1";
  options.cuda_library = "/nowhere/lib.so";
  try {
    PredictMemory(options);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    EXPECT_EQ(std::string(error.what()),
              "the CUDA library knows what a model takes on --device cuda:1, and there is no "
              "/nowhere/lib.so; a build with CUDA makes it, --device cpu tells of the CPU");
  }
}

// Bytes a token and layer for 512 + 64 values, and a token's index key of 128.
TEST(PredictMemory, KvFormatsTakeTheBytesOfTheContract) {
  const auto row = [](KvFormat format) { return KvRowLayout{512, 64, format}.row_bytes(); };
  EXPECT_EQ(row(KvFormat::kQ15), 1168);
  EXPECT_EQ(row(KvFormat::kQ8), 656);
  EXPECT_EQ(row(KvFormat::kFp8), 592);
  EXPECT_EQ((IndexKeyLayout{128, NumIndexPlanes(KvFormat::kQ15)}.page_bytes()), 64 * 260);
  EXPECT_EQ((IndexKeyLayout{128, NumIndexPlanes(KvFormat::kQ8)}.page_bytes()), 64 * 132);
  EXPECT_EQ((IndexKeyLayout{128, NumIndexPlanes(KvFormat::kFp8)}.page_bytes()), 64 * 132);
  EngineOptions options = BuiltIn();
  options.context_tokens = 1024;
  const MemoryPlan q15 = PredictMemory(options);
  options.kv_format = "q8";
  const MemoryPlan q8 = PredictMemory(options);
  options.kv_format = "fp8";
  const MemoryPlan fp8 = PredictMemory(options);
  EXPECT_LT(q8.latent_kv, q15.latent_kv);
  EXPECT_LT(fp8.latent_kv, q8.latent_kv);
  EXPECT_LT(q8.index_keys, q15.index_keys * 11 / 20);
  EXPECT_EQ(fp8.index_keys, q8.index_keys);
  options.kv_format = "q4";
  EXPECT_THROW(PredictMemory(options), Error);
}

TEST(PredictMemory, RefusesWhatTheModelDoesNotServe) {
  EngineOptions options = BuiltIn();
  options.context_tokens = 1 << 20;
  EXPECT_THROW(PredictMemory(options), Error);
  options.context_tokens = 0;
  options.prefill_chunk = 0;
  EXPECT_THROW(PredictMemory(options), Error);
  options.prefill_chunk = 512;
  options.num_threads = -1;
  EXPECT_THROW(PredictMemory(options), Error);
}

TEST(AvailableMemory, IsReadFromTheSystemsFiles) {
  constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(SystemAvailableBytes("MemTotal:  9 kB\nMemAvailable:   7 kB\nX: 1 kB\n"), 7 * 1024u);
  EXPECT_EQ(SystemAvailableBytes("MemTotal:  9 kB\n"), kUnknown);
  EXPECT_EQ(GroupAvailableBytes("max\n", "5\n", ""), kUnknown);
  EXPECT_EQ(GroupAvailableBytes("", "", ""), kUnknown);
  EXPECT_EQ(GroupAvailableBytes("100\n", "30\n", ""), 70u);
  // File cache gives way.
  EXPECT_EQ(GroupAvailableBytes("100\n", "90\n", "anon 10\nactive_file 50\ninactive_file 30\n"),
            90u);
  EXPECT_EQ(GroupAvailableBytes("100\n", "120\n", "anon 120\n"), 0u);
  const uint64_t here = AvailableMemoryBytes();
  EXPECT_GT(here, uint64_t{1} << 20);
  EXPECT_LT(here, uint64_t{1} << 60) << "this machine does not tell";
}

}  // namespace
}  // namespace hillstar

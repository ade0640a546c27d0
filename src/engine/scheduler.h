// Decides before every step which sequences compute what: pure functions over plain structs,
// without memory, clock or state of their own. A plan depends on its input's values alone, not on
// their order. Any thread may call; nothing is kept.
//
// A page counts here once for all layers: page_tokens tokens' rows. `arrival` orders sequences;
// older means a smaller arrival. A sequence answers once its prompt is computed: the one token that
// it has left to compute is one that was drawn. All others, prompts for short, have tokens to
// compute that nobody waits for but themselves.
//
// 1. Answers first. Every running sequence that answers gets its token in every step. If there are
//    more of them than step_tokens, those whose last step is longest ago get it, the older first
//    among equals: of n sequences that run or are paused, none that stays running waits longer than
//    ceil(n / step_tokens) steps.
// 2. Prompts get what answers leave of step_tokens, and in a step with answers no more than
//    mixed_prompt_tokens, so that a long prompt does not stall running answers. Answers that fill
//    whole steps stop prompts until one of them ends.
// 3. The oldest prompt gets half of the prompts' tokens, rounded up. The next kSharingPrompts
//    prompts share the other half equally, the older ones getting what does not divide. What a
//    prompt leaves, since it has fewer tokens to compute, goes to the oldest prompt, then to the
//    next one, and so on down the line. Nothing is left over while a prompt has tokens to compute.
//    Example: of 64 tokens for prompts A, B, C in order of arrival, with 1000, 4 and 300 tokens to
//    compute, A is due 32, B and C 16 each. B takes its 4 and is done; its other 12 go to A. So the
//    step computes 44 of A, 4 of B, 16 of C, and B, though behind A, answers after one step.
// 4. Paused and waiting sequences enter in order of arrival, as long as fewer than max_running run.
//    One enters if, once every running sequence has the pages of all its known tokens, there are
//    pages for all known tokens of this one and a page of head room for each that then runs. Nobody
//    overtakes an older one that does not fit. Where nothing runs, the first enters without head
//    room. By rule 5 those that run are older than those paused, and those than the waiting ones.
// 5. If the pages do not suffice for the step's tokens, running sequences are paused, the latest
//    arrival first, until they do for the tokens of those that stay. The oldest is never paused:
//    CheckAdmissible has seen to it that it can go on alone. A plan that pauses lets nobody enter,
//    and by the head room of rule 4 none of the page_tokens plans after an entry pauses anybody.
// 6. A plan computes at least one token as long as there are sequences, provided that pages are
//    held by running sequences and the prefix index only; where num_shared_pages says too much, it
//    computes or pauses. So every sequence ends.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hillstar {

// Prompts behind the oldest that share half of the prompts' tokens.
inline constexpr int64_t kSharingPrompts = 4;

enum class SequencePhase {
  kWaiting,  // never ran
  kRunning,  // holds pages and computes
  kPaused,   // ran; its pages were given up, its rows are kept elsewhere or computed anew
};

struct ScheduledSequence {
  int64_t id = 0;
  int64_t arrival = 0;  // order of submission; unique
  SequencePhase phase = SequencePhase::kWaiting;
  // The prompt's, and those drawn since. A step computes up to num_known - num_computed >= 1.
  int64_t num_known = 0;
  // Tokens whose rows exist; of one that does not run, those that it will have on entering: what
  // the prefix index gives it, or what was kept of it. Too few of a waiting one is safe, but then a
  // share may pass what is left to compute.
  int64_t num_computed = 0;
  bool answers = false;   // REQUIRES num_known == num_computed + 1
  int64_t num_pages = 0;  // in its page table; 0 unless running
  // Of those pages, or of those that it will take over on entering, the ones that an older running
  // sequence holds too: pausing does not give them back, entering does not take them. Counting
  // pages that only a younger one holds says too much, which pauses too many at worst.
  int64_t num_shared_pages = 0;
  int64_t last_step = 0;  // number of the latest step that computed tokens of it; 0: none
};

struct SchedulerLimits {
  int64_t step_tokens = 512;         // in one step, >= 1
  int64_t mixed_prompt_tokens = 64;  // of prompts in a step with answers, >= 1
  int64_t max_running = 512;         // sequences, >= 1
  int64_t available_pages = 0;       // free, or held by nobody but the prefix index
  int64_t total_pages = 0;
  int64_t page_tokens = 64;
};

// To be applied in this order. Pages of a prefix are to be taken over for all that resume or are
// admitted before any of them takes other pages, which may push pages out of the prefix index.
struct StepPlan {
  struct Share {
    int64_t id = 0;
    int64_t num_tokens = 0;  // >= 1
    bool operator==(const Share&) const = default;
  };
  std::vector<int64_t> pause;   // ids, the latest first
  std::vector<int64_t> resume;  // ids, the oldest first
  std::vector<int64_t> admit;   // ids, the oldest first
  std::vector<Share> shares;    // of those that then run, the oldest first
  bool operator==(const StepPlan&) const = default;
};

StepPlan PlanStep(std::span<const ScheduledSequence> sequences, const SchedulerLimits& limits);

// Whether all pages together hold a prompt and an answer of up to max_tokens, both >= 1. Every
// sequence given to PlanStep has to have passed.
// Errors: kBudget with the tokens, the pages and what to change.
void CheckAdmissible(int64_t prompt_tokens, int64_t max_tokens, const SchedulerLimits& limits);

}  // namespace hillstar

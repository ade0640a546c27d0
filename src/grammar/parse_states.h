// Where a text may stand in a grammar: sets of places of a push-down automaton, numbered, with the
// set that each byte leads to kept once it is known. So following a text is one look-up a byte, and
// new sets are made only where a text goes for the first time. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "grammar/push_down.h"

namespace hillstar {

class ParseStates {
 public:
  // Numbers hold until Drop or Restart. kDead: the text is no beginning of a sentence.
  using State = int32_t;
  static constexpr State kDead = 0;
  // A stack of calls that are open, as a number: its last frame. The lowest is the whole grammar,
  // or the rule in question.
  using Stack = uint32_t;
  static constexpr Stack kBottom = 0;
  struct Place {
    uint32_t node;
    Stack stack;
    bool operator==(const Place&) const = default;
  };

  explicit ParseStates(std::shared_ptr<const PushDown> grammar);

  const PushDown& grammar() const { return *grammar_; }
  // The state of one place.
  State Of(Place place);
  // Where the rule that was called last ends. REQUIRES: not kBottom.
  Place Returned(Stack stack) const { return {frames_[stack].node, frames_[stack].below}; }

  State Next(State state, uint8_t byte) {
    const int32_t known = next_[size_t(state) * num_classes_ + grammar_->class_of_byte[byte]];
    return known >= 0 ? known : FindNext(state, byte);
  }
  State NextOfToken(State state, int32_t id);
  // Where the text stands in one or the other.
  State Either(State a, State b);
  // Whether the lowest rule may end here.
  bool can_end(State state) const { return states_[size_t(state)].can_end; }
  // The places right behind the last byte; what they call follows from them.
  std::span<const Place> places(State state) const;
  // Those from which a byte or a token may come.
  std::span<const Place> open_places(State state) const;
  // Bytes of the shortest end of a sentence; tokens of the grammar count as one.
  uint32_t MinBytes(State state) const;

  // Whether a text had so many places at once that some were left out. Then what one node allows
  // may be less where a text stands than it is by itself.
  bool was_clipped() const { return was_clipped_; }
  // Counts what has been computed, to bound what one walk may cost.
  int64_t work() const { return work_; }

  // Whether so many states are known that memory should be given back.
  bool is_full() const { return states_.size() > kMaxStates; }
  bool has_many_frames() const { return frames_.size() > frames_limit_; }
  // Forgets all states but `keep`, whose numbers it changes. Stacks stay.
  void Drop(std::span<State> keep);
  // Forgets states and stacks but those of `state`; returns its new number.
  State Restart(State state);

 private:
  // Of each state at most 1 KB for the next ones, so 4 MB.
  static constexpr size_t kMaxStates = 4096;
  // Or twice as many as are in use, so that deep nesting does not make each step long.
  static constexpr size_t kMaxFrames = 65536;
  // More places at once mean a grammar that says the same in very many ways. Further ones are left
  // out: fewer texts are allowed, never more. Bounds what one byte costs to about 20 us.
  static constexpr size_t kMaxPlaces = 1024;

  struct Frame {
    uint32_t node;
    Stack below;
    uint32_t min_bytes;  // from the frame's node to the end of all
  };
  struct StateData {
    uint32_t places_begin, places_end;  // of places_
    uint32_t open_begin, open_end;      // likewise
    bool can_end;
  };

  State FindNext(State state, uint8_t byte);
  // The state of places that may repeat; takes the list over.
  State Intern(std::vector<Place>* places, bool can_end);
  void Add(Place place, std::vector<Place>* places, bool* can_end) const;
  bool HasSeen(Place place);
  void FindOpenPlaces(std::span<const Place> places, StateData* data);
  Stack Push(uint32_t node, Stack below);
  void Clear();
  uint32_t MinBytes(Place place) const;

  std::shared_ptr<const PushDown> grammar_;
  size_t num_classes_;
  std::vector<StateData> states_;
  std::vector<Place> places_;
  std::vector<State> next_;  // by state and class of bytes; -1: not known yet
  std::unordered_multimap<uint64_t, State> state_ids_;
  std::vector<Frame> frames_;
  size_t frames_limit_ = kMaxFrames;
  std::unordered_map<uint64_t, Stack> frame_ids_;
  std::vector<Place> work_list_;           // scratch of FindOpenPlaces
  std::unordered_set<uint64_t> has_seen_;  // likewise, of long lists
  std::vector<Place> scratch_;
  int64_t work_ = 0;
  bool was_clipped_ = false;
};

}  // namespace hillstar

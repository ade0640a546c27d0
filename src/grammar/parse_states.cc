#include "grammar/parse_states.h"

#include <algorithm>

#include "core/check.h"

namespace hillstar {
namespace {

uint64_t Key(uint32_t node, uint32_t stack) { return uint64_t{node} << 32 | stack; }
bool IsBefore(ParseStates::Place a, ParseStates::Place b) {
  return Key(a.node, a.stack) < Key(b.node, b.stack);
}

}  // namespace

ParseStates::ParseStates(std::shared_ptr<const PushDown> grammar)
    : grammar_(std::move(grammar)), num_classes_(grammar_->byte_of_class.size()) {
  frames_.push_back({0, kBottom, 0});
  Clear();
}

void ParseStates::Clear() {
  states_.assign(1, {0, 0, 0, 0, false});
  places_.clear();
  next_.assign(num_classes_, kDead);
  state_ids_.clear();
}

ParseStates::State ParseStates::Of(Place place) {
  bool can_end = false;
  scratch_.clear();
  Add(place, &scratch_, &can_end);
  return Intern(&scratch_, can_end);
}

// A rule that is over leads to where it was called, at once.
void ParseStates::Add(Place place, std::vector<Place>* places, bool* can_end) const {
  while (grammar_->nodes[place.node].is_end) {
    if (place.stack == kBottom) {
      *can_end = true;
      return;
    }
    place = Returned(place.stack);
  }
  places->push_back(place);
}

ParseStates::Stack ParseStates::Push(uint32_t node, Stack below) {
  const auto [found, is_new] = frame_ids_.emplace(Key(node, below), Stack(frames_.size()));
  if (is_new) {
    const uint64_t bytes = uint64_t{grammar_->nodes[node].min_bytes} + frames_[below].min_bytes;
    frames_.push_back({node, below, uint32_t(std::min<uint64_t>(bytes, UINT32_MAX))});
  }
  return found->second;
}

ParseStates::State ParseStates::Intern(std::vector<Place>* places, bool can_end) {
  if (places->empty() && !can_end) return kDead;
  std::sort(places->begin(), places->end(), IsBefore);
  places->erase(std::unique(places->begin(), places->end()), places->end());
  if (places->size() > kMaxPlaces) {
    places->resize(kMaxPlaces);
    was_clipped_ = true;
  }
  uint64_t hash = can_end;
  for (const Place place : *places) {
    hash = (hash ^ Key(place.node, place.stack)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  const auto [first, last] = state_ids_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    // A state that can end because a rule that is not over may end does so by its places.
    if (std::ranges::equal(this->places(it->second), *places) &&
        (states_[size_t(it->second)].can_end || !can_end)) {
      return it->second;
    }
  }
  const auto state = State(states_.size());
  StateData data{};
  data.can_end = can_end;
  data.places_begin = uint32_t(places_.size());
  places_.insert(places_.end(), places->begin(), places->end());
  data.places_end = uint32_t(places_.size());
  FindOpenPlaces(*places, &data);
  states_.push_back(data);
  next_.resize(next_.size() + num_classes_, -1);
  state_ids_.emplace(hash, state);
  return state;
}

// Notes the place; long lists are hashed, short ones searched, which is faster.
bool ParseStates::HasSeen(Place place) {
  constexpr size_t kShort = 32;
  if (work_list_.size() < kShort) return std::ranges::find(work_list_, place) != work_list_.end();
  if (has_seen_.empty()) {
    for (const Place known : work_list_) has_seen_.insert(Key(known.node, known.stack));
  }
  return !has_seen_.insert(Key(place.node, place.stack)).second;
}

void ParseStates::FindOpenPlaces(std::span<const Place> places, StateData* data) {
  data->open_begin = uint32_t(places_.size());
  work_list_.assign(places.begin(), places.end());
  if (!has_seen_.empty()) has_seen_.clear();
  const auto add = [&](Place place) {
    if (work_list_.size() >= 2 * kMaxPlaces) {
      was_clipped_ = true;
    } else if (!HasSeen(place)) {
      work_list_.push_back(place);
    }
  };
  for (size_t done = 0; done < work_list_.size(); ++done) {
    const Place place = work_list_[done];
    const PushDown::Node& node = grammar_->nodes[place.node];
    work_ += 1 + int64_t(node.call_end - node.call_begin);
    for (uint32_t i = node.call_begin; i < node.call_end; ++i) {
      const PushDown::CallEdge& call = grammar_->call_edges[i];
      // A call that is the last of its rule needs no way back to it.
      const bool is_last = grammar_->nodes[call.to].is_end;
      add({call.start, is_last ? place.stack : Push(call.to, place.stack)});
    }
    if (node.accepts) {
      if (place.stack == kBottom) {
        data->can_end = true;
      } else {
        add(Returned(place.stack));
      }
    }
    if (node.byte_begin != node.byte_end || node.token_begin != node.token_end) {
      places_.push_back(place);
    }
  }
  data->open_end = uint32_t(places_.size());
}

std::span<const ParseStates::Place> ParseStates::places(State state) const {
  const StateData& data = states_[size_t(state)];
  return {places_.data() + data.places_begin, places_.data() + data.places_end};
}

std::span<const ParseStates::Place> ParseStates::open_places(State state) const {
  const StateData& data = states_[size_t(state)];
  return {places_.data() + data.open_begin, places_.data() + data.open_end};
}

ParseStates::State ParseStates::FindNext(State state, uint8_t byte) {
  bool can_end = false;
  scratch_.clear();
  for (const Place place : open_places(state)) {
    const uint32_t to = grammar_->Next(place.node, byte);
    if (to != 0) Add({to, place.stack}, &scratch_, &can_end);
  }
  work_ += 1 + int64_t(open_places(state).size());
  const State next = Intern(&scratch_, can_end);
  next_[size_t(state) * num_classes_ + grammar_->class_of_byte[byte]] = next;
  return next;
}

ParseStates::State ParseStates::NextOfToken(State state, int32_t id) {
  bool can_end = false;
  scratch_.clear();
  for (const Place place : open_places(state)) {
    const PushDown::Node& node = grammar_->nodes[place.node];
    for (uint32_t i = node.token_begin; i < node.token_end; ++i) {
      const PushDown::TokenEdge& edge = grammar_->token_edges[i];
      if (edge.first <= id && id <= edge.last) {
        Add({edge.to, place.stack}, &scratch_, &can_end);
      }
    }
  }
  return Intern(&scratch_, can_end);
}

ParseStates::State ParseStates::Either(State a, State b) {
  if (a == kDead || a == b) return b;
  if (b == kDead) return a;
  scratch_.assign(places(a).begin(), places(a).end());
  scratch_.insert(scratch_.end(), places(b).begin(), places(b).end());
  return Intern(&scratch_, can_end(a) || can_end(b));
}

uint32_t ParseStates::MinBytes(Place place) const {
  const uint64_t bytes =
      uint64_t{grammar_->nodes[place.node].min_bytes} + frames_[place.stack].min_bytes;
  return uint32_t(std::min<uint64_t>(bytes, UINT32_MAX));
}

uint32_t ParseStates::MinBytes(State state) const {
  if (can_end(state)) return 0;
  uint32_t least = UINT32_MAX;
  for (const Place place : places(state)) least = std::min(least, MinBytes(place));
  return least;
}

void ParseStates::Drop(std::span<State> keep) {
  std::vector<std::pair<std::vector<Place>, bool>> kept;
  for (const State state : keep) {
    const auto old = places(state);
    kept.push_back({{old.begin(), old.end()}, can_end(state)});
  }
  Clear();
  for (size_t i = 0; i < keep.size(); ++i) keep[i] = Intern(&kept[i].first, kept[i].second);
}

ParseStates::State ParseStates::Restart(State state) {
  const bool ends = can_end(state);
  std::vector<Place> kept(places(state).begin(), places(state).end());
  const std::vector<Frame> old = std::move(frames_);
  frames_.assign(1, {0, kBottom, 0});
  frame_ids_.clear();
  // A frame's number is larger than that of the one below it.
  std::vector<bool> is_used(old.size());
  for (const Place place : kept) is_used[place.stack] = true;
  for (size_t i = old.size(); i-- > 1;) {
    if (is_used[i]) is_used[old[i].below] = true;
  }
  std::vector<Stack> new_ids(old.size(), kBottom);
  for (size_t i = 1; i < old.size(); ++i) {
    if (is_used[i]) new_ids[i] = Push(old[i].node, new_ids[old[i].below]);
  }
  frames_limit_ = std::max(kMaxFrames, 2 * frames_.size());
  for (Place& place : kept) place.stack = new_ids[place.stack];
  Clear();
  return Intern(&kept, ends);
}

}  // namespace hillstar

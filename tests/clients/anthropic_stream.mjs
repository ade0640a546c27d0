// The order and the shape of a message's events, as Anthropic documents them, against the message
// that the client made of them.
import assert from "node:assert/strict";

// What a block's deltas are called, and what they add to.
const kDeltas = {
  text: { text_delta: "text" },
  thinking: { thinking_delta: "thinking", signature_delta: "signature" },
  tool_use: { input_json_delta: "partial_json" },
};

// A block begins empty, goes on in deltas of its kind, and ends before the next one.
function readBlock(events, index, final) {
  const start = events.shift();
  assert.equal(start.type, "content_block_start");
  assert.equal(start.index, index);
  const { type } = start.content_block;
  const texts = {};
  for (const [delta, name] of Object.entries(kDeltas[type])) {
    texts[name] = "";
    if (delta !== "input_json_delta") assert.equal(start.content_block[name], "");
  }
  if (type === "tool_use") assert.deepEqual(start.content_block.input, {});
  while (events[0].type === "content_block_delta") {
    const { index: at, delta } = events.shift();
    assert.equal(at, index);
    const name = kDeltas[type][delta.type];
    assert.ok(name, `${delta.type} in a block of type ${type}`);
    texts[name] += delta[name];
  }
  assert.deepEqual(events.shift(), { type: "content_block_stop", index });
  if (type === "tool_use") {
    assert.deepEqual(JSON.parse(texts.partial_json || "{}"), final.input);
    assert.equal(start.content_block.id, final.id);
  } else {
    for (const [name, text] of Object.entries(texts)) assert.equal(final[name], text);
  }
}

export function checkEvents(given, final) {
  const events = given.filter(({ type }) => type !== "ping");
  const { type, message } = events.shift();
  assert.equal(type, "message_start");
  assert.deepEqual(message.content, []);
  assert.equal(message.stop_reason, null);
  assert.equal(message.stop_sequence, null);
  assert.equal(message.id, final.id);
  assert.ok(message.usage.input_tokens > 0);
  for (const [index, block] of final.content.entries()) readBlock(events, index, block);
  const [delta, stop, ...rest] = events;
  assert.equal(delta.type, "message_delta");
  assert.deepEqual({ stop_reason: final.stop_reason, stop_sequence: final.stop_sequence },
    { stop_reason: delta.delta.stop_reason, stop_sequence: delta.delta.stop_sequence });
  assert.equal(delta.usage.output_tokens, final.usage.output_tokens);
  assert.deepEqual(stop, { type: "message_stop" });
  assert.deepEqual(rest, []);
}

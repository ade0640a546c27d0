// Answers that follow a schema's grammar have to be valid for an independent validator, and what it
// calls invalid a grammar has to refuse.
//
//   node property.mjs RANDOM_ANSWERS TOKENIZER.json FIRST_SEED NUM_SCHEMAS
import { spawnSync } from 'node:child_process';
import Ajv2020 from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import { Random, randomSchema } from './random_schemas.mjs';

const [program, tokenizer, firstSeed, numSchemas] = process.argv.slice(2);
const answersPerSchema = 6;
const failures = [];
const fail = (what, seed, schema, text) => failures.push({ what, seed, schema: JSON.stringify(schema), text });

// Reasons for which random schemas may be refused: they ask for what nothing satisfies, or for what
// is documented as refused.
const mayBeRefused = [/Nothing satisfies/, /it cannot be made sure/, /refers to itself/];

function run(requests) {
  const input = requests.map((request) => JSON.stringify(request)).join('\n') + '\n';
  const result = spawnSync(program, [tokenizer], { input, maxBuffer: 1 << 30, encoding: 'utf8' });
  if (result.status !== 0) throw new Error(`${program} ended with ${result.status ?? result.signal}: ${result.stderr}`);
  return result.stdout.trimEnd().split('\n').map((line) => JSON.parse(line));
}

function validatorOf(schema) {
  const ajv = new Ajv2020({ strict: false, validateFormats: true });
  addFormats(ajv);
  let validate;
  try {
    validate = ajv.compile(schema);
  } catch (error) {
    // A schema that refers to itself without end. The grammar has to refuse it too.
    if (error instanceof RangeError) return () => { throw error; };
    throw error;
  }
  return (text) => {
    try {
      return validate(JSON.parse(text));
    } catch (error) {
      if (error instanceof SyntaxError) return false;
      throw error;
    }
  };
}

// Places of a document, as [holder, key].
function placesOf(holder, key, places = []) {
  places.push([holder, key]);
  const value = holder[key];
  if (value !== null && typeof value === 'object') for (const k of Object.keys(value)) placesOf(value, k, places);
  return places;
}

const strangers = [null, true, -7, 0.125, 123456, 'zzz', '', [], [1], {}, { zz: 1 }];

function mutated(r, document) {
  const root = [structuredClone(document)];
  const [holder, key] = r.pick(placesOf(root, 0));
  const value = holder[key];
  switch (r.below(6)) {
    case 0: holder[key] = r.pick(strangers); break;
    case 1: if (holder !== root && !Array.isArray(holder)) delete holder[key]; break;
    case 2: if (holder !== root && Array.isArray(holder)) holder.splice(Number(key), 1); break;
    case 3: if (typeof value === 'string') holder[key] = r.pick([value + 'x', value.slice(1), `"${value}`, value + '\n']); break;
    case 4: if (typeof value === 'number') holder[key] = r.pick([value + 1, -value, value * 1000, value + 0.5]); break;
    default:
      if (Array.isArray(value)) value.push(r.pick(strangers));
      else if (value !== null && typeof value === 'object') value[r.pick(['more', 'a', 'x-1', 'zz9'])] = r.pick(strangers);
  }
  return JSON.stringify(root[0]);
}

function damaged(r, text) {
  const at = r.below(text.length + 1);
  switch (r.below(4)) {
    case 0: return text.slice(0, at);
    case 1: return text.slice(0, at) + r.pick(['"', ',', ']', '}', '\\', '\n', '-', '0', 'e', ':']) + text.slice(at);
    case 2: return text.slice(0, at) + text.slice(at + 1);
    default: return text + r.pick([',', '}', ']', ' x', '"']);
  }
}

// Documents that other writers lay out as they are, apart from blanks: JavaScript moves keys that are
// numbers, and writes some numbers with more digits than a grammar allows.
function isPortable(value) {
  if (typeof value === 'number') return Number.isInteger(value) ? Math.abs(value) < 1e15 : /^-?\d{1,6}\.\d{1,6}$/.test(String(value));
  if (value === null || typeof value !== 'object') return true;
  return Object.entries(value).every(([key, item]) => (Array.isArray(value) || !/^\d+$/.test(key)) && isPortable(item));
}

const cases = [];
for (let i = 0; i < Number(numSchemas); ++i) {
  const seed = Number(firstSeed) + i;
  const schema = randomSchema(seed);
  cases.push({ seed, schema, valid: validatorOf(schema), request: { schema: JSON.stringify(schema), seed, count: answersPerSchema, texts: [] } });
}

const counts = { schemas: 0, refused: 0, answers: 0, unended: 0, valid: 0, laidOut: 0, mutants: 0, calls: 0 };
const second = [];
run(cases.map((one) => one.request)).forEach((reply, i) => {
  const { seed, schema, valid } = cases[i];
  if (reply.error) {
    counts.refused += 1;
    if (!mayBeRefused.some((reason) => reason.test(reply.error))) fail(reply.error, seed, schema);
    return;
  }
  counts.schemas += 1;
  const r = new Random(seed + 12345);
  const refuse = new Set();
  const take = new Set();
  for (const { text, ends } of reply.answers) {
    counts.answers += 1;
    if (!ends) { counts.unended += 1; fail('an answer does not end', seed, schema, text); continue; }
    if (!valid(text)) { fail('an answer is not valid', seed, schema, text); continue; }
    counts.valid += 1;
    const document = JSON.parse(text);
    if (isPortable(document)) for (const layout of [JSON.stringify(document), JSON.stringify(document, null, 2)]) take.add(layout);
    // A character of two code units that was cut in two would be none.
    for (let n = 0; n < 12; ++n) refuse.add((n % 3 === 0 ? damaged(r, text) : mutated(r, document)).toWellFormed());
  }
  const wrong = [...refuse].filter((text) => text.length < 20000 && !valid(text));
  const right = [...take].filter((text) => text.length < 20000 && valid(text));
  second.push({ seed, schema, wrong, right, request: { ...cases[i].request, count: 0, texts: [...wrong, ...right] } });
});

run(second.map((one) => one.request)).forEach((reply, i) => {
  const { seed, schema, wrong, right } = second[i];
  counts.mutants += wrong.length;
  counts.laidOut += right.length;
  wrong.forEach((text, j) => { if (reply.takes[j]) fail('an invalid text is taken', seed, schema, text); });
  right.forEach((text, j) => { if (!reply.takes[wrong.length + j]) fail('a valid text in another layout is refused', seed, schema, text); });
});

// The same schemas as those of a tool's arguments.
const calls = [];
for (const { seed, schema } of cases) {
  const { $defs, $schema, ...value } = typeof schema === 'object' ? schema : { allOf: [schema] };
  const also = randomSchema(seed + 500000);
  const tool = { type: 'object', properties: { value, also: also.$defs ? { type: 'string' } : also }, required: ['value'] };
  if ($defs) tool.$defs = $defs;
  calls.push({ seed, schema: tool, valid: validatorOf(tool), request: { schema: JSON.stringify(tool), is_tool: true, seed, count: 4, texts: [] } });
}
run(calls.map((one) => one.request)).forEach((reply, i) => {
  const { seed, schema, valid } = calls[i];
  if (reply.error) {
    counts.refused += 1;
    if (!mayBeRefused.some((reason) => reason.test(reply.error))) fail(reply.error, seed, schema);
    return;
  }
  for (const { text, ends } of reply.answers) {
    counts.calls += 1;
    if (!ends) fail('a call does not end', seed, schema, text);
    else if (!valid(text)) fail('the arguments of a call are not valid', seed, schema, text);
  }
});

console.log(JSON.stringify(counts));
for (const failure of failures.slice(0, 10)) console.log(failure);
if (failures.length > 0) console.log(`${failures.length} failures`);
// The random schemas have to be such that most of them test something.
const isEnough = counts.schemas >= 0.8 * Number(numSchemas) && counts.mutants >= 5 * counts.schemas;
process.exit(failures.length === 0 && isEnough ? 0 : 1);

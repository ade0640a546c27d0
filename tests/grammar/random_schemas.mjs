// Random JSON schemas of every keyword that grammars serve, by a seed.

export class Random {
  constructor(seed) { this.state = seed >>> 0; }
  next() {  // mulberry32: 0 <= x < 1
    this.state = (this.state + 0x6d2b79f5) >>> 0;
    let t = this.state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  }
  below(n) { return Math.floor(this.next() * n); }
  between(a, b) { return a + this.below(b - a + 1); }
  chance(p) { return this.next() < p; }
  pick(list) { return list[this.below(list.length)]; }
}

const names = ['name', 'id', 'tags', 'größe', 'a', 'ab', 'say "hi"', 'x/y', 'count', 'b\\c', ''];
const patterns = ['^[a-z]+$', '^a', 'b$', 'x{2,4}', '^(foo|bar)-\\d{1,3}$', '^[^"\\\\]*$', '"', '^\\w+@\\w+$',
  '^.{3,5}$', '[\\u4e00-\\u9fff]', '^(?:[A-Z][a-z]* ?)+$', '\\\\n', '^$|^yes$', '^\\s*\\S', '[^\\x00-\\x7f]{2}',
  '^(?<year>[12]\\d{3})-(0[1-9]|1[0-2])$', '^\\u{1F600}?z$', '^(?=.*\\d)(?!.*[xyz]).{2,6}$', '^(?!a)'];
const formats = ['date', 'time', 'date-time', 'uuid', 'ipv4', 'ipv6', 'email', 'uri', 'hostname', 'duration'];

function string(r) {
  const schema = { type: 'string' };
  if (r.chance(0.4)) schema.minLength = r.between(0, 6);
  if (r.chance(0.4)) schema.maxLength = (schema.minLength ?? 0) + r.between(0, 9);
  if (r.chance(0.35)) {
    schema.pattern = r.pick(patterns);
    if (r.chance(0.7)) { delete schema.minLength; delete schema.maxLength; }
  } else if (r.chance(0.3)) {
    schema.format = r.pick(formats);
    delete schema.minLength;
    delete schema.maxLength;
  }
  return schema;
}

function number(r) {
  const schema = { type: r.pick(['integer', 'number']) };
  const value = () => (schema.type === 'integer' || r.chance(0.5) ? r.between(-1200, 1200)
    : Number((r.next() * 20 - 10).toFixed(r.between(1, 6))));
  let low = value();
  let high = value();
  if (low > high) [low, high] = [high, low];
  if (low === high) high += 1;
  if (r.chance(0.45)) schema[r.pick(['minimum', 'minimum', 'exclusiveMinimum'])] = low;
  if (r.chance(0.45)) schema[r.pick(['maximum', 'maximum', 'exclusiveMaximum'])] = high + 1;
  if (r.chance(0.1)) schema.format = r.pick(['int32', 'int64', 'float', 'double']);
  if (r.chance(0.15)) schema.multipleOf = r.pick([1, 2, 3, 5, 7, 10, 25]);
  return schema;
}

function value(r, depth) {
  switch (r.below(depth > 0 ? 8 : 6)) {
    case 0: return null;
    case 1: return r.chance(0.5);
    case 2: return r.between(-50, 50);
    case 3: return r.pick([0.5, -1.25, 1e21, 1e-7, 3.0]);
    case 4: return r.pick(['', 'a', 'tag "x"', 'line\nend', '日本', '\u0001', '🙂/\\']);
    case 5: return r.pick(['red', 'green', 'blue']);
    case 6: return Array.from({ length: r.below(3) }, () => value(r, depth - 1));
    default: return Object.fromEntries(Array.from({ length: r.below(3) }, () => [r.pick(names), value(r, depth - 1)]));
  }
}

function array(r, make) {
  const schema = { type: 'array' };
  if (r.chance(0.3)) schema.prefixItems = Array.from({ length: r.between(1, 3) }, make);
  if (r.chance(0.8)) schema.items = r.chance(0.15) ? r.chance(0.3) : make();
  if (r.chance(0.4)) schema.minItems = r.between(0, 3);
  if (r.chance(0.4)) schema.maxItems = (schema.minItems ?? 0) + r.between(0, 4);
  return schema;
}

function object(r, make) {
  const schema = { type: 'object' };
  const count = r.below(5);
  const used = [...names].sort(() => r.next() - 0.5).slice(0, count);
  if (count > 0 || r.chance(0.2)) schema.properties = Object.fromEntries(used.map((name) => [name, make()]));
  if (r.chance(0.6)) schema.required = used.filter(() => r.chance(0.5));
  if (r.chance(0.1)) schema.required = [...(schema.required ?? []), 'needed'];
  if (r.chance(0.5)) schema.additionalProperties = r.pick([false, false, true, make()]);
  if (r.chance(0.15)) {
    schema.patternProperties = Object.fromEntries(
      Array.from({ length: r.between(1, 2) }, () => [r.pick(['^a', 'b$', '^x-', '\\d']), make()]));
  }
  if (r.chance(0.12)) schema.propertyNames = r.pick([{ type: 'string' }, string(r), { enum: [...names] }, { maxLength: 3 }, { pattern: '^[^x]' }, { anyOf: [{ pattern: '^a' }, { minLength: 4 }] }]);
  if (r.chance(0.15)) schema.minProperties = r.between(0, Math.max(1, count));
  if (r.chance(0.15)) schema.maxProperties = Math.max(schema.minProperties ?? 0, schema.required?.length ?? 0) + r.below(3);
  return schema;
}

function oneOf(r, make) {
  if (r.chance(0.5)) {
    const kinds = [{ type: 'null' }, string(r), number(r), { type: 'boolean' }, array(r, make), object(r, make)];
    return { oneOf: kinds.sort(() => r.next() - 0.5).slice(0, r.between(1, 4)) };
  }
  const branches = ['circle', 'square', 'line'].slice(0, r.between(1, 3)).map((kind) => {
    const branch = object(r, make);
    delete branch.maxProperties;
    delete branch.patternProperties;
    branch.properties = { kind: r.chance(0.5) ? { const: kind } : { enum: [kind, `${kind}s`] }, ...branch.properties };
    branch.required = ['kind', ...(branch.required ?? [])];
    return branch;
  });
  return r.chance(0.5) ? { oneOf: branches } : { type: 'object', oneOf: branches };
}

function allOf(r, make) {
  if (r.chance(0.5)) {
    const parts = [object(r, make), object(r, make)];
    for (const part of parts) { delete part.minProperties; delete part.maxProperties; }
    return { allOf: parts };
  }
  return r.chance(0.5) ? { ...string(r), allOf: [{ minLength: 1 }, { maxLength: 12 }] }
    : { ...number(r), allOf: [{ minimum: -500 }, { maximum: 900 }] };
}

function annotated(r, schema) {
  if (typeof schema === 'object' && r.chance(0.1)) {
    return { title: 'T', description: 'd', default: 1, examples: [2], deprecated: true, readOnly: false, ...schema };
  }
  return schema;
}

function any(r, depth, defs) {
  const make = () => annotated(r, any(r, depth - 1, defs));
  if (depth > 0 && r.chance(0.55)) return r.chance(0.6) ? object(r, make) : array(r, make);
  switch (r.below(depth > 0 ? 14 : 9)) {
    case 0: case 1: return string(r);
    case 2: case 3: return number(r);
    case 4: return { type: 'boolean' };
    case 5: return { enum: Array.from({ length: r.between(1, 5) }, () => value(r, 2)) };
    case 6: return r.chance(0.5) ? { const: value(r, 2) } : { type: ['string', 'null'], enum: ['x', null, 5] };
    case 7: return r.pick([{ type: 'null' }, { type: 'string', nullable: true }, { type: ['integer', 'null', 'boolean'] }]);
    case 8: return r.pick([true, {}, { type: 'object' }, { minimum: 3 }, { minLength: 2 }, { type: 'array' }]);
    case 9: return { anyOf: Array.from({ length: r.between(1, 3) }, make) };
    case 10: return oneOf(r, make);
    case 11: return allOf(r, make);
    default: return defs.length > 0 ? { $ref: `#/$defs/${r.pick(defs)}` } : string(r);
  }
}

export function randomSchema(seed) {
  const r = new Random(seed * 7919 + 1);
  const defs = r.chance(0.4) ? ['node', 'x~y/z'].slice(0, r.between(1, 2)) : [];
  const pointers = defs.map((name) => name.replaceAll('~', '~0').replaceAll('/', '~1'));
  const schema = any(r, r.between(1, 3), pointers);
  if (typeof schema === 'object' && defs.length > 0) {
    schema.$defs = {};
    for (const name of defs) schema.$defs[name] = any(r, 2, pointers);
    // One that holds itself, and ends.
    schema.$defs.node = { type: 'object', required: ['value'],
      properties: { value: any(r, 1, []), next: { $ref: '#/$defs/node' }, list: { type: 'array', items: { $ref: '#/$defs/node' } } } };
    schema.$schema = 'https://json-schema.org/draft/2020-12/schema';
  }
  return schema;
}

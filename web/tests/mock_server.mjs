// A server that answers as hillstar serve does, for tests of the page and for screenshots: the same
// routes, shapes and policy, and answers that the words of the question choose.
//
//   node tests/mock_server.mjs [PORT] [--layers N] [--experts N] [--key KEY]
import { createServer } from 'node:http';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const kDist = new URL('../dist/', import.meta.url);
const kTypes = {
  html: 'text/html; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  css: 'text/css; charset=utf-8',
  svg: 'image/svg+xml',
  txt: 'text/plain; charset=utf-8',
};
export const kPolicy =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src " +
  "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const kMarkdown = `Here is a **short** tour of the *hillstar*:

1. It lives between 3,500 and 5,000 metres.
2. At night it lowers its temperature, which saves energy.
3. It holds on to flowers instead of hovering, because thin air carries badly.

A function that says so:

\`\`\`python
def altitude(birds: dict[str, int]) -> str:
    """The bird that lives highest."""
    name = max(birds, key=birds.get)
    return f"{name}: {birds[name]} m"  # metres above the sea

print(altitude({"hillstar": 5000, "sparrow": 2500}))
\`\`\`

| species | lives at | weight |
| --- | --- | ---: |
| Ecuadorian hillstar | 3,600–5,200 m | 8.0 g |
| White-sided hillstar | 3,000–4,700 m | 6.5 g |

> The air has half of the oxygen there.

See [the article](https://example.org/hillstar "x") and ![a photograph](https://example.org/a.png).`;

const kThoughts = `The user asks about a bird. I should say where it lives, how it saves energy, and why it
perches. Then an example in Python, with a table. Keep it short.`;

export const kSlowWords = 70;

function words(count) {
  const list = 'thin air carries little weight and the small bird holds on to the flower'.split(' ');
  return Array.from({ length: count }, (_, i) => list[i % list.length] + (i % 14 === 13 ? '.' : '')).join(' ');
}

// What is answered, by the question: { thinking, text, delayMs, ... }.
export function planOf(question, corpus) {
  const plan = { thinking: '', text: `You said: ${question}`, delayMs: 2, status: 200, progress: 0 };
  if (/prime/.test(question)) plan.text = '2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37';
  if (/tour|markdown/.test(question)) plan.text = kMarkdown;
  if (/hostile/.test(question)) plan.text = corpus ?? '';
  if (/slow/.test(question)) Object.assign(plan, { text: words(kSlowWords), delayMs: 40 });
  if (/lines/.test(question)) {
    const text = Array.from({ length: 80 }, (_, i) => `Line ${i + 1} of many.\n\n`).join('');
    Object.assign(plan, { text, delayMs: 15 });
  }
  if (/long prompt/.test(question)) plan.progress = 4;
  if (/too long/.test(question)) {
    Object.assign(plan, { status: 400, error: 'the prompt has 20000 tokens and the context holds 16384', code: 'context_length_exceeded' });
  }
  if (/busy/.test(question)) Object.assign(plan, { status: 429, error: '512 answers wait already; come back later' });
  if (/fail late/.test(question)) plan.lateError = 'the step failed: out of memory on device 0';
  if (/break off/.test(question)) plan.breaksOff = true;
  return plan;
}

function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

// Uses of experts that differ by layer and wander with time.
class Routing {
  constructor(layers, experts) {
    this.layers = Array.from({ length: layers }, (_, i) => i + 1);
    this.experts = experts;
    this.uses = this.layers.map(() => new Array(experts).fill(0));
    this.seed = 7;
  }
  random() {
    this.seed = (Math.imul(this.seed, 1664525) + 1013904223) >>> 0;
    return this.seed / 2 ** 32;
  }
  route(tokens, time) {
    this.uses.forEach((row, layer) => {
      for (let i = 0; i < tokens * 4; ++i) {
        const liked = (layer * 11 + Math.floor(time / 3) * 5) % this.experts;
        const far = Math.floor(this.experts * this.random() ** 3);
        ++row[(liked + far * 7) % this.experts];
      }
    });
  }
}

const kStages = [
  ['embed', 1], ['attention', 22], ['indexer', 9], ['router', 4], ['experts', 41], ['shared expert', 11],
  ['dense', 7], ['output', 5],
];

class Engine {
  constructor({ layers = 5, experts = 32, isBusy = false }) {
    this.began = Date.now();
    this.tokens = { prompt: 0, cached: 0, answer: 0 };
    this.requests = { done: 0, failed: 0, cancelled: 0 };
    this.running = 0;
    this.steps = 0;
    this.stepSeconds = 0;
    this.isBusy = isBusy;
    this.routing = new Routing(layers, experts);
    this.last = Date.now();
  }
  step(tokens) {
    this.steps += 1;
    this.stepSeconds += 0.0021;
    this.routing.route(tokens, (Date.now() - this.began) / 1000);
  }
  // Other users' requests, for screenshots.
  pretend() {
    const now = Date.now();
    const passed = (now - this.last) / 1000;
    this.last = now;
    if (!this.isBusy) return;
    const time = (now - this.began) / 1000;
    const answers = Math.round(passed * (1180 + 260 * Math.sin(time / 3) + 120 * Math.sin(time * 1.7)));
    const prompts = Math.round(passed * 2600 * Math.max(0, Math.sin(time / 2.2)) ** 6);
    this.tokens.answer += answers;
    this.tokens.prompt += prompts;
    this.tokens.cached += prompts >> 1;
    const steps = Math.round(passed * 180);
    this.steps += steps;
    this.stepSeconds += steps * 0.0048;
    if (Math.random() < passed) this.requests.done += 1;
    this.routing.route(Math.min(60, answers), time);
  }
  live() {
    this.pretend();
    const all = kStages.reduce((sum, [, weight]) => sum + weight, 0);
    const { layers, experts, uses } = this.routing;
    const time = Date.now() / 1000;
    return {
      time,
      uptime_seconds: (Date.now() - this.began) / 1000,
      model: 'pocket',
      device: 'cpu, 2 threads, avx512',
      tokens: this.tokens,
      requests: this.requests,
      sequences: { running: this.running + (this.isBusy ? 6 : 0), waiting: this.isBusy ? 2 : 0, paused: 0, limit: 32 },
      pages: { total: 1024, used: this.isBusy ? 318 + Math.round(40 * Math.sin(time / 4)) : 0, prefix: this.isBusy ? 57 : 0 },
      steps: this.steps,
      step_seconds: this.stepSeconds,
      stages: kStages.map(([name, weight]) => ({ name, seconds: (this.stepSeconds * weight) / all })),
      experts: { layers, num_experts: experts, uses },
    };
  }
}

function sendJson(response, status, body, headers = {}) {
  response.writeHead(status, { 'Content-Type': 'application/json', ...headers });
  response.end(JSON.stringify(body));
}

function sendFile(response, path) {
  const name = path === '/' ? 'index.html' : path.slice(1);
  let content;
  try {
    content = readFileSync(new URL(name, kDist));
  } catch {
    return sendJson(response, 404, { error: { message: `there is no "${path}" here`, type: 'not_found_error', param: null, code: null } });
  }
  response.writeHead(200, {
    'Content-Type': kTypes[name.split('.').pop()],
    'Content-Security-Policy': kPolicy,
    'X-Content-Type-Options': 'nosniff',
    'Referrer-Policy': 'no-referrer',
  });
  response.end(content);
}

async function readBody(request) {
  let text = '';
  for await (const piece of request) text += piece;
  return JSON.parse(text);
}

class Mock {
  constructor(options) {
    this.options = options;
    this.engine = new Engine(options);
    this.chats = []; // bodies of requests, for tests
    this.aborted = 0;
    this.server = createServer((request, response) => void this.handle(request, response));
  }

  async handle(request, response) {
    const { pathname } = new URL(request.url, 'http://mock');
    const { key } = this.options;
    if (pathname === '/health') {
      return sendJson(response, 200, {
        status: 'ok', model: 'pocket', device: 'cpu, 2 threads, avx512', thinking: 'off',
        needs_key: Boolean(key), context_tokens: 16384, version: '0.1.0',
      });
    }
    const isApi = pathname.startsWith('/api/') || pathname.startsWith('/v1/');
    if (!isApi) return sendFile(response, pathname);
    if (key && request.headers.authorization !== `Bearer ${key}`) {
      return sendJson(response, 401, { error: { message: 'this server wants an API key', type: 'authentication_error', param: null, code: 'invalid_api_key' } });
    }
    if (pathname === '/api/live') return sendJson(response, 200, this.engine.live());
    if (pathname === '/v1/models') return sendJson(response, 200, { object: 'list', data: [{ id: 'pocket', object: 'model' }] });
    if (pathname === '/v1/chat/completions') return this.chat(await readBody(request), response);
    return sendJson(response, 404, { error: { message: `there is no "${pathname}" here`, type: 'not_found_error', param: null, code: null } });
  }

  async chat(body, response) {
    this.chats.push(body);
    const question = body.messages.at(-1).content;
    const plan = planOf(question, this.options.corpus);
    if (body.chat_template_kwargs?.enable_thinking) plan.thinking = kThoughts;
    if (plan.status !== 200) {
      const error = { message: plan.error, type: 'invalid_request_error', param: null, code: plan.code ?? null };
      return sendJson(response, plan.status, { error }, plan.status === 429 ? { 'Retry-After': '1' } : {});
    }
    response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-cache' });
    this.engine.running += 1;
    let isGone = false;
    response.on('close', () => {
      if (!response.writableFinished) isGone = true;
    });
    const finished = await this.stream(body, plan, response, () => isGone);
    this.engine.running -= 1;
    if (isGone) this.aborted += 1;
    this.engine.requests[finished ? 'done' : 'cancelled'] += 1;
  }

  // Whether it came to its end.
  async stream(body, plan, response, isGone) {
    const head = { id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: 'pocket' };
    const send = (delta, finish = null) =>
      response.write(`data: ${JSON.stringify({ ...head, choices: [{ index: 0, delta, logprobs: null, finish_reason: finish }] })}\n\n`);
    for (let i = 1; i <= plan.progress; ++i) {
      response.write(`: prompt ${512 * i}/${512 * plan.progress}\n\n`);
      await sleep(350);
    }
    send({ role: 'assistant', content: '' });
    let count = 0;
    const limit = body.max_tokens ?? Infinity;
    for (const [name, text, delayMs] of [
      ['reasoning_content', plan.thinking, Math.max(plan.delayMs, 25)],
      ['content', plan.text, plan.delayMs],
    ]) {
      for (const piece of text.match(/\S+\s*|\s+/g) ?? []) {
        if (isGone()) return false;
        if (count >= limit) break;
        send({ [name]: piece });
        count += 1;
        this.engine.tokens.answer += 1;
        this.engine.step(1);
        await sleep(delayMs);
        if (plan.breaksOff && count > 2) return response.destroy(), false;
        if (plan.lateError && count > 2) {
          response.end(`data: ${JSON.stringify({ error: { message: plan.lateError, type: 'server_error', param: null, code: null } })}\n\n`);
          return false;
        }
      }
    }
    send({}, count >= limit ? 'length' : 'stop');
    const prompt = JSON.stringify(body.messages).length >> 2;
    this.engine.tokens.prompt += prompt;
    const usage = {
      prompt_tokens: prompt, completion_tokens: count, total_tokens: prompt + count,
      prompt_tokens_details: { cached_tokens: body.messages.length > 2 ? prompt >> 1 : 0 },
      completion_tokens_details: { reasoning_tokens: 0 },
    };
    if (body.stream_options?.include_usage) response.write(`data: ${JSON.stringify({ ...head, choices: [], usage })}\n\n`);
    response.end('data: [DONE]\n\n');
    return true;
  }
}

// options: port (0: any), layers, experts, isBusy, key, corpus (the answer to "hostile").
export async function startMock(options = {}) {
  const mock = new Mock(options);
  await new Promise((resolve) => mock.server.listen(options.port ?? 0, '127.0.0.1', resolve));
  mock.url = `http://127.0.0.1:${mock.server.address().port}/`;
  mock.close = () => {
    mock.server.closeAllConnections();
    mock.server.close();
  };
  return mock;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const args = process.argv.slice(2);
  const option = (name) => (args.includes(name) ? args[args.indexOf(name) + 1] : undefined);
  const mock = await startMock({
    port: Number(args[0]) || 8081,
    layers: Number(option('--layers')) || 5,
    experts: Number(option('--experts')) || 32,
    isBusy: args.includes('--busy'),
    key: option('--key'),
  });
  console.log(mock.url);
}

// The page as people use it, in Chromium: against the mock server, or against a real one.
//
//   node tests/page_test.mjs [--server URL] [--only chat|streams|faults|live|access]
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, afterEach, before, describe, test } from 'node:test';
import { launch } from './browser.mjs';
import { kHostileMarkdown } from './hostile_corpus.mjs';
import { kSlowWords, startMock } from './mock_server.mjs';

function option(name) {
  const at = process.argv.indexOf(name);
  return at > 0 ? (process.argv[at + 1] ?? '') : '';
}

const realServer = option('--server');
const only = option('--only');
const group = (name, tests) => describe(name, { skip: only !== '' && only !== name }, tests);
const kAxe = readFileSync(new URL('../node_modules/axe-core/axe.min.js', import.meta.url), 'utf8');
const kAnswerMs = 30_000;

let browser;
let mock;
let context;
const problems = []; // what browsers complain of

before(async () => {
  browser = await launch();
  if (!realServer) mock = await startMock({ corpus: kHostileMarkdown.slice(0, 60).join('\n\n') });
});
after(async () => {
  await browser.close();
  mock?.close();
});
afterEach(async () => {
  await context?.close();
  context = undefined;
  assert.deepEqual(problems.splice(0), []);
});

const baseUrl = () => (realServer ? realServer.replace(/\/?$/, '/') : mock.url);

function listen(page, expected) {
  page.on('console', (message) => {
    if (message.type() === 'error' && !expected.test(message.text())) problems.push(message.text());
  });
  page.on('pageerror', (error) => problems.push(String(error)));
}

async function openPage({ hash = '', expected = /^$/, url = baseUrl(), init, ...options } = {}) {
  context ??= await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  context.setDefaultTimeout(10_000);
  const page = await context.newPage();
  listen(page, expected);
  if (init) await page.addInitScript(init);
  await page.goto(url + hash);
  return page;
}

const box = (page) => page.getByRole('textbox', { name: 'Message' });
const answers = (page) => page.getByRole('article', { name: 'Answer' });
const questions = (page) => page.getByRole('article', { name: 'You' });
const button = (page, name) => page.getByRole('button', { name, exact: true });

async function waitForAnswers(page, count) {
  await answers(page).nth(count - 1).locator('.stats').waitFor({ timeout: kAnswerMs });
}

async function ask(page, text, count = 1) {
  await box(page).fill(text);
  await box(page).press('Enter');
  await waitForAnswers(page, count);
}

group('chat', () => {
  test('sends, streams, says how fast, and lists the conversation', async () => {
    const page = await openPage();
    await ask(page, 'List the first 12 prime numbers.');
    assert.equal(await questions(page).locator('.bubble').innerText(), 'List the first 12 prime numbers.');
    assert.notEqual((await answers(page).locator('.markdown').innerText()).trim(), '');
    assert.match(await answers(page).locator('.stats').innerText(), /^[\d,]+ tokens? · .*first after .* · prompt \d+/);
    assert.equal(await box(page).inputValue(), '');
    await page.getByRole('link', { name: /List the first 12/ }).waitFor();
    assert.match(new URL(page.url()).hash, /^#\/chat\/[0-9a-f]{24}$/);
  });

  test('keeps conversations and drafts over a reload', async () => {
    const page = await openPage();
    await ask(page, 'What is a river?');
    await box(page).fill('half a thought');
    await page.waitForTimeout(500);
    await page.reload();
    await waitForAnswers(page, 1);
    assert.equal(await box(page).inputValue(), 'half a thought');
    await page.getByRole('link', { name: 'New conversation' }).click();
    await page.getByRole('heading', { name: 'New conversation' }).waitFor();
    assert.equal(await box(page).inputValue(), '');
    await box(page).fill('not sent');
    await page.waitForTimeout(500);
    await page.reload();
    assert.equal(await box(page).inputValue(), 'not sent');
    await page.getByRole('link', { name: /What is a river/ }).click();
    await page.getByRole('heading', { name: 'What is a river?' }).waitFor();
    assert.equal(await box(page).inputValue(), 'half a thought');
    await page.getByText('unsent draft').first().waitFor();
  });

  test('answers again and lets one choose', async () => {
    const page = await openPage();
    await ask(page, 'What is a tree?');
    await button(page, 'Answer again').click();
    await page.getByText('2/2').waitFor({ timeout: kAnswerMs });
    await waitForAnswers(page, 1);
    await button(page, 'Earlier version').click();
    await page.getByText('1/2').waitFor();
    await page.waitForTimeout(300);
    await page.reload();
    await page.getByText('1/2').waitFor();
  });

  test('edits a question and answers it anew', async () => {
    const page = await openPage();
    await ask(page, 'What is a rivre?');
    await ask(page, 'And a lake?', 2);
    await button(page, 'Edit').first().click();
    const field = page.getByRole('textbox', { name: 'Edit the message' });
    assert.equal(await field.inputValue(), 'What is a rivre?');
    await field.press('Escape');
    await field.waitFor({ state: 'detached' });
    await button(page, 'Edit').first().click();
    await field.fill('What is a river?');
    await field.press('Enter');
    await page.getByText('2/2').waitFor();
    await waitForAnswers(page, 1);
    assert.equal(await questions(page).count(), 1);
    await button(page, 'Earlier version').click();
    await waitForAnswers(page, 2);
  });

  test('renames, deletes and puts back', async () => {
    const page = await openPage();
    await ask(page, 'What is a river?');
    await button(page, 'Rename “What is a river?”').click();
    await page.getByRole('textbox', { name: 'Title' }).fill('Rivers');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Rivers' }).waitFor();
    await button(page, 'Delete “Rivers”').click();
    await page.getByText('“Rivers” was deleted.').waitFor();
    assert.equal(await page.locator('.entry').count(), 0);
    await button(page, 'Undo').click();
    await page.getByRole('link', { name: /Rivers/ }).click();
    await waitForAnswers(page, 1);
    await page.reload();
    await page.getByRole('heading', { name: 'Rivers' }).waitFor();
  });

  test('exports and imports', async () => {
    const page = await openPage();
    await ask(page, 'What is a river?');
    const [download] = await Promise.all([page.waitForEvent('download'), button(page, 'Export all').click()]);
    const path = await download.path();
    assert.equal(JSON.parse(readFileSync(path, 'utf8')).conversations[0].messages.length, 2);
    await page.locator('input[type=file]').setInputFiles(path);
    await page.getByText('One conversation was imported.').waitFor();
    assert.equal(await page.locator('.entry').count(), 2);
    await page.locator('input[type=file]').setInputFiles({ name: 'x.json', mimeType: 'application/json', buffer: Buffer.from('{') });
    await page.getByText('This file is no JSON').waitFor();
  });

  test('asks with the settings', async () => {
    const page = await openPage();
    await button(page, 'Settings').click();
    await page.getByLabel('System prompt').fill('Answer in one word.');
    await page.getByLabel('Temperature').fill('0');
    await page.getByLabel('Longest answer').fill('3');
    await page.getByLabel('Thinking').selectOption('off');
    await page.keyboard.press('Escape');
    await page.reload();
    await ask(page, 'Tell me of rivers and of the sea');
    await page.getByText('reached its longest length').waitFor();
    if (!mock) return;
    const { messages, temperature, max_tokens, chat_template_kwargs } = mock.chats.at(-1);
    assert.deepEqual(messages[0], { role: 'system', content: 'Answer in one word.' });
    assert.deepEqual([temperature, max_tokens, chat_template_kwargs], [0, 3, { enable_thinking: false }]);
  });

  test('keeps the conversations of two tabs apart, and both sides of one', async () => {
    const first = await openPage();
    const second = await openPage();
    await ask(first, 'What is a river?');
    await ask(second, 'What is a lake?');
    await first.getByRole('link', { name: /What is a lake/ }).waitFor();
    await second.getByRole('link', { name: /What is a river/ }).click();
    await second.getByRole('heading', { name: 'What is a river?' }).waitFor();
    await ask(second, 'And a brook?', 2);
    await waitForAnswers(first, 2); // follows
    await ask(first, 'And a sea?', 3);
    await waitForAnswers(second, 3);
    assert.equal(await first.locator('.entry').count(), 2);
    assert.deepEqual(await first.locator('.bubble').allInnerTexts(), ['What is a river?', 'And a brook?', 'And a sea?']);
  });

  test('takes Enter of a composed character for no sending, and Shift+Enter for a new line', async () => {
    const page = await openPage();
    await box(page).fill('にほん');
    await box(page).evaluate((area) => {
      const press = (init) => area.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true, cancelable: true, ...init }));
      press({ isComposing: true });
      press({ keyCode: 229 });
    });
    await box(page).press('Shift+Enter');
    assert.equal(await box(page).inputValue(), 'にほん\n');
    assert.equal(await questions(page).count(), 0);
  });
});

// What only the mock server does.
if (!realServer) group('streams', () => {
  test('stops by button and by Esc, and keeps what came', async () => {
    const page = await openPage();
    for (const [count, stop] of [
      [1, () => page.getByRole('button', { name: 'Stop the answer (Esc)' }).click()],
      [2, () => page.keyboard.press('Escape')],
    ]) {
      const aborted = mock.aborted;
      await box(page).fill('slow please');
      await box(page).press('Enter');
      await answers(page).nth(count - 1).locator('.markdown').getByText('thin air carries').waitFor();
      await box(page).fill('typed meanwhile');
      await stop();
      await page.getByText('You stopped this answer.').nth(count - 1).waitFor();
      const words = (await answers(page).nth(count - 1).locator('.markdown').innerText()).split(/\s+/).length;
      assert.ok(words >= 3 && words < kSlowWords, `${words} words`);
      assert.equal(await box(page).inputValue(), 'typed meanwhile');
      for (let i = 0; i < 40 && mock.aborted === aborted; ++i) await page.waitForTimeout(50);
      assert.equal(mock.aborted, aborted + 1);
    }
  });

  test('folds thoughts away and says how long they took', async () => {
    const page = await openPage();
    await button(page, 'Settings').click();
    await page.getByLabel('Thinking').selectOption('on');
    await page.keyboard.press('Escape');
    await box(page).fill('What is a hillstar?');
    await box(page).press('Enter');
    await page.getByText(/Thinking… \d/).waitFor();
    assert.equal(await page.getByText('The user asks about a bird').isVisible(), false);
    await waitForAnswers(page, 1);
    await page.getByText(/Thought for \d/).click();
    assert.equal(await page.getByText('The user asks about a bird').isVisible(), true);
    assert.equal(await page.locator('.markdown').getByText('The user asks').count(), 0);
  });

  test('shows how far the prompt is read', async () => {
    const page = await openPage();
    await box(page).fill('a long prompt');
    await box(page).press('Enter');
    await page.getByText(/Reading the prompt: [\d,]+ of 2,048 tokens/).waitFor();
    await page.getByRole('progressbar', { name: 'Reading the prompt' }).waitFor();
    await waitForAnswers(page, 1);
  });

  test('draws Markdown and code, which can be copied', async () => {
    const page = await openPage({ permissions: ['clipboard-read', 'clipboard-write'] });
    await ask(page, 'a tour in markdown');
    const answer = answers(page);
    assert.equal(await answer.locator('pre .hljs-keyword').first().innerText(), 'def');
    await button(page, 'Copy the code').click();
    assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^def altitude[\s\S]*2500}\)\)$/);
    assert.equal(await answer.locator('img').count(), 0);
    const link = answer.getByRole('link', { name: 'the article' });
    assert.equal(await link.getAttribute('rel'), 'noopener noreferrer nofollow');
    assert.equal(await link.getAttribute('target'), '_blank');
    await answer.getByRole('button', { name: 'Copy', exact: true }).click();
    assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^Here is a \*\*short\*\* tour/);
  });

  test('follows the answer until one scrolls up', async () => {
    const page = await openPage();
    await box(page).fill('many lines');
    await box(page).press('Enter');
    await page.locator('.markdown').getByText('Line 30 of many').waitFor();
    const distance = () => page.locator('.scroll').evaluate((e) => e.scrollHeight - e.scrollTop - e.clientHeight);
    assert.ok((await distance()) < 60);
    await page.locator('.scroll').hover();
    await page.mouse.wheel(0, -400);
    await page.waitForTimeout(300);
    const top = await page.locator('.scroll').evaluate((e) => e.scrollTop);
    await page.locator('.markdown').getByText('Line 60 of many').waitFor({ state: 'attached' });
    assert.equal(await page.locator('.scroll').evaluate((e) => e.scrollTop), top);
    await button(page, 'Newest').click();
    await waitForAnswers(page, 1);
    await page.waitForTimeout(200);
    assert.ok((await distance()) < 60);
  });

  test('shows hostile answers as text', async () => {
    const page = await openPage({ init: () => (window.hit = () => (window.isHit = true)) });
    await ask(page, 'hostile');
    assert.ok((await answers(page).locator('.markdown').innerText()).includes('<script>hit()</script>'));
    assert.equal(await page.evaluate(() => window.isHit), undefined);
    assert.equal(await answers(page).locator('.markdown').locator('img, iframe, form, svg, script, style').count(), 0);
  });
});

if (!realServer) group('faults', () => {
  test('says what went wrong, loses nothing, and tries again', async () => {
    const page = await openPage({ expected: /status of (400|429)|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION/ });
    const cases = [
      ['this is too long', 'The prompt has 20000 tokens and the context holds 16384.'],
      ['are you busy', '512 answers wait already; come back later.'],
      ['please fail late', 'The step failed: out of memory on device 0.'],
      ['please break off', 'The connection broke off before the answer was complete.'],
    ];
    for (const [text, sentence] of cases) {
      await page.goto(`${baseUrl()}#/chat`);
      await page.getByRole('heading', { name: 'New conversation' }).waitFor();
      await box(page).fill(text);
      await box(page).press('Enter');
      await page.getByRole('alert').filter({ hasText: sentence }).waitFor();
      assert.equal(await questions(page).locator('.bubble').innerText(), text);
      const count = mock.chats.length;
      await button(page, 'Try again').click();
      for (let i = 0; i < 40 && mock.chats.length === count; ++i) await page.waitForTimeout(50);
      assert.equal(mock.chats.length, count + 1);
      await page.getByRole('alert').filter({ hasText: sentence }).waitFor();
    }
    await page.route('**/v1/chat/completions', (route) => route.abort('connectionrefused'));
    await page.goto(`${baseUrl()}#/chat`);
    await page.getByRole('heading', { name: 'New conversation' }).waitFor();
    await box(page).fill('hello?');
    await box(page).press('Enter');
    await page.getByRole('alert').filter({ hasText: 'The server cannot be reached.' }).waitFor();
    await page.unroute('**/v1/chat/completions');
    await button(page, 'Try again').click();
    await waitForAnswers(page, 1);
  });

  test('asks for the key and goes on', async () => {
    const closed = await startMock({ key: 'secret' });
    try {
      const page = await openPage({ url: closed.url, expected: /status of 401/ });
      await page.getByRole('heading', { name: 'API key' }).waitFor();
      await page.keyboard.press('Escape');
      await box(page).fill('hello');
      await box(page).press('Enter');
      await page.getByRole('textbox', { name: 'Key' }).fill('secret');
      await page.keyboard.press('Enter');
      await waitForAnswers(page, 1);
      assert.equal(await page.evaluate(() => localStorage.getItem('hillstar-api-key')), null);
      await page.reload();
      await ask(page, 'again', 2);
      await page.goto(`${closed.url}#/live`);
      await page.getByRole('heading', { name: 'Experts' }).waitFor();
    } finally {
      closed.close();
    }
  });

  test('says what an answer that was cut off by a reload is', async () => {
    const page = await openPage();
    await box(page).fill('slow please');
    await box(page).press('Enter');
    await page.locator('.markdown').getByText('thin air carries').waitFor();
    await page.waitForTimeout(1500);
    await page.reload();
    await page.getByText('This answer was cut off').waitFor();
    assert.match(await answers(page).locator('.markdown').innerText(), /^thin air carries/);
    await button(page, 'Try again').click();
    await waitForAnswers(page, 1);
  });

  test('does not write into a conversation that another tab is answering', async () => {
    const first = await openPage();
    await box(first).fill('slow please');
    await box(first).press('Enter');
    await first.locator('.markdown').getByText('thin air carries').waitFor();
    const second = await openPage({ hash: new URL(first.url()).hash });
    await second.getByText('Another tab is writing this answer.').waitFor();
    await box(second).fill('me too');
    await box(second).press('Enter');
    await second.getByText('Wait for its end').waitFor();
    assert.equal(await box(second).inputValue(), 'me too');
    await waitForAnswers(first, 1);
    await waitForAnswers(second, 1);
    await box(second).press('Enter');
    await waitForAnswers(second, 2);
  });

  test('says that the storage is full, and keeps the text', async () => {
    const page = await openPage({
      init: () => {
        const put = IDBObjectStore.prototype.put;
        IDBObjectStore.prototype.put = function (...args) {
          if (this.name === 'conversations') throw new DOMException('full', 'QuotaExceededError');
          return put.apply(this, args);
        };
      },
    });
    await box(page).fill('precious words');
    await page.waitForTimeout(400);
    await box(page).press('Enter');
    await page.getByText('The browser’s storage is full.').waitFor();
    await waitForAnswers(page, 1);
    const dialog = page.waitForEvent('dialog');
    const reload = page.reload();
    await (await dialog).accept(); // the browser asks whether to leave
    await reload;
    await page.getByRole('heading', { name: 'New conversation' }).waitFor();
    assert.equal(await box(page).inputValue(), 'precious words');
  });

  test('works where the page came from another machine without HTTPS', async () => {
    const other = await launch(['--host-resolver-rules=MAP hillstar.test 127.0.0.1']);
    try {
      const url = mock.url.replace('127.0.0.1', 'hillstar.test');
      context = await other.newContext();
      const page = await openPage({ url });
      assert.equal(await page.evaluate(() => isSecureContext), false);
      await ask(page, 'a tour in markdown');
      await button(page, 'Copy the code').click();
      await page.getByText('Copied', { exact: true }).waitFor();
      await page.reload();
      await waitForAnswers(page, 1);
      await context.close();
    } finally {
      context = undefined;
      await other.close();
    }
  });
});

group('live', () => {
  test('shows numbers that move, and the experts', async () => {
    const page = await openPage({ hash: '#/live' });
    await page.getByRole('heading', { name: 'Answers' }).waitFor();
    for (const name of ['running', 'waiting', 'paused']) {
      await page.locator('.count', { hasText: name }).getByText(/^[\d,]+$/).waitFor();
    }
    await page.getByText(/since the start/).first().waitFor();
    if (realServer && !(await page.locator('.map').count())) return; // it does not tell
    const light = () =>
      page.locator('.map canvas').evaluate((canvas) => {
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        let sum = 0;
        for (let i = 0; i < data.length; i += 4) sum += data[i] + data[i + 1] + data[i + 2];
        return sum / (data.length / 4);
      });
    await page.waitForTimeout(200);
    const dark = await light();
    const other = await openPage();
    await ask(other, 'Tell me of rivers and of the sea');
    await other.close();
    let lit = 0;
    for (let i = 0; i < 30 && lit <= dark + 5; ++i) {
      await page.waitForTimeout(150);
      lit = await light();
    }
    assert.ok(lit > dark + 5, `${dark}, then ${lit}`);
    assert.match(await page.locator('.rate').first().getByRole('img').getAttribute('aria-label'), /at most [\d.,]+ tokens/);
    await page.locator('.map').hover({ position: { x: 120, y: 40 } });
    await page.getByText(/^Layer \d+, expert \d+: [\d.]+ % of the layer’s routing/).waitFor();
    await button(page, 'Since start').click();
    await page.locator('.map').hover({ position: { x: 160, y: 40 } });
    await page.getByText(/since the start, [\d.]+ × the mean/).waitFor();
    await page.getByText('As a table').click();
    await page.locator('.expert-table tbody tr').first().waitFor();
  });

  test('goes on asking when the server is away, and says so', async () => {
    const page = await openPage({ hash: '#/live', expected: /ERR_/ });
    await page.getByRole('heading', { name: 'Answers' }).waitFor();
    await page.route('**/api/live', (route) => route.abort('connectionrefused'));
    await page.getByText('The server cannot be reached').waitFor();
    await page.unroute('**/api/live');
    await page.getByText('The server cannot be reached').waitFor({ state: 'detached' });
  });

  test('draws the largest model’s experts', { skip: realServer !== '' }, async () => {
    const large = await startMock({ isBusy: true, layers: 75, experts: 256 });
    try {
      const page = await openPage({ url: large.url, hash: '#/live' });
      await page.getByText('75 layers of 256 experts').waitFor();
      await page.locator('.map').focus();
      for (const key of ['End', 'PageDown']) await page.keyboard.press(key);
      await page.getByText(/^Layer 75, expert 255:/).waitFor();
    } finally {
      large.close();
    }
  });
});

group('access', () => {
  test('can be used with the keyboard alone', async () => {
    const page = await openPage();
    await box(page).waitFor();
    await page.keyboard.type('What is a river?'); // the field has the focus
    await page.keyboard.press('Enter');
    await waitForAnswers(page, 1);
    const focused = () => page.evaluate(() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim());
    const tabTo = async (name, key = 'Tab') => {
      for (let i = 0; i < 60; ++i) {
        await page.keyboard.press(key);
        if ((await focused()) === name) return;
      }
      assert.fail(`${name} cannot be reached with ${key}`);
    };
    await tabTo('Answer again', 'Shift+Tab');
    await page.keyboard.press('Enter');
    await page.getByText('2/2').waitFor({ timeout: kAnswerMs });
    await waitForAnswers(page, 1);
    await tabTo('Settings', 'Shift+Tab');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Settings' }).waitFor();
    await page.keyboard.press('Escape');
    await page.getByRole('heading', { name: 'Settings' }).waitFor({ state: 'detached' });
    assert.equal(await focused(), 'Settings');
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press('Tab');
    await tabTo('Live');
    const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
    assert.equal(outline, 'solid');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Live', exact: true }).waitFor();
    if (!(await page.locator('.map').count())) return;
    await page.locator('.map').focus();
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('ArrowDown');
    await page.getByText(/^Layer \d+, expert 1:/).waitFor();
  });

  for (const colorScheme of ['light', 'dark']) {
    test(`has no fault that axe finds, ${colorScheme}`, async () => {
      const page = await openPage({ colorScheme, bypassCSP: true, reducedMotion: 'reduce' });
      const check = async (what) => {
        await page.waitForTimeout(250);
        await page.evaluate(kAxe);
        const { violations } = await page.evaluate(() => axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }));
        const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html.slice(0, 120)).join(' | ')}`);
        assert.deepEqual(found, [], what);
      };
      await box(page).waitFor();
      await check('the start');
      await ask(page, 'a tour in markdown, what is a river?');
      await check('a conversation');
      await button(page, 'Edit').first().click();
      await check('editing');
      await button(page, 'Cancel').click();
      await button(page, 'Settings').click();
      await check('the settings');
      await page.keyboard.press('Escape');
      await page.goto(`${baseUrl()}#/live`);
      await page.getByRole('heading', { name: 'Answers' }).waitFor();
      if (await page.getByText('As a table').count()) await page.getByText('As a table').click();
      await check('the live page');
    });
  }

  test('follows the system’s theme, and keeps another choice', async () => {
    const page = await openPage({ colorScheme: 'dark' });
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    await box(page).waitFor();
    const dark = await ground();
    await page.emulateMedia({ colorScheme: 'light' });
    const light = await ground();
    assert.notEqual(light, dark);
    for (const name of ['light', 'dark']) await page.getByRole('button', { name: `Change to ${name}` }).click();
    assert.equal(await ground(), dark);
    await page.reload();
    await box(page).waitFor();
    assert.equal(await ground(), dark);
  });

  test('fits a phone of 360 pixels', async () => {
    const page = await openPage({ viewport: { width: 360, height: 640 }, hasTouch: true, isMobile: true });
    const overflow = () => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    await ask(page, 'a tour in markdown, what is a river?');
    assert.ok((await overflow()) <= 0);
    assert.equal(await page.getByRole('link', { name: 'New conversation' }).isVisible(), false);
    await button(page, 'Conversations').click();
    await page.getByRole('link', { name: 'New conversation' }).click();
    await page.getByRole('heading', { name: 'New conversation' }).waitFor();
    await page.goto(`${baseUrl()}#/live`);
    await page.getByRole('heading', { name: 'Answers' }).waitFor();
    assert.ok((await overflow()) <= 0);
  });

  test('moves nothing where less motion is wanted', async () => {
    const page = await openPage({ reducedMotion: 'reduce' });
    await box(page).waitFor();
    const moving = await page.evaluate(() => {
      const probe = document.createElement('span');
      probe.className = 'dots';
      document.body.append(probe);
      return getComputedStyle(probe).animationName;
    });
    assert.equal(moving, 'none');
  });

  test('tells a screen reader of the answer in sentences', async () => {
    const page = await openPage();
    await ask(page, 'What is a river?');
    await page.locator('[aria-live=polite]').filter({ hasText: 'The answer is complete.' }).waitFor({ state: 'attached' });
  });
});

// The sanitising of answers, in a real browser: what a model writes never becomes anything that acts.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { build } from 'vite';
import { launch } from './browser.mjs';
import { kHostileMarkdown } from './hostile_corpus.mjs';

const kTags = new Set(
  ('a blockquote br code del em h3 h4 h5 h6 hr kbd li ol p pre span strong sub sup table tbody td th ' +
    'thead tr ul').split(' '),
);
const kAttributes = new Set(['align', 'class', 'href', 'rel', 'start', 'target', 'title']);

// src/chat/markdown.ts as a script that a bare page can take.
async function bundle() {
  const entry = fileURLToPath(new URL('../src/chat/markdown.ts', import.meta.url));
  const [{ output }] = await build({
    configFile: false,
    logLevel: 'error',
    build: { write: false, minify: false, lib: { entry, formats: ['iife'], name: 'markdown' } },
  });
  return output[0].code;
}

let browser;
let page;
const loaded = [];
before(async () => {
  browser = await launch();
  page = await browser.newPage();
  page.on('request', (request) => loaded.push(request.url()));
  await page.addScriptTag({ content: await bundle() });
  await page.evaluate(() => {
    window.hits = 0;
    window.hit = () => ++window.hits;
    window.show = (fragment) => {
      const box = document.createElement('div');
      box.append(fragment);
      document.body.append(box);
      const elements = [...box.querySelectorAll('*')];
      for (const element of elements) {
        for (const type of ['click', 'mouseover', 'focus', 'load', 'error', 'toggle']) {
          element.dispatchEvent(new Event(type, { cancelable: true }));
        }
      }
      const found = elements.map((element) => ({
        tag: element.tagName.toLowerCase(),
        attributes: Object.fromEntries([...element.attributes].map(({ name, value }) => [name, value])),
      }));
      box.remove();
      return { found, text: box.textContent };
    };
    window.render = (text) => {
      const fragment = document.createDocumentFragment();
      for (const block of markdown.blocksOf(text)) fragment.append(markdown.renderBlock(block));
      return fragment;
    };
  });
});
after(() => browser.close());

function checkHarmless({ found }, text) {
  for (const { tag, attributes } of found) {
    assert.ok(kTags.has(tag), `<${tag}> of ${text}`);
    for (const name of Object.keys(attributes)) assert.ok(kAttributes.has(name), `${name} of ${text}`);
    for (const name of (attributes.class ?? '').split(' ').filter(Boolean)) {
      assert.match(name, /^(image|(hljs-|language_|function_|class_|inherited__)[a-z_-]*)$/, text);
    }
    if (tag !== 'a' || !('href' in attributes)) continue;
    assert.match(attributes.href, /^(https?:\/\/|mailto:)/i, text);
    assert.equal(attributes.target, '_blank');
    assert.deepEqual(attributes.rel.split(' ').sort(), ['nofollow', 'noopener', 'noreferrer']);
  }
}

test('hostile Markdown becomes harmless elements', async () => {
  for (const text of kHostileMarkdown) {
    checkHarmless(await page.evaluate((given) => show(render(given)), text), text);
  }
});

test('hostile HTML becomes harmless elements where marked would let it through', async () => {
  for (const text of kHostileMarkdown) {
    checkHarmless(await page.evaluate((given) => show(markdown.sanitise(given)), text), text);
  }
});

test('nothing ran and nothing was loaded', async () => {
  await page.waitForTimeout(200);
  assert.equal(await page.evaluate(() => window.hits), 0);
  assert.deepEqual(loaded, []);
});

test('the page of this test would run what is not sanitised', async () => {
  await page.evaluate(() => (document.body.insertAdjacentHTML('beforeend', '<b onclick=hit()>x</b>')));
  await page.evaluate(() => document.querySelector('b').click());
  assert.equal(await page.evaluate(() => window.hits), 1);
});

test('HTML is shown as it is written, and images as links', async () => {
  const shown = (text) => page.evaluate((given) => show(render(given)), text);
  assert.equal((await shown('a <b onclick=x>c</b>')).text.trim(), 'a <b onclick=x>c</b>');
  assert.equal((await shown('<div>one</div>')).text.trim(), '<div>one</div>');
  const { found } = await shown('![a bird](https://example.org/a.png)');
  assert.deepEqual(found.map(({ tag }) => tag), ['p', 'span', 'a']);
});

test('Markdown still looks like it', async () => {
  const tags = async (text) =>
    (await page.evaluate((given) => show(render(given)), text)).found.map(({ tag }) => tag).join(' ');
  assert.equal(await tags('# a\n\nb **c** *d* ~~e~~ `f`'), 'h3 p strong em del code');
  assert.equal(await tags('3. a\n4. b'), 'ol li li');
  assert.match(await tags('| a |\n| -: |\n| b |'), /^table thead tr th tbody tr td$/);
  assert.equal(await tags('a<br>b H<sub>2</sub>O'), 'p br sub');
  assert.match(await tags('```js\nconst a = "b";\n```'), /^pre code span/);
  const { found } = await page.evaluate(() => show(render('| a |\n| -: |\n| b |\n\n3. x')));
  assert.equal(found.find(({ tag }) => tag === 'td').attributes.align, 'right');
  assert.equal(found.find(({ tag }) => tag === 'ol').attributes.start, '3');
});

test('a text is drawn the same in pieces as at once', async () => {
  const text = 'One [x].\n\n```py\na = 1\n```\n\n- b\n- c\n\n[x]: https://example.org/';
  const keys = await page.evaluate((whole) => {
    const last = markdown.blocksOf(whole).map((block) => block.key);
    const before = markdown.blocksOf(whole.slice(0, 30)).map((block) => block.key);
    return { last, before };
  }, text);
  assert.equal(keys.last.length, 3);
  assert.notEqual(keys.last[0], keys.before[0]); // the link's address came later
});

// Pictures of both pages, light and dark, wide and on a phone, from the mock server:
//
//   node tests/screenshots.mjs FOLDER
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { launch } from './browser.mjs';
import { startMock } from './mock_server.mjs';

const folder = process.argv[2];
if (!folder) {
  console.error('usage: node tests/screenshots.mjs FOLDER');
  process.exit(2);
}
mkdirSync(folder, { recursive: true });

const kSizes = { wide: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } };

async function ask(page, text) {
  await page.getByRole('textbox', { name: 'Message' }).fill(text);
  await page.keyboard.press('Enter');
  await page.locator('.stats').last().waitFor();
}

async function chatPictures(browser, url, scheme, size) {
  const context = await browser.newContext({ viewport: kSizes[size], colorScheme: scheme, deviceScaleFactor: 2 });
  const page = await context.newPage();
  const picture = (name) => page.screenshot({ path: join(folder, `${name}_${size}_${scheme}.png`) });
  await page.goto(url);
  await page.getByRole('textbox', { name: 'Message' }).waitFor();
  await page.waitForTimeout(300);
  await picture('start');
  for (const text of ['Sort these words: green, black, white, Dan', 'What is a river?', 'List the first 12 prime numbers.']) {
    await ask(page, text);
    await page.goto(`${url}#/chat`);
    await page.getByRole('heading', { name: 'New conversation' }).waitFor();
  }
  await page.getByRole('button', { name: 'Settings' }).click();
  await page.getByLabel('Thinking').selectOption('on');
  await picture('settings');
  await page.keyboard.press('Escape');
  await ask(page, 'Give me a short tour of the hillstar, with code.');
  await page.waitForTimeout(300);
  await picture('chat_end');
  await page.locator('.scroll').evaluate((box) => (box.scrollTop = 0));
  await page.waitForTimeout(200);
  await picture('chat');
  if (size === 'phone') {
    await page.getByRole('button', { name: 'Conversations' }).click();
    await page.waitForTimeout(400);
    await picture('list');
  }
  await context.close();
}

async function livePicture(browser, url, scheme, size, name) {
  const context = await browser.newContext({ viewport: kSizes[size], colorScheme: scheme, deviceScaleFactor: 2 });
  const page = await context.newPage();
  await page.goto(`${url}#/live`);
  await page.waitForTimeout(name === 'live' && size === 'wide' ? 30_000 : 6000);
  await page.screenshot({ path: join(folder, `${name}_${size}_${scheme}.png`), fullPage: false });
  if (size === 'phone') {
    await page.locator('.experts').scrollIntoViewIfNeeded();
    await page.locator('.live').evaluate((box) => (box.scrollTop = box.scrollHeight));
    await page.waitForTimeout(300);
    await page.screenshot({ path: join(folder, `${name}_map_${size}_${scheme}.png`) });
  }
  await context.close();
}

const mock = await startMock({ isBusy: true });
const large = await startMock({ isBusy: true, layers: 75, experts: 256 });
const browser = await launch();
const jobs = [];
for (const scheme of ['light', 'dark']) {
  for (const size of ['wide', 'phone']) {
    await chatPictures(browser, mock.url, scheme, size);
    jobs.push(livePicture(browser, mock.url, scheme, size, 'live'));
  }
  jobs.push(livePicture(browser, large.url, scheme, 'wide', 'live_large'));
}
jobs.push(livePicture(browser, large.url, 'dark', 'phone', 'live_large'));
await Promise.all(jobs);
await browser.close();
mock.close();
large.close();

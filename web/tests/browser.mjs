// The browser that tests and screenshots use: Debian's Chromium.
import { existsSync } from 'node:fs';
import { chromium } from 'playwright-core';

const kChromium = '/usr/bin/chromium';

export function hasBrowser() {
  return existsSync(kChromium);
}

export function launch(flags = []) {
  const isRoot = process.getuid?.() === 0; // whom Chromium's sandbox refuses
  return chromium.launch({ executablePath: kChromium, args: isRoot ? ['--no-sandbox', ...flags] : flags });
}

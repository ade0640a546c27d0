// Builds dist/, which is committed and built into the program: fixed names, one script, one style
// sheet, nothing inline, and the same bytes from the same sources on every machine.
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';

const bundled = ['preact', 'marked', 'dompurify', 'highlight.js'];

// licences.txt: what the bundled libraries' licences want to be shown.
function licences() {
  return {
    name: 'licences',
    generateBundle() {
      const parts = bundled.map((name) => {
        const folder = new URL(`./node_modules/${name}/`, import.meta.url);
        const { version, license } = JSON.parse(readFileSync(new URL('package.json', folder), 'utf8'));
        const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
        const text = readFileSync(new URL(file, folder), 'utf8').replaceAll('\r\n', '\n').trim();
        return `${name} ${version} (${license})\n\n${text}\n`;
      });
      const head = 'The page that hillstar serve shows contains these libraries.\n\n';
      const source = head + parts.join(`\n${'-'.repeat(80)}\n\n`);
      this.emitFile({ type: 'asset', fileName: 'licences.txt', source });
    },
  };
}

export default defineConfig({
  root: fileURLToPath(new URL('.', import.meta.url)),
  base: './',
  plugins: [licences()],
  build: {
    target: 'es2022',
    outDir: 'dist',
    emptyOutDir: true,
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    rolldownOptions: {
      output: {
        codeSplitting: false,
        entryFileNames: 'assets/app.js',
        assetFileNames: 'assets/app[extname]',
      },
    },
  },
  test: { include: ['tests/*_test.ts'] },
});

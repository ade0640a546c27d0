// Colours for code. Only common languages are built in; others stay plain.
import hljs from 'highlight.js/lib/core';
import bash from 'highlight.js/lib/languages/bash';
import c from 'highlight.js/lib/languages/c';
import cpp from 'highlight.js/lib/languages/cpp';
import csharp from 'highlight.js/lib/languages/csharp';
import css from 'highlight.js/lib/languages/css';
import diff from 'highlight.js/lib/languages/diff';
import go from 'highlight.js/lib/languages/go';
import ini from 'highlight.js/lib/languages/ini';
import java from 'highlight.js/lib/languages/java';
import javascript from 'highlight.js/lib/languages/javascript';
import json from 'highlight.js/lib/languages/json';
import makefile from 'highlight.js/lib/languages/makefile';
import markdown from 'highlight.js/lib/languages/markdown';
import python from 'highlight.js/lib/languages/python';
import rust from 'highlight.js/lib/languages/rust';
import sql from 'highlight.js/lib/languages/sql';
import typescript from 'highlight.js/lib/languages/typescript';
import xml from 'highlight.js/lib/languages/xml';
import yaml from 'highlight.js/lib/languages/yaml';

const kLanguages = {
  bash, c, cpp, csharp, css, diff, go, ini, java, javascript, json, makefile, markdown, python, rust,
  sql, typescript, xml, yaml,
};
for (const [name, language] of Object.entries(kLanguages)) hljs.registerLanguage(name, language);

// Longer code takes the time of many pictures, again for each piece that comes.
const kMaxCharacters = 50_000;

// HTML, or null where the language is not known.
export function highlight(code: string, language: string): string | null {
  if (code.length > kMaxCharacters || !hljs.getLanguage(language)) return null;
  return hljs.highlight(code, { language, ignoreIllegals: true }).value;
}

// Markdown of an answer as parts of a page. The text comes from a model and is not trusted: HTML in
// it is shown as it is written, images become links, and what marked makes of the rest is sanitised
// against a short list of elements.
import DOMPurify from 'dompurify';
import { Marked, type Token, type Tokens, type TokensList } from 'marked';
import { highlight } from './highlight';

function escape(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

// Elements that answers use within tables and formulas, and that can do nothing.
const kHarmlessHtml = /^<\/?(?:br|sub|sup|kbd)\s*\/?>$/i;

function linkOf(href: string, label: string): string {
  return `<a href="${escape(href)}">${label}</a>`;
}

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => (kHarmlessHtml.test(text.trim()) ? text : escape(text)),
    image: ({ href, text }) => `<span class="image">${linkOf(href, escape(text || 'image'))}</span>`,
    link({ href, tokens }) {
      return linkOf(href, this.parser.parseInline(tokens));
    },
    // The page itself has the headings above these.
    heading({ depth, tokens }) {
      const level = Math.min(6, depth + 2);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>\n`;
    },
    code({ text, lang }) {
      const language = (lang ?? '').trim().split(/[\s{]/)[0]!.toLowerCase();
      const html = highlight(text, language) ?? escape(text);
      return `<pre title="${escape(language)}"><code>${html}</code></pre>\n`;
    },
    checkbox: ({ checked }) => (checked ? '☑ ' : '☐ '),
  },
});

const kTags = [
  'a', 'blockquote', 'br', 'code', 'del', 'em', 'h3', 'h4', 'h5', 'h6', 'hr', 'kbd', 'li', 'ol', 'p',
  'pre', 'span', 'strong', 'sub', 'sup', 'table', 'tbody', 'td', 'th', 'thead', 'tr', 'ul',
];
const kAttributes = ['align', 'class', 'href', 'start', 'title'];
const kClasses = /^(?:image|(?:hljs-|language_|function_|class_|inherited__)[a-z_-]*)$/;

const purify = DOMPurify(window);
purify.addHook('uponSanitizeAttribute', (_, data) => {
  if (data.attrName !== 'class') return;
  data.attrValue = data.attrValue.split(/\s+/).filter((name) => kClasses.test(name)).join(' ');
});
purify.addHook('afterSanitizeAttributes', (element) => {
  if (element.tagName !== 'A') return;
  if (!element.hasAttribute('href')) return;
  element.setAttribute('target', '_blank');
  element.setAttribute('rel', 'noopener noreferrer nofollow');
});

// Absolute addresses only: a relative one would lead into this page.
const kAddresses = /^(?:https?:\/\/|mailto:)/i;

export function sanitise(html: string): DocumentFragment {
  return purify.sanitize(html, {
    ALLOWED_TAGS: kTags,
    ALLOWED_ATTR: kAttributes,
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    ALLOWED_URI_REGEXP: kAddresses,
    ADD_URI_SAFE_ATTR: ['align', 'start'], // no addresses
    KEEP_CONTENT: true,
    RETURN_DOM_FRAGMENT: true,
  });
}

export interface MarkdownBlock {
  key: string; // blocks of one key look the same
  token: Token;
  links: TokensList['links'];
}

// The text's paragraphs, lists, tables and so on. Of a text that grows only the last ones change, so
// that the others need not be drawn again.
export function blocksOf(text: string): MarkdownBlock[] {
  const tokens = marked.lexer(text);
  const { links } = tokens;
  const suffix = Object.keys(links).length > 0 ? JSON.stringify(links) : '';
  return tokens
    .filter((token) => token.type !== 'space' && token.type !== 'def')
    .map((token) => ({ key: token.raw + suffix, token, links }));
}

export function renderBlock(block: MarkdownBlock): DocumentFragment {
  const list = Object.assign([block.token], { links: block.links }) as TokensList;
  return sanitise(marked.parser(list));
}

function textOf(token: Token): string {
  if (token.type === 'code') return '';
  const { tokens, items } = token as Tokens.Generic;
  const inner = (tokens ?? (items as Token[] | undefined) ?? null) as Token[] | null;
  if (inner) return inner.map(textOf).join(token.type === 'list' ? '\n' : '');
  return 'text' in token ? String(token.text) : '';
}

// Without marks, for a screen reader; code is left out.
export function plainText(text: string): string {
  return marked.lexer(text).map(textOf).filter(Boolean).join('\n');
}

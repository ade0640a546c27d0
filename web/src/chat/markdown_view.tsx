// Markdown, drawn block by block; code gets a bar with its language and a button that copies it.
import { Component } from 'preact';
import { useLayoutEffect, useMemo, useRef } from 'preact/hooks';
import { copyText } from '../shell/clipboard';
import { blocksOf, type MarkdownBlock, renderBlock } from './markdown';

function copyButton(code: string): HTMLButtonElement {
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'code-copy';
  button.textContent = 'Copy';
  button.setAttribute('aria-label', 'Copy the code');
  button.addEventListener('click', () => {
    void copyText(code).then((done) => {
      button.textContent = done ? 'Copied' : 'Not copied';
      setTimeout(() => (button.textContent = 'Copy'), 2000);
    });
  });
  return button;
}

function dressCode(pre: HTMLPreElement): void {
  const language = pre.title;
  pre.removeAttribute('title');
  pre.tabIndex = 0; // long lines can be scrolled with the keyboard
  pre.setAttribute('aria-label', language ? `Code, ${language}` : 'Code');
  pre.setAttribute('role', 'group');
  const box = document.createElement('div');
  box.className = 'code';
  const bar = document.createElement('div');
  bar.className = 'code-bar';
  const name = document.createElement('span');
  name.textContent = language || 'text';
  bar.append(name, copyButton(pre.textContent ?? ''));
  pre.replaceWith(box);
  box.append(bar, pre);
}

function dressTable(table: HTMLTableElement): void {
  const box = document.createElement('div');
  box.className = 'table';
  box.tabIndex = 0;
  box.setAttribute('role', 'group');
  box.setAttribute('aria-label', 'Table');
  table.replaceWith(box);
  box.append(table);
}

function Block({ block }: { block: MarkdownBlock }) {
  const element = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const fragment = renderBlock(block);
    fragment.querySelectorAll('pre').forEach(dressCode);
    fragment.querySelectorAll('table').forEach(dressTable);
    element.current?.replaceChildren(fragment);
  }, [block.key]);
  return <div ref={element} class="block" />;
}

// Drawn again only when the block's text has changed.
class StableBlock extends Component<{ block: MarkdownBlock }> {
  override shouldComponentUpdate(next: { block: MarkdownBlock }): boolean {
    return next.block.key !== this.props.block.key;
  }
  override render() {
    return <Block block={this.props.block} />;
  }
}

export function MarkdownView({ text }: { text: string }) {
  const blocks = useMemo(() => blocksOf(text), [text]);
  return (
    <div class="markdown" dir="auto">
      {blocks.map((block, i) => (
        <StableBlock key={i} block={block} />
      ))}
    </div>
  );
}

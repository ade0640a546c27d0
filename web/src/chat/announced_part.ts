// The part of `text` behind `from` that ends with a sentence or a line; all of it at the end.
export function completedPart(text: string, from: number, isOver: boolean): string {
  const rest = text.slice(from);
  if (isOver) return rest;
  const match = /^[\s\S]*(?:[.!?:;](?=\s)|\n)/.exec(rest);
  return match ? match[0] : '';
}

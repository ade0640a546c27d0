// Copying, also where the page came by HTTP from another machine and the browser's newer interface
// is missing.
function copyByCommand(text: string): boolean {
  const area = document.createElement('textarea');
  area.value = text;
  area.className = 'off-screen';
  area.readOnly = true;
  const before = document.activeElement;
  const host = before?.closest('dialog') ?? document.body; // outside of a dialog nothing can be selected
  host.append(area);
  area.select();
  const done = document.execCommand('copy');
  area.remove();
  if (before instanceof HTMLElement) before.focus();
  return done;
}

// Whether it worked.
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyByCommand(text);
  }
}

export function downloadText(name: string, content: string): void {
  const address = URL.createObjectURL(new Blob([content], { type: 'application/json' }));
  const link = document.createElement('a');
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

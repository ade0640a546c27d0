// A modal dialog of the browser's own kind, which keeps the focus and closes with Esc.
import type { ComponentChildren } from 'preact';
import { useEffect, useId, useRef } from 'preact/hooks';
import { IconButton } from './icons';

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  class?: string;
}

export function Dialog({ title, onClose, children, class: name }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  const titleId = useId();
  useEffect(() => {
    element.current?.showModal();
  }, []);
  const closeFromBackdrop = (event: MouseEvent) => {
    if (event.target === element.current) element.current?.close();
  };
  return (
    <dialog
      ref={element}
      class={`dialog ${name ?? ''}`}
      aria-labelledby={titleId}
      onClose={onClose}
      onMouseDown={closeFromBackdrop}
    >
      <div class="dialog-content">
        <div class="dialog-head">
          <h2 id={titleId}>{title}</h2>
          <IconButton icon="close" label="Close" onClick={() => element.current?.close()} />
        </div>
        {children}
      </div>
    </dialog>
  );
}
